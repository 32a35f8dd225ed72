"""Installs a real SGLang that runs on a CPU, with a tiny model, into a cache folder outside the repository.

    setup_sglang_cpu.py               build what is missing, then print where it is
    setup_sglang_cpu.py serve [ARGS]  build, then become the server (ARGS go to SGLang: --port 31000 --tp 2 ...)

The folder is $SGLSUP_REAL_DIR, by default ~/.cache/sglang-supervisor/real-0.5.23. It takes 1.6 GB and some four
minutes once; a running server takes 1.7 GB of memory. Standard library only, so that any python3 can run it.

Exit status 75 means that a package could not be had (no CPU build of torch for this Python, a registry that says no):
the reason is kept beside the install and the tests that need it are skipped with it. All else that fails is status 1.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

VERSION = "0.5.23"
HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / f"requirements-sglang-{VERSION}.txt"
STAND_INS = HERE / "stand_ins"
MAKE_MODEL = HERE / "make_model.py"
UNAVAILABLE = 75  # EX_TEMPFAIL of sysexits.h
# The CPU build of torch that the pins name exists for this Python alone; a CUDA build would be several GB.
PYTHON = "python3.11"
REFUSALS = (
    "no matching distribution",
    "could not find a version",
    "403 client error",
    "404 client error",
    "connection",
    "timed out",
    "name resolution",
    "max retries exceeded",
)


class UnavailableError(Exception):
    """A package that the recipe needs cannot be had here."""


def main(arguments: list[str]) -> int:
    install = Install(default_root())
    try:
        install.build()
    except UnavailableError as error:
        print(f"cannot install SGLang {VERSION}: {error}; the tests that need it are skipped", file=sys.stderr)
        return UNAVAILABLE
    if arguments[:1] == ["serve"]:
        command = install.command(*arguments[1:])
        os.execve(command[0], command, os.environ | install.environment(ranks_in(command)))
    print(install.root)
    return 0


def ranks_in(command: list[str]) -> int:
    """The value of --tp, 1 without it."""
    named = [value for option, value in pairwise(command) if option in ("--tp", "--tp-size")]
    return int(named[-1]) if named else 1


def default_root() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SGLSUP_REAL_DIR") or Path(cache) / "sglang-supervisor" / f"real-{VERSION}")


class Install:
    """One SGLang with its stand-ins and its model below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.python = root / "venv" / "bin" / "python"
        self.model = root / "model"
        self.stand_ins = root / "stand_ins"
        self._stamp = root / "built"
        self._refused = root / "refused"

    @property
    def complete(self) -> bool:
        return self._stamp.exists() and self._stamp.read_text() == recipe_digest()

    @property
    def refusal(self) -> str | None:
        """Why the last build got no packages; None when it got them or was never tried."""
        return self._refused.read_text() if self._refused.exists() else None

    def build(self) -> None:
        """Bring the folder up to the recipe; a second caller waits for the first one."""
        self.root.mkdir(parents=True, exist_ok=True)
        with locked(self.root / "lock"):
            if self.complete:
                return
            self._stamp.unlink(missing_ok=True)
            self._refused.unlink(missing_ok=True)
            try:
                self._install()
            except UnavailableError as error:
                self._refused.write_text(str(error))
                raise
            self._stamp.write_text(recipe_digest())

    def _install(self) -> None:
        with told("virtual environment"):
            subprocess.run([find_python(), "-m", "venv", self.root / "venv"], check=True)
        with told("packages (1.5 GB)"):
            # Without dependencies: SGLang's own list would bring CUDA builds of torch and of a dozen kernels.
            pip_install(self.python, "--no-deps", "--requirement", str(REQUIREMENTS))
        with told("model"):
            shutil.copytree(STAND_INS, self.stand_ins, dirs_exist_ok=True)
            subprocess.run([self.python, MAKE_MODEL, self.model], check=True)

    def command(self, *arguments: str) -> list[str]:
        """The server's command line, made small enough for two cores.

        Without --max-total-tokens the KV cache takes most of the memory and a minute to clear; without
        --sleep-on-idle an idle scheduler spins one core.
        """
        fixed = ["--device", "cpu", "--host", "127.0.0.1", "--max-total-tokens", "4096"]
        fixed += ["--max-running-requests", "8", "--grammar-backend", "none", "--sleep-on-idle"]
        return [str(self.python), "-m", "sglang.launch_server", "--model-path", str(self.model), *fixed, *arguments]

    def environment(self, ranks: int = 1) -> dict[str, str]:
        """What the server needs on top of PATH and HOME."""
        # Without it tensor parallelism beyond the number of NUMA nodes ends at start.
        binding = {"SGLANG_CPU_OMP_THREADS_BIND": "|".join(map(str, range(ranks)))} if ranks > 1 else {}
        return binding | {
            "SGLANG_USE_CPU_ENGINE": "1",  # SGLang's platform test then answers "cpu"
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "PYTHONPATH": str(self.stand_ins),
            "TORCHDYNAMO_DISABLE": "1",  # torch.compile does nothing: no C++ compiler at start
            "SGLANG_DISABLED_MODEL_ARCHS": ",".join(self._other_models()),
        }

    def _other_models(self) -> list[str]:
        """SGLang imports all model files it ships (5-10 CPU-seconds a process); only Llama's is needed."""
        needed = {"__init__", "llama", "registry", "utils"}
        (models,) = self.root.glob("venv/lib/python*/site-packages/sglang/srt/models")
        return sorted(path.stem for path in models.glob("*.py") if path.stem not in needed)


def recipe_digest() -> str:
    digest = hashlib.sha256()
    for path in (REQUIREMENTS, MAKE_MODEL, *sorted(STAND_INS.glob("*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def find_python() -> str:
    found = shutil.which(PYTHON)
    if found is None:
        raise UnavailableError(f"{PYTHON} is not on PATH and the CPU build of torch exists for it alone")
    return found


def pip_install(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode == 0:
        return
    last_lines = "\n".join(done.stdout.strip().splitlines()[-5:])
    if any(refusal in done.stdout.lower() for refusal in REFUSALS):
        raise UnavailableError(last_lines)
    sys.exit(f"cannot install SGLang {VERSION}: pip ended with status {done.returncode}:\n{last_lines}")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def told(what: str) -> Iterator[None]:
    begin = time.monotonic()
    print(f"SGLang {VERSION} on the CPU: {what} ...", file=sys.stderr, flush=True)
    yield
    print(f"SGLang {VERSION} on the CPU: {what} in {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
