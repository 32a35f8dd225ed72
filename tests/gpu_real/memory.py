"""Says where the reader's memory goes: what is Python's, what pynvml's, what the driver's.

`python -m tests.gpu_real.memory [--json FILE]` from the root of the repository. Each row is a process of its own that
goes one step further than the row above; KiB of /proc/self/smaps_rollup (proportional set size, its anonymous part).
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

REPORT = """
import os
def report():
    lines = open("/proc/self/smaps_rollup").read().splitlines()[1:]
    fields = {line.split()[0].rstrip(":"): int(line.split()[1]) for line in lines}
    print(fields["Pss"], fields["Pss_Anon"], fields["Rss"], len(os.listdir("/proc/self/task")))
"""
STDLIB = (
    "import contextlib, ctypes, json, os, select, signal, sys, threading, time\nfrom collections.abc import Callable\n"
)
INIT = "pynvml.nvmlInit()\n"
SAMPLE = "from supervisor.edge.gpu.nvml import Reader\nreader = Reader(pynvml)\nfor _ in range(5): json.dumps(reader.sample())\n"
EVENTS = (
    "events = reader.subscribe()\nthreading.Thread(target=lambda: list(reader.xids(events)), daemon=True).start()\n"
)
TRIM = "ctypes.CDLL(None).malloc_trim(0)\n"
STEPS = {
    "python": "",
    "and the standard library": STDLIB,
    "and pynvml": STDLIB + "import pynvml\n" + TRIM,
    "and nvmlInit": STDLIB + "import pynvml\n" + INIT + TRIM,
    "and samples": STDLIB + "import pynvml\n" + SAMPLE + TRIM,
    "and the events' thread": STDLIB + "import pynvml\n" + SAMPLE + EVENTS + "time.sleep(0.5)\n" + TRIM,
}
VARIANTS: dict[str, tuple[list[str], dict[str, str]]] = {
    "as it is": ([], {}),
    "no site, no docstrings, one arena": (["-S", "-OO"], {"MALLOC_ARENA_MAX": "1"}),
}
MAPPINGS = """
import sys
name, sums = "", {}
for line in open("/proc/self/smaps"):
    words = line.split()
    if words[0] == "Pss:":
        sums[name] = sums.get(name, 0) + int(words[1])
    elif not words[0].endswith(":"):
        name = words[5] if len(words) > 5 else "(anonymous)"
for name, size in sorted(sums.items(), key=lambda pair: -pair[1])[:8]:
    print(size, name)
"""
END = "import sys\nsys.stdout.flush()\nos._exit(0)\n"  # without waiting for the thread, which waits in the driver


def run(options: list[str], environment: dict[str, str], code: str) -> list[str]:
    paths = os.pathsep.join([str(Path.cwd()), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, *options, "-c", code + END],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout.splitlines() or done.stderr.splitlines()[-1:]


def figures(lines: list[str]) -> dict[str, int] | str:
    words = " ".join(lines).split()
    names = ("pss", "anonymous", "rss", "threads")
    if len(words) != len(names):
        return " ".join(lines)[:200]
    return dict(zip(names, map(int, words), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result: dict[str, Any] = {
        variant: {step: figures(run(*how, f"{REPORT}{code}report()\n")) for step, code in STEPS.items()}
        for variant, how in VARIANTS.items()
    }
    result["largest mappings at the end"] = run([], {}, list(STEPS.values())[-1] + MAPPINGS)
    text = json.dumps(result, indent=1)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
