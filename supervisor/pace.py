"""When those look who look every so often: at moments that all of them share, so that one wake-up serves them all."""


def until_shared(period_s: float, now: float) -> float:
    """Seconds until the next multiple of the period, and one more where that is less than half of it away."""
    pause_s = period_s - now % period_s
    return pause_s if pause_s > period_s / 2 else pause_s + period_s
