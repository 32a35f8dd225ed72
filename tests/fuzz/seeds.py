"""Where the fuzzer begins: one good example or more of everything that a target reads, made by the product itself."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from xmlrpc.client import dumps

import msgspec

from supervisor import events as e
from supervisor.devices import DeviceRecord, QuarantineRecord
from supervisor.shell.trees import TreeRecord, boot_id
from tests.core.recording import stalled_night
from tests.core.world import World

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
_LOGS = _ROOT / "tests" / "data"
_LOG_BYTES = 2000
_ROWS = 40
BETWEEN = b"\n---\n"  # the files of a model
FOUND = _HERE / "found"  # inputs that once broke something, by target

_SUPERVISORD = b"""d[supervisord]
logfile=/var/log/s.log
[program:kimi]
command=/opt/sglang/bin/python -m sglang.launch_server --model-path /m/kimi --port 30000
environment=CUDA_VISIBLE_DEVICES="0,1",HF_HOME="/models"
autorestart=unexpected
stopsignal=INT
"""
_UNIT = b"""u[Service]
ExecStart=/bin/sh -c 'exec python3 -m sglang.launch_server --model-path /m --tp 2'
Environment=CUDA_VISIBLE_DEVICES=0,1
Restart=on-failure
RestartSec=5s
"""
_BODY = b"<methodCall><methodName>supervisor.getState</methodName><params></params></methodCall>"
_REQUESTS = (
    b"GET /v1/servers HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /v1/servers/kimi?now=1 HTTP/1.1\r\nHost: a\r\nAccept: application/json\r\n\r\n",
    b'POST /v1/servers/draft/start HTTP/1.1\r\nHost: a\r\nContent-Length: 15\r\n\r\n{"force": true}',
    b"GET /v1/events?since=3&server=kimi&limit=5 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /v1/gpus HTTP/1.0\r\n\r\n",
)


def posted(body: bytes) -> bytes:
    """An XML-RPC call as a whole request."""
    return (
        b"POST /RPC2 HTTP/1.1\r\nHost: a\r\nContent-Type: text/xml\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        % len(body)
        + body
    )


def seeds(target: str) -> Iterator[bytes]:
    """What the fuzzer of this target begins with: good examples, and what has been found before."""
    yield from _GOOD[target]()
    for path in sorted((FOUND / target).glob("*")):
        yield path.read_bytes()


def _logs() -> Iterator[bytes]:
    for path in sorted(_LOGS.rglob("*.log*"))[::9]:
        raw = path.read_bytes()
        text = gzip.decompress(raw) if path.suffix == ".gz" else raw
        yield b"\x00\x40" + text[:_LOG_BYTES]
        yield b"\x01\x07" + text[-_LOG_BYTES // 4 :]


def _configs() -> Iterator[bytes]:
    yield (_ROOT / "etc" / "supervisor.toml").read_bytes()
    yield b'[server.a]\ncommand = ["x"]\nstop = {grace = "1m"}\nrestart = {budget = 3}\ngpus = {count = 2}\n'


def _converted() -> Iterator[bytes]:
    yield from (_SUPERVISORD, _UNIT)


def _models() -> Iterator[bytes]:
    text = {"max_position_embeddings": 4096, "num_attention_heads": 6, "rope_scaling": {"factor": 4.0}}
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config = {"architectures": ["LlamaForCausalLM"], "text_config": text, "quantization_config": quantization}
    index = {"metadata": {"total_size": 16}, "weight_map": {"a": "model.safetensors", "b": "b.safetensors"}}
    header = {"__metadata__": {}, "w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    yield BETWEEN.join(map(msgspec.json.encode, (config, index, header)))
    yield BETWEEN.join((msgspec.json.encode(config), b"{}", b"\x02\0\0\0\0\0\0\0{}"))


def _calls() -> Iterator[bytes]:
    yield dumps(("kimi", 1, True, 2.5, ["a", {"b": "c"}], b"bytes"), "supervisor.startProcess").encode()
    yield b"\x00\x0a\x03" + bytes(range(0, 256, 5))


def _requests() -> Iterator[bytes]:
    yield from (*_REQUESTS, posted(_BODY))
    yield from (b"\x01" + bytes((method, 2, 235, 0, 10, 5, 0, 9, 1)) for method in range(0, 40, 3))


def _records() -> Iterator[bytes]:
    world = World()
    moments = [world.start, lambda: world.until(1), lambda: world.tell(e.Exited(1, 1)), lambda: world.until(3)]
    moments += [lambda: world.until(20), world.stop, lambda: world.until(21)]
    for moment in moments:
        moment()
        for lives in (b"\x00", b"\x01"):
            yield lives + msgspec.json.encode(world.server.save("boot"))


def _notes() -> Iterator[bytes]:
    yield msgspec.json.encode(TreeRecord("kimi", boot_id(), "kimi:1:x", e.Spawned(1, 9, 3, "/cg", "/log"), (0, 1)))
    quarantine = QuarantineRecord(0, "GPU-1", "xid", "Xid 79", 1.0)
    yield msgspec.json.encode((DeviceRecord(0, "GPU-1", 1, 0, quarantine, ("ecc",)), DeviceRecord(1, "")))


def _rows() -> Iterator[bytes]:
    rows = [b"1 " + e.encode(step.event) for step in stalled_night().steps]
    yield b"\n".join(rows[:_ROWS])
    yield b"\n".join(rows[-_ROWS:])


_GOOD = {
    "log": _logs,
    "config": _configs,
    "converter": _converted,
    "model": _models,
    "xmlrpc": _calls,
    "http": _requests,
    "saved": _records,
    "notes": _notes,
    "journal": _rows,
}
