"""The live bar of a launch in a notebook: one piece of HTML below the cell, written anew while trials come in."""

from __future__ import annotations

import html
import importlib
import sys
import time
from types import TracebackType
from typing import Any

from rich.console import Console

from depthrate.orchestrator.plan import Plan
from depthrate.orchestrator.progress import Progress
from depthrate.orchestrator.watch import LaunchWatcher

EVERY_S = 0.5
"""Between two pictures of the bar."""
SHOWN = 8
"""Running packs that have a line."""


def is_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    shell = sys.modules.get("IPython")
    running = None if shell is None else shell.get_ipython()
    return running is not None and hasattr(running, "kernel")


def watcher_for(plan: Plan, console: Console) -> LaunchWatcher:
    """Return what shows a launch where this process shows things."""
    return NotebookWatcher(plan, console) if is_notebook() else LaunchWatcher(plan, console)


class NotebookWatcher(LaunchWatcher):
    """Shows a bar, the time left and each running pack's step."""

    def __enter__(self) -> NotebookWatcher:
        shown: Any = importlib.import_module("IPython.display")  # a kernel has it; nothing else needs it
        self._html = shown.HTML
        self._shown_at, self._last = 0.0, ""
        self._handle = shown.display(shown.HTML(bar_html(0, self.total, "starting", [])), display_id=True)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._last:
            self._handle.update(self._html(self._last))

    def __call__(self, progress: Progress) -> None:
        """Show how the launch is getting on."""
        self.take(progress)
        packs = []
        for pack, beat in progress.packs_running[:SHOWN]:
            step, steps = beat.get("step") or 0, beat.get("num_steps")
            packs.append((self.describe(pack), f"step {step}/{steps}" if steps else "starting"))
        self._last = bar_html(progress.trials_done, self.total, self.sentence(progress), packs)
        if time.monotonic() - self._shown_at >= EVERY_S:
            self._shown_at = time.monotonic()
            self._handle.update(self._html(self._last))


def bar_html(done: int, total: int, sentence: str, packs: list[tuple[str, str]]) -> str:
    """Return the bar as HTML: how many trials of all are done, a sentence, and a line a running pack."""
    lines = "".join(f"<div style='opacity:.7'>{html.escape(name)}: {html.escape(how)}</div>" for name, how in packs)
    return (
        f"<div class='depthrate-bar'><progress value='{done}' max='{max(total, 1)}' style='width:20em'></progress> "
        f"{html.escape(sentence)}{lines}</div>"
    )
