"""A headless Chromium driven through a pipe: load a page, ask it, emulate a phone or a theme."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

PATIENCE = 120  # seconds; a busy machine was seen to take over 30 to start it
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One process and one tab; `console` holds what pages logged or broke since they were opened."""

    def __init__(self, program: str, profile: Path):
        read, self._out = os.pipe()
        self._in, write = os.pipe()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                   "--disable-background-networking", "--disable-component-update", "--disable-sync",
                   "--disable-quic", "--remote-debugging-pipe",
                   f"--user-data-dir={profile}", "about:blank"]  # fmt: skip
        self._process = subprocess.Popen(
            ["sh", "-c", 'exec "$0" "$@" 3<&0 4>&1 0</dev/null 1>&2', program, *options],
            stdin=read, stdout=write, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(read)
        os.close(write)
        self._buffer, self._number, self._session = b"", 0, None
        self._loaded = False
        self.console: list[str] = []
        try:
            self._attach()
        except BaseException:  # one that does not come up must not stay behind
            self._end()
            raise

    def _attach(self) -> None:
        target = next(each for each in self.ask("Target.getTargets")["targetInfos"] if each["type"] == "page")
        attached = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        # A page without the focus may not write to the clipboard (Chromium 156).
        self.ask("Emulation.setFocusEmulationEnabled", enabled=True)

    def close(self) -> None:
        self._session = None
        with contextlib.suppress(Exception):  # it is ended in any case
            self.ask("Browser.close")
            self._process.wait(10)
        self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait(10)
        for end in (self._in, self._out):
            os.close(end)

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of one command of the protocol; RuntimeError where the browser refuses or is silent."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def open(self, address: str) -> None:
        """Load a page from its start and wait for it."""
        self.ask("Page.navigate", url="about:blank")
        self.console.clear()
        self._loaded = False
        self.ask("Page.navigate", url=address)
        while not self._loaded or not self._arrived(address):
            self._next()

    def _arrived(self, address: str) -> bool:
        state, here = self.run("[document.readyState, location.href]")
        return state == "complete" and here.partition("#")[0] == address.partition("#")[0]

    def run(self, script: str) -> Any:
        """The value of an expression in the page, run as if a person had clicked; a promise is awaited."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True,
                          userGesture=True)  # fmt: skip
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def size(self, width: int, height: int = 900) -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                 mobile=width < 600)  # fmt: skip

    def scheme(self, name: str) -> None:
        """Prefer "light" or "dark"."""
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def picture(self, whole: bool = False) -> bytes:
        """A PNG of the window, or of the whole page."""
        taken = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(taken["data"])

    def _next(self) -> dict[str, Any]:
        """The next message; events are noted on the way."""
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise RuntimeError("the browser says nothing")
            chunk = os.read(self._in, 1 << 20)
            if not chunk:
                raise RuntimeError("the browser has ended")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, event: str | None, parameters: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Runtime.consoleAPICalled":
            self.console.append(" ".join(str(each.get("value")) for each in parameters["args"]))
        elif event == "Runtime.exceptionThrown":
            self.console.append(str(parameters["exceptionDetails"]))
        elif event == "Log.entryAdded":
            self.console.append(parameters["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            address = parameters["request"]["url"]
            if not address.startswith(("file:", "about:", "data:")):
                self.console.append(f"request of {address}")
