"""Entry point: `python -m supervisor.simulator [render] [--engine vllm] ARGUMENTS`."""

from __future__ import annotations

import sys

from supervisor.simulator.options import Options, parse_options
from supervisor.simulator.scenario import ScenarioError, claim_once


def main(argv: list[str]) -> int:
    try:
        if _engine(argv) == "vllm":
            return _other(argv)
        if argv[:1] == ["render"]:
            return _print_log(parse_options(argv[1:]))
        options = parse_options(argv)
        return _serve(options._replace(scenarios=claim_once(options.scenarios)))
    except ScenarioError as error:
        print(f"supervisor.simulator: {error}; nothing was started", file=sys.stderr)
        return 2


def _engine(argv: list[str]) -> str:
    """Which engine is imitated: each has options of its own."""
    for at, word in enumerate(argv):
        flag, equals, value = word.partition("=")
        if flag == "--engine":
            return value if equals else (*argv, "")[at + 1]
    return "sglang"


def _other(argv: list[str]) -> int:
    from supervisor.simulator.vllm import front, options, script  # the other engine's run does not need them

    if argv[:1] == ["render"]:
        sys.stdout.buffer.writelines(script.render(options.parse_options(argv[1:])))
        return 0
    read = options.parse_options(argv)
    return front.run(read._replace(scenarios=claim_once(read.scenarios)))


def _print_log(options: Options) -> int:
    from supervisor.simulator.render import render  # a live run does not need it

    for write in render(options):
        if options.stamps:
            sys.stdout.buffer.write(f"{write.at_s:9.3f} {write.source:8} ".encode() + repr(write.data).encode() + b"\n")
        else:
            sys.stdout.buffer.write(write.data)
    return 0


def _serve(options: Options) -> int:
    from supervisor.simulator.launcher import run

    return run(options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
