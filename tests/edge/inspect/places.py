"""Makes models and installations on disk, for the tests of what is read from them."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from supervisor.preflight import Request
from supervisor.preflight.rules import MODEL

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": 4096}
TOKENIZERS = (r"tokenizer\.json", r"tokenization_\w+\.py")
OPTIONS = "\n".join(f'parser.add_argument("--option-{number}", type=int)' for number in range(60))


def shard(path: Path, *, dtype: str = "BF16", values: int = 8, cut: int = 0) -> None:
    """A file of weights with one tensor; `cut` bytes are missing at its end."""
    header = json.dumps(
        {"__metadata__": {}, "w": {"dtype": dtype, "shape": [values], "data_offsets": [0, values]}}
    ).encode()
    data = struct.pack("<Q", len(header)) + header + bytes(values)
    path.write_bytes(data[: len(data) - cut])


def model(folder: Path, *names: str, config: object = CONFIG) -> Path:
    """A complete model of these shards, with their index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    for name in names:
        shard(folder / name)
    if len(names) > 1:
        index = {
            "metadata": {"total_size": 8 * len(names)},
            "weight_map": {f"w{at}": name for at, name in enumerate(names)},
        }
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def install(venv: Path, version: str = "0.5.9", source: str = OPTIONS) -> Path:
    """A virtual environment that holds the engine's files; its interpreter, which is none, comes back."""
    packages = venv / "lib" / "python3.11" / "site-packages"
    info = packages / f"engine-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: engine\nRequires-Dist: kernel-pack==1.2.3\nRequires-Dist: torch>=2\n")
    (packages / "kernel_pack-1.2.2.dist-info").mkdir()
    (packages / "engine" / "models").mkdir(parents=True)
    (packages / "engine" / "__init__.py").write_text("raise SystemExit('started')\n")
    (packages / "engine" / "args.py").write_text(source)
    (packages / "engine" / "models" / "llama.py").write_text(
        "class LlamaForCausalLM(Base):\n    def hand_out(self): ...\n"
    )
    (venv / "bin").mkdir()
    (venv / "pyvenv.cfg").write_text("")
    python = venv / "bin" / "python"
    python.write_text("#!/bin/sh\nexit 99\n")
    python.chmod(0o755)
    return python


def request(path: str = "", program: str = "/bin/sh", **more: object) -> Request:
    usual: dict[str, object] = {
        "models": {MODEL: path} if path else {},
        "tokenizer_names": TOKENIZERS,
        "package": "engine",
        "distributions": ("kernel-pack",),
        "flag_sources": ("args.py",),
        "class_sources": ("models/*.py",),
        "class_words": ("hand_out", "take_back"),
        "starter": program,
        "by_module": True,
    }
    return Request(program, **(usual | more))  # type: ignore[arg-type]
