"""A headless Chromium driven over its debugging pipe, with nothing but the standard library."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any


def find_chromium() -> str | None:
    """Path of an installed Chromium or Chrome."""
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        if path := shutil.which(name):
            return path
    return None


class Chromium:
    """One browser with one page; a context manager."""

    def __init__(self, binary: str, width: int, height: int) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="autorep-chromium-")
        read_end, self._write = os.pipe()
        self._read, write_end = os.pipe()
        flags = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--ignore-certificate-errors", "--remote-debugging-pipe", f"--window-size={width},{height}",
            f"--user-data-dir={self._profile.name}", "about:blank",
        ]  # fmt: skip

        def place_pipes() -> None:  # Chromium reads commands from descriptor 3 and answers on 4
            high = os.dup(read_end), os.dup(write_end)
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self._process = subprocess.Popen(
            [binary, *flags],
            preexec_fn=place_pipes,
            close_fds=False,  # everything else is closed on exec anyway
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_end)
        os.close(write_end)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self.problems: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self._profile.name, ignore_errors=True)
        self._profile._finalizer.detach()  # type: ignore[attr-defined]  # removed above, whatever was still open

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command to the page."""
        return self._call(method, self._session, **parameters)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 90.0) -> Any:
        """Wait until an expression is true."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if value := self.evaluate(expression):
                return value
            time.sleep(0.05)
        raise AssertionError(f"{expression} did not become true; the page reports {self.problems}")

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def drag(self, points: list[tuple[float, float]]) -> None:
        """Press the mouse at the first point, move over all, release."""
        for kind, (x, y) in zip(
            ["mousePressed", *["mouseMoved"] * (len(points) - 2), "mouseReleased"], points, strict=True
        ):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def click(self, selector: str) -> None:
        """A real mouse click in the middle of an element."""
        box = f"document.querySelector('{selector}').getBoundingClientRect()"
        self.evaluate(f"document.querySelector('{selector}').scrollIntoView({{block: 'center'}})")
        x, y = self.evaluate(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({box})")
        self.drag([(x, y), (x, y)])

    def screenshot(self, path: Path) -> None:
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def _call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 60
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            if answer.get("method") == "Runtime.exceptionThrown":
                self.problems.append(str(answer["params"]["exceptionDetails"]))
            if answer.get("method") == "Log.entryAdded" and answer["params"]["entry"]["level"] == "error":
                self.problems.append(str(answer["params"]["entry"]["text"]))

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self._read, 1 << 20)
            assert data, "the browser stopped"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)
