"""Take the pictures of pages that the docs show: `python -m docs.screenshots`. It runs a sweep first, in about a minute.

The pictures are of the explorer, the report and the home page of `depthrate serve`, in a real browser.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.browser import Browser, browser

IMAGES = Path(__file__).parent / "images"
SWEEP: dict[str, Any] = {
    "name": "depth-width",
    "task": "collapse",
    "params": {"arch": "rn1", "samples_per_class": 20, "steps": 1500, "lr": 0.1},
    "grid": {"depth": [2, 3, 5, 8, 13], "width": [16, 32, 64], "weight_decay": [0.001, 0.003, 0.01]},
    "seeds": 3,
    "fit": [{"metric": "nc1", "by": ["width", "weight_decay"]}],
}
WIDE, PHONE = (1280, 860), (390, 800)
COLOURS = 128
"""Colours of a picture, which halve its size."""


def take(folder: Path, sweep: Mapping[str, Any], images: Path) -> dict[str, list[str]]:
    """Run a sweep in a folder and take the pictures of its pages.

    Returns:
        Picture -> the errors of its page's console.
    """
    path, store, name = folder / "sweep.yaml", str(folder / "results"), str(sweep["name"])
    path.write_text(yaml.safe_dump(dict(sweep)))
    _depthrate("run", str(path), "--store", store)
    _depthrate("report", name, "--store", store, "-o", str(folder / "report.html"))
    _depthrate("report", name, "--store", store, "--interactive", "-o", str(folder / "explorer.html"))
    _depthrate("tag", name, "--add", "figure-3", "--store", store)
    errors = {}
    with browser() as window, _served(store) as address:
        pages = {
            "explorer": ((folder / "explorer.html").as_uri(), WIDE),
            "explorer-phone": ((folder / "explorer.html").as_uri(), PHONE),
            "report": ((folder / "report.html").as_uri(), WIDE),
            "report-phone": ((folder / "report.html").as_uri(), PHONE),
            "home": (address, (WIDE[0], 300)),
        }
        for picture, (page, size) in pages.items():
            for scheme in ("light", "dark"):
                file = images / f"{picture}{'-dark' if scheme == 'dark' else ''}.png"
                file.write_bytes(_picture(window, page, size, scheme))
                errors[file.name] = window.messages()
    return errors


def _picture(window: Browser, page: str, size: tuple[int, int], scheme: str) -> bytes:
    from PIL import Image

    window.visit(page, *size, is_dark=scheme == "dark")
    time.sleep(1.5)  # until data, fonts and fits are there
    image = Image.open(io.BytesIO(window.picture())).convert("RGB").quantize(COLOURS)
    sink = io.BytesIO()
    image.save(sink, "png", optimize=True)
    return sink.getvalue()


def _depthrate(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "depthrate", *words], check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def _served(store: str) -> Iterator[str]:
    """Serve a store, and yield the address."""
    command = [sys.executable, "-m", "depthrate", "serve", "--store", store, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().partition(" at ")[2].partition(" ")[0]
        finally:
            process.terminate()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        print({name: messages for name, messages in take(Path(scratch), SWEEP, IMAGES).items() if messages})
