"""Prints the engine's Prometheus page with the metric names that stayed the same from 0.4.4 to 0.5.23."""

from __future__ import annotations

from supervisor.simulator.engine import TOKENS_PER_S, Engine


def metrics_page(engine: Engine) -> str:
    running = len(engine.running())
    totals = engine.totals
    gauges = (
        ("num_running_reqs", "The number of running requests.", float(running)),
        ("num_queue_reqs", "The number of requests in the waiting queue.", 0.0),
        ("num_used_tokens", "The number of used tokens.", 40.0 * running),
        ("token_usage", "The token usage.", 0.001 * running),
        ("gen_throughput", "The generation throughput (token/s).", TOKENS_PER_S * running),
        ("cache_hit_rate", "The prefix cache hit rate.", 0.0),
        ("spec_accept_length", "The average acceptance length of speculative decoding.", _accept_length(engine)),
    )
    counters = (
        ("num_requests_total", "Number of requests processed.", float(totals.requests)),
        ("prompt_tokens_total", "Number of prefill tokens processed.", float(totals.prompt_tokens)),
        ("generation_tokens_total", "Number of generation tokens processed.", float(totals.generation_tokens)),
    )
    labels = f'{{model_name="{engine.options.model_name}"}}'
    lines = [_metric(name, "gauge", text, labels, value) for name, text, value in gauges]
    lines += [_metric(name, "counter", text, labels, value) for name, text, value in counters]
    return "".join(lines)


def _accept_length(engine: Engine) -> float:
    return 2.84 if engine.options.speculative else 0.0


def _metric(name: str, kind: str, text: str, labels: str, value: float) -> str:
    return f"# HELP sglang:{name} {text}\n# TYPE sglang:{name} {kind}\nsglang:{name}{labels} {value}\n"
