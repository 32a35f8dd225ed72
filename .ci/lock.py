"""Turns pip's report of what it would install into a requirements file with the hash of every file."""

import json
import sys
from typing import Any


def lines(report: dict[str, Any]) -> list[str]:
    """One requirement a line, in the order of names; what comes from a folder is the project itself."""
    found = {}
    for item in report["install"]:
        archive = item["download_info"].get("archive_info")
        if archive is not None:
            name, version = item["metadata"]["name"], item["metadata"]["version"]
            found[name.lower()] = f"{name}=={version} --hash=sha256:{archive['hashes']['sha256']}"
    return [found[name] for name in sorted(found)]


if __name__ == "__main__":
    print("\n".join(lines(json.load(sys.stdin))))
