"""A browser as narrow or wide as one likes: Chromium through its driver, spoken to in the WebDriver protocol."""

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.here import free_port

FAULTS = """
const found = [], boxes = (figure, what) => [...figure.querySelectorAll(what)]
  .filter((text) => text.textContent.trim() && text.getBoundingClientRect().width)
  .map((text) => [text.textContent, text.getBoundingClientRect()]);
for (const figure of document.querySelectorAll('.facets > svg')) {
  const whole = figure.getBoundingClientRect(), texts = boxes(figure, 'text');
  texts.forEach(([text, box], i) => {
    if (box.left < whole.left - 1 || box.right > whole.right + 1 || box.bottom > whole.bottom + 1) found.push(`cut: ${text}`);
    for (const [other, its] of texts.slice(i + 1)) {
      const shared = (start, end) => Math.min(box[end], its[end]) - Math.max(box[start], its[start]);
      if (shared('left', 'right') > 2 && shared('top', 'bottom') > 3) found.push(`${text} over ${other}`);
    }
  });
}
return found;
"""


class Browser:
    """One window; `run` is JavaScript in its page."""

    page: Path
    """What a fixture has put there for it."""

    def __init__(self, address: str, chromium: str):
        self._address = address
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        options = {"goog:chromeOptions": {"binary": chromium, "args": arguments}}
        options["goog:loggingPrefs"] = {"browser": "ALL"}
        session = self._post("/session", {"capabilities": {"alwaysMatch": options}})["sessionId"]
        self._address = f"{address}/session/{session}"

    def open(self, page: Path, width: int, *, is_dark: bool = False) -> None:
        """Load a page as wide as that, and wait until it is there."""
        self.visit(page.as_uri(), width, is_dark=is_dark)

    def visit(self, address: str, width: int, height: int = 900, *, is_dark: bool = False) -> None:
        """Load an address in a window of this size, of a phone if it is narrow."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._devtools("Emulation.setDeviceMetricsOverride", size)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}]
        self._devtools("Emulation.setEmulatedMedia", {"features": scheme})
        self._post("/url", {"url": address})

    def picture(self) -> bytes:
        """Return what the window shows, as PNG."""
        with urllib.request.urlopen(f"{self._address}/screenshot", timeout=120) as answer:
            return base64.b64decode(json.load(answer)["value"])

    def run(self, script: str) -> Any:
        """Return what a script returns."""
        return self._post("/execute/sync", {"script": script, "args": []})

    def messages(self) -> list[str]:
        """Return the messages of the console since the last call."""
        return [entry["message"] for entry in self._post("/se/log", {"type": "browser"})]

    def press(self, keys: str) -> None:
        """Press keys one after the other, wherever the focus is. Special keys are those of WebDriver (`\\ue004` is Tab)."""
        presses = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._post("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": presses}]})

    def hold(self, key: str) -> None:
        """Press a key and keep it down."""
        self._key("keyDown", key)

    def release(self, key: str) -> None:
        """Release a key."""
        self._key("keyUp", key)

    def _key(self, kind: str, key: str) -> None:
        actions = [{"type": kind, "value": key}]
        self._post("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Drag the mouse from one point of the window to another."""
        (x0, y0), (x1, y1) = start, end
        moves: list[dict[str, Any]] = [{"type": "pointerMove", "duration": 0, "x": round(x0), "y": round(y0)}]
        moves += [{"type": "pointerDown", "button": 0}]
        moves += [{"type": "pointerMove", "duration": 20, "x": round(x1), "y": round(y1)}]
        moves += [{"type": "pointerUp", "button": 0}]
        pointer = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": moves}
        self._post("/actions", {"actions": [pointer]})

    def wait(self, condition: str) -> None:
        """Wait until an expression of JavaScript is true."""
        for _ in range(200):
            if self.run(f"return Boolean({condition})"):
                return
            time.sleep(0.05)
        raise AssertionError(f"never true: {condition}")

    def faults(self) -> list[str]:
        """Return what a reader stumbles over in the page's figures: texts cut or over each other."""
        found = self.run(FAULTS)
        assert isinstance(found, list)
        return found

    def close(self) -> None:
        """Close the window."""
        urllib.request.urlopen(urllib.request.Request(self._address, method="DELETE"), timeout=60).close()

    def _devtools(self, command: str, parameters: dict[str, Any]) -> None:
        self._post("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            self._address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["value"]


def chromium_path() -> str:
    """Return Chromium's path, or skip the test."""
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        if path := shutil.which(name):
            return path
    pytest.skip("no chromium executable found on PATH")


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser, and end it; skip the test where there is none."""
    chromium, port = chromium_path(), free_port()
    if (driver := shutil.which("chromedriver")) is None:
        pytest.skip("no chromedriver executable found on PATH")
    process = subprocess.Popen([driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(150):
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            time.sleep(0.2)
        window = Browser(f"http://127.0.0.1:{port}", chromium)
        yield window
        window.close()
    finally:
        process.terminate()
        process.wait(60)
