"""What the OpenAPI document promises is kept for input that a machine makes up."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from bench.peers import SCHEMATHESIS, place
from supervisor.api.app import OPERATIONS
from supervisor.api.schema import document
from supervisor.snapshot import SpanView, StartupView
from tests.api.fake import FakeControl, served, snapshot
from tests.api.test_gpus import LEASED, OUT
from tests.api.test_story import STALL

PROGRAM = place(SCHEMATHESIS) / "schemathesis"
LIMIT_S = 240
EXAMPLES = 12
SEED = 7
LEFT_OUT = ("/live", "/v1/servers/{name}/wait", "/readyz", "/startupz")  # endless, or 503 for a good reason
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
)


def bounded() -> dict[str, Any]:
    """The document without what never ends, and with names of which some exist."""
    made: dict[str, Any] = json.loads(document(OPERATIONS))
    for path in LEFT_OUT:
        made["paths"].pop(path, None)
    for item in made["paths"].values():
        for operation in item.values():
            kept = [one for one in operation["parameters"] if one["name"] != "follow"]
            operation["parameters"] = [_tamed(one) for one in kept]
    return made


def _tamed(parameter: dict[str, Any]) -> dict[str, Any]:
    match parameter["name"], parameter["in"]:
        case "name", "path":
            return {**parameter, "schema": {"enum": ["kimi", "draft", "none"]}}
        case "index", "path":
            return {**parameter, "schema": {"enum": ["0", "1", "9", "x"]}}
        case _:
            return parameter


@asynccontextmanager
async def forwarded(path: str) -> AsyncIterator[int]:
    """A loopback port that leads to the Unix socket, which schemathesis cannot speak."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_there = await asyncio.open_unix_connection(path)
        await asyncio.gather(pump(reader, to_there), pump(there, writer))

    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def host(tmp_path: Path) -> FakeControl:
    """Servers, GPUs, logs and a configuration file, as full as they can be."""
    log = tmp_path / "kimi.log"
    log.write_text("line\n" * 100)
    start = StartupView("weights", "weights", 103.0, timeline=(SpanView("TP0", "launch", 100.0, 103.0),))
    kimi = snapshot("kimi", "running", attempt=4, log_path=str(log), incidents=(STALL,), start=start)
    control = FakeControl(kimi, snapshot("draft"))
    control.put_gpus(LEASED, OUT)
    control.state_dir, control.log_path = str(tmp_path), str(log)
    file = tmp_path / "c.toml"
    places = f'[daemon]\nstate_dir = "{tmp_path}/st"\nlog_dir = "{tmp_path}/lg"\n'
    file.write_text(
        f'{places}[server.kimi]\ncommand = ["engine"]\n[server.third]\nport = 30002\ncommand = ["engine"]\n'
    )
    control.config_path = str(file)
    return control


@pytest.mark.slow
@pytest.mark.skipif(not PROGRAM.exists(), reason="schemathesis is not installed (python -m bench.peers installs it)")
async def test_the_document_is_kept(tmp_path: Path) -> None:
    described = tmp_path / "openapi.json"
    described.write_text(json.dumps(bounded()))
    async with served(host(tmp_path), tmp_path) as path, forwarded(path) as port:
        command = [str(PROGRAM), "run", str(described), "--url", f"http://127.0.0.1:{port}", "--seed", str(SEED)]
        command += ["--max-examples", str(EXAMPLES), "--phases", "coverage,fuzzing", "--checks", ",".join(CHECKS)]
        command += ["--request-timeout", "20", "--generation-database", "none", "--continue-on-failure"]
        ran = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path
        )
    assert ran.returncode == 0, ran.stdout[-12000:] + ran.stderr[-2000:]
