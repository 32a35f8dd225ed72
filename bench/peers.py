"""Installs the peers that we measure against, each into a virtual environment of its own below the cache folder."""

import os
import subprocess
import sys
from pathlib import Path

SUPERVISORD = "supervisor==4.3.0"


def supervisord_folder() -> Path | None:
    """The bin folder of supervisord and supervisorctl; None (with the reason on stderr) when they cannot be had.

    The PyPI project Supervisor installs a package of the same name as ours: never into our own environment.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    venv = cache / "sglang-supervisor" / "peers" / SUPERVISORD.replace("==", "-")
    if not (venv / "bin" / "supervisorctl").exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        # setuptools: Supervisor 4.3 still reads its version through pkg_resources where it finds it.
        command = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", SUPERVISORD, "setuptools<81"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(
                f"cannot install {SUPERVISORD}: {done.stderr.strip()[-300:]}; its column stays empty", file=sys.stderr
            )
            return None
    return venv / "bin"
