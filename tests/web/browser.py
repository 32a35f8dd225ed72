"""A headless Chromium, spoken to over the pipe of its DevTools protocol: no driver, no port, no package."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
LIMIT_S = 30.0
_OPTIONS = (
    "--headless",
    "--no-sandbox",  # tests run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class Browser:
    """One tab. Every wait is bounded."""

    def __init__(self, process: subprocess.Popen[bytes], reader: int, writer: int) -> None:
        self._process = process
        self._reader, self._writer = reader, writer
        self._numbers = itertools.count(1)
        self._rest = b""
        self._session = ""
        self.events: list[dict[str, Any]] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    # --- what a test asks ----------------------------------------------------------------------------------------

    def size(self, width: int, height: int = 900) -> None:
        phone = width < 500
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def prefer(self, **features: str) -> None:
        """CSS media features: `prefers_color_scheme="dark"`."""
        asked = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self._call("Emulation.setEmulatedMedia", features=asked)

    def scripts(self, on: bool) -> None:
        self._call("Emulation.setScriptExecutionDisabled", value=not on)

    def open(self, url: str) -> None:
        """Returns when the page has loaded."""
        self.events.clear()
        self._call("Page.navigate", url=url)
        self.wait(lambda: any(event["method"] == "Page.loadEventFired" for event in self.events), "load")

    def forget(self) -> None:
        """Empties the cache."""
        self._call("Network.clearBrowserCache")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str) -> Any:
        """Wait until an expression is true."""
        return self.wait(lambda: self.run(script), script)

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        end = time.monotonic() + LIMIT_S
        while not (found := condition()):
            assert time.monotonic() < end, f"not within {LIMIT_S} s: {what}"
            self._read(0.05)
        return found

    def key(self, name: str) -> None:
        code = {"Tab": 9, "Enter": 13}[name]
        text = {"text": "\r"} if name == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code, **text)

    def picture(self, path: Path) -> None:
        """The whole page as PNG."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self._call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[str]:
        """Errors of the console: scripts that failed, and what the content security policy refused."""
        found = []
        for event in self.events:
            match event:
                case {"method": "Log.entryAdded", "params": {"entry": {"level": "error", "text": text}}}:
                    found.append(text)
                case {"method": "Runtime.exceptionThrown", "params": details}:
                    found.append(json.dumps(details))
                case _:
                    pass
        return found

    def accessible(self) -> list[dict[str, Any]]:
        """What a screen reader is told: the nodes of the accessibility tree that it does not skip."""
        nodes = self._call("Accessibility.getFullAXTree")["nodes"]
        return [node for node in nodes if not node.get("ignored")]

    def requested(self) -> list[str]:
        """The addresses that were asked for."""
        sent = (event for event in self.events if event["method"] == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in sent]

    # --- the pipe ------------------------------------------------------------------------------------------------

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            for answer in self._read(0.5):
                if answer.get("id") == number:
                    assert "error" not in answer, f"{method}: {answer['error']}"
                    result: dict[str, Any] = answer["result"]
                    return result
        raise TimeoutError(f"{method} was not answered within {LIMIT_S} s")

    def _read(self, limit_s: float) -> list[dict[str, Any]]:
        if not select.select([self._reader], [], [], limit_s)[0]:
            return []
        data = os.read(self._reader, 2**20)
        assert data, "the browser has gone"
        *whole, self._rest = (self._rest + data).split(b"\0")
        messages = [json.loads(one) for one in whole]
        self.events += [message for message in messages if "method" in message]
        return messages


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A fresh browser with a profile of its own; both are gone at the end."""
    assert PROGRAM is not None
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    with tempfile.TemporaryDirectory(prefix="sb-", ignore_cleanup_errors=True) as profile:
        # The protocol lives on descriptors 3 and 4; dash cannot redirect from ones above 9.
        shell = ["bash", "-c", f'exec "$0" "$@" 3<&{to_read} 4>&{from_write}', PROGRAM]
        command = [*shell, *_OPTIONS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(
            command,
            pass_fds=(to_read, from_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_read)
        os.close(from_write)
        try:
            yield Browser(process, from_read, to_write)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
            os.close(to_write)
            os.close(from_read)
