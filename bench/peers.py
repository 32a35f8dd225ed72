"""Installs the programs that we measure and test against, each into a virtual environment of its own in the cache."""

import os
import subprocess
import sys
from pathlib import Path

SUPERVISORD = "supervisor==4.3.0"
CIRCUS = "circus==0.19.0"
ATHERIS = "atheris==3.0.0"
SCHEMATHESIS = "schemathesis==4.32.5"
PIPX = "pipx==1.18.4"
UV = "uv==0.13.9"
ROUTER = "sglang-router==0.3.2"
GATEWAY = "smg==1.13.0"  # what became of it
OLDER_ROUTER = "sglang-router==0.1.9"  # speaks the older dialect


def supervisord_folder() -> Path | None:
    """The bin folder of supervisord and supervisorctl; None (with the reason on stderr) when they cannot be had.

    The PyPI project Supervisor installs a package of the same name as ours: never into our own environment.
    """
    # setuptools: Supervisor 4.3 still reads its version through pkg_resources where it finds it.
    return _folder(SUPERVISORD, "supervisorctl", "setuptools<81")


def circus_folder() -> Path | None:
    """The bin folder of circusd and circusctl."""
    return _folder(CIRCUS, "circusctl")


def schemathesis_folder() -> Path | None:
    """The bin folder of schemathesis. Not in our own environment: it is a pytest plugin that every run would load."""
    return _folder(SCHEMATHESIS, "schemathesis")


def atheris_folder() -> Path | None:
    """The bin folder beside the fuzzer, which is a library of 35 MB: its neighbour tells that it is there."""
    return _folder(ATHERIS, "wheel", "wheel")


def router_folders() -> tuple[Path | None, ...]:
    """The bin folders of the engine's router in all dialects of its interface; each 150 MB, most of it one library."""
    # The older one has no program of its own: that of a package installed with it tells that it is there.
    return _folder(ROUTER, "sglang-router"), _folder(GATEWAY, "smg"), _folder(OLDER_ROUTER, "wheel", "wheel")


def installer_folders() -> list[Path | None]:
    """The bin folders of pipx and uv, which install the wheel as other people do."""
    return [_folder(PIPX, "pipx"), _folder(UV, "uv")]


def place(requirement: str) -> Path:
    """The bin folder, whether it is there or not."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "sglang-supervisor" / "peers" / requirement.replace("==", "-") / "bin"


def _folder(requirement: str, program: str, *more: str) -> Path | None:
    folder = place(requirement)
    if (folder / program).exists():
        return folder
    subprocess.run([sys.executable, "-m", "venv", folder.parent], check=True)
    command = [str(folder / "python"), "-m", "pip", "install", "--quiet", requirement, *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"cannot install {requirement}: {done.stderr.strip()[-300:]}; what needs it is left out", file=sys.stderr)
        return None
    return folder


if __name__ == "__main__":
    folders = [supervisord_folder(), circus_folder(), schemathesis_folder(), atheris_folder()]
    sys.exit(None in (*folders, *router_folders(), *installer_folders()))
