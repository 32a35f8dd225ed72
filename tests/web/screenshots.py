"""Takes the pictures of the status page for docs/: three widths, light and dark, a bad night (`make screenshots`)."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.metrics import fleet
from tests.web import crowd
from tests.web.browser import PROGRAM, Browser, browser
from tests.web.site import site

SIZES = {"desktop": 1280, "tablet": 800, "phone": 390}
SETTLED = "document.getElementById('live').dataset.state === 'live'"


def main(folder: Path) -> int:
    if PROGRAM is None:
        print("cannot take pictures: there is no chromium (Debian: apt-get install chromium)", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    with site(fleet.control) as shown, browser() as tab:
        for name, width in SIZES.items():
            take(tab, shown.url, width, folder / f"status-{name}.png")
        tab.prefer(prefers_color_scheme="dark")
        take(tab, shown.url, SIZES["desktop"], folder / "status-dark.png")
    with site(crowd.control) as shown, browser() as tab:
        tab.prefer(prefers_color_scheme="dark")
        take(tab, shown.url, SIZES["tablet"], folder / "status-night.png")
    return 0


def take(tab: Browser, url: str, width: int, path: Path) -> None:
    tab.size(width)
    tab.open(url)
    tab.until(SETTLED)
    tab.picture(path)
    print(path)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/screenshots")))
