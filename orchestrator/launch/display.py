"""Show a launch's progress: a live display in a terminal, a bar in a notebook, occasional lines in a log."""

from __future__ import annotations

import html
import importlib
import math
import sys
import time
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as ProgressBars

from depthrate.orchestrator.attempts.liveness import STALLED_AFTER_S, stalled_s
from depthrate.orchestrator.attempts.record import stalled_text
from depthrate.orchestrator.console.tables import counted, duration, listed
from depthrate.orchestrator.launch.launch_plan import Plan
from depthrate.orchestrator.launch.outcome import Progress as LaunchProgress
from depthrate.sweeps.packing import Pack, estimated_wall_s
from depthrate.sweeps.trial import varying_parameters

LOG_INTERVAL_S = 30.0
MAX_REASONS_SHOWN = 3
"""Maximum number of reasons why submitted packs wait."""
MAX_LAUNCHES_SHOWN = 3
"""Maximum number of peer launches listed."""
RATE_WINDOW_S = 180.0
"""Seconds over which the rate is measured, or more until there is progress."""
_Sizes = tuple[float, float]


class LaunchWatcher:
    """Shows trials done, trials per second, the time left, and each running pack's step."""

    def __init__(self, plan: Plan, console: Console):
        self._plan, self._console = plan, console
        self.total = len(plan.checked.trials)
        """Number of trials, including a search's proposals."""
        self._done_before = len(plan.done)
        self._totals = self._sizes(plan.packs)
        self._past = deque([(time.monotonic(), (0.0, 0.0))])
        """(Time, completed estimated seconds and trials) of the last minutes, oldest first."""
        self._packs_added = 0
        self._varying = varying_parameters(plan.checked.trials)
        self._started = time.monotonic()
        self._last_line = self._started
        self._last_done = self._done_before
        self._is_blocked = False
        self._rows: dict[str, TaskID] = {}
        self._shown_ids: set[str] = set()
        """Stalled attempts of peer launches that have been reported."""
        self._display: ProgressBars | None = None

    def __enter__(self) -> LaunchWatcher:
        if self._console.is_terminal:
            self._display = ProgressBars(
                TextColumn("{task.description}"),
                BarColumn(bar_width=30),
                TextColumn("{task.fields[text]}"),
                console=self._console,
                transient=True,
            )
            self._rows[""] = self._display.add_task("trials", total=self.total, text="")
            self._display.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._display is not None:
            self._display.stop()

    def __call__(self, progress: LaunchProgress) -> None:
        """Show the launch's progress."""
        self.update(progress)
        if self._display is not None:
            self._draw(self._display, progress)
            return
        now, is_newly_blocked = time.monotonic(), progress.num_blocked > 0 and not self._is_blocked
        self._is_blocked = progress.num_blocked > 0
        if progress.trials_done > self._last_done or is_newly_blocked or now - self._last_line >= LOG_INTERVAL_S:
            self._last_done, self._last_line = progress.trials_done, now
            self._console.print(self.summary(progress))

    def print_line(self, line: str) -> None:
        """Print a line above the progress display."""
        self._console.print(line)

    def update(self, progress: LaunchProgress) -> None:
        """Count the packs that a search added, and print each stalled attempt that the launch waits for once."""
        for pack in progress.packs_added[self._packs_added :]:
            self.total += len(pack.trials)
            self._totals = self._sizes([pack], self._totals)
        self._packs_added = len(progress.packs_added)
        for record in progress.blocking_attempts:
            if stalled_s(record) > STALLED_AFTER_S and record["attempt_id"] not in self._shown_ids:
                self._shown_ids.add(record["attempt_id"])
                self.print_line(f"waiting for {stalled_text(record)}")

    def _draw(self, display: ProgressBars, progress: LaunchProgress) -> None:
        text = f"{progress.trials_done}/{self.total}{self._pace(progress)}"
        display.update(self._rows[""], completed=progress.trials_done, total=self.total, text=text)
        running = {pack.pack_id: (pack, state) for pack, state in progress.packs_running}
        for pack_id in [key for key in self._rows if key and key not in running]:
            display.remove_task(self._rows.pop(pack_id))
        for pack_id, (pack, state) in running.items():
            if pack_id not in self._rows:
                self._rows[pack_id] = display.add_task(f"  {self.describe(pack)}", total=None, text="starting")
            total = state.get("num_steps")
            if total:
                step = state.get("step") or 0
                display.update(self._rows[pack_id], completed=step, total=total, text=f"step {step}/{total}")

    def describe(self, pack: Pack) -> str:
        """Name a pack by the varying parameters that its trials share."""
        params = [trial.params for trial in pack.trials]
        shared = [name for name in self._varying if all(p[name] == params[0][name] for p in params)]
        text = " ".join(f"{name}={params[0][name]}" for name in shared)
        return f"{text} x{len(params)}".strip()

    def summary(self, progress: LaunchProgress) -> str:
        """Return the launch's progress in one line."""
        return f"{progress.trials_done}/{counted(self.total, 'trial')}{self._pace(progress)}"

    def _pace(self, progress: LaunchProgress) -> str:
        elapsed = time.monotonic() - self._started
        trials = progress.trials_done - self._done_before
        left = self._seconds_left(progress)
        waiting = len(progress.packs_submitted)
        parts = [f", {trials / elapsed:.2g} trials/s" if trials and elapsed > 0 else ""]
        parts.append(f", {duration(left)} left" if left is not None else "")
        parts.append(
            f", {counted(len(progress.packs_running), 'pack')} running, {waiting} submitted" if waiting else ""
        )
        if reasons := [f"{reason.partition(',')[0]} {n}" for reason, n in progress.waiting_reasons.items()]:
            num_jobs = counted(sum(progress.waiting_reasons.values()), "job")
            parts.append(f", {num_jobs} waiting ({', '.join(reasons[:MAX_REASONS_SHOWN])})")
        if progress.num_blocked:
            peers = listed(progress.blocking_launches, MAX_LAUNCHES_SHOWN) or "another launch"
            parts.append(f", {counted(progress.num_blocked, 'pack')} waiting for {peers}")
        return "".join(parts)

    def _sizes(self, packs: Iterable[Pack], start: _Sizes = (0.0, 0.0), share: float = 1.0) -> _Sizes:
        """Add a share of some packs to (estimated seconds, trials)."""
        for pack in packs:
            start = (
                start[0] + share * estimated_wall_s(pack, self._plan.checked.task),
                start[1] + share * len(pack.trials),
            )
        return start

    def _seconds_left(self, progress: LaunchProgress) -> float | None:
        """Return the geometric mean of the times that the remaining estimated seconds and trials take at their latest rates.

        Estimates may be wrong for some shapes, and trials differ in size. A running pack counts by its steps or, if its trials
        run in turn, by the steps of the current trial.
        """
        left = self._sizes([*progress.packs_queued, *progress.packs_submitted])
        for pack, state in progress.packs_running:
            share = (state.get("step") or 0) / state["num_steps"] if state.get("num_steps") else 0.0
            if not self._plan.checked.task.fused:
                share = min(1.0, ((state.get("trials_done") or 0) + share) / len(pack.trials))
            left = self._sizes([pack], left, 1 - share)
        now, done = time.monotonic(), (self._totals[0] - left[0], self._totals[1] - left[1])
        self._past.append((now, done))
        while self._past[1][0] < now - RATE_WINDOW_S and self._past[1][1][1] < done[1]:
            self._past.popleft()
        then, before = self._past[0]
        work, trials = done[0] - before[0], done[1] - before[1]
        if min(work, trials, left[0]) <= 0 or done[0] <= 0.01 * self._totals[0]:
            return None
        return (now - then) * math.sqrt(left[0] / work * left[1] / trials)


BAR_REFRESH_S = 0.5
"""Seconds between two updates of the bar."""
MAX_PACKS_SHOWN = 8
"""Maximum number of running packs with a line in the display."""


def is_notebook() -> bool:
    """Return whether this process is a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def make_watcher(plan: Plan, console: Console) -> LaunchWatcher:
    """Return the launch display for this process: a bar in a notebook, and otherwise terminal output."""
    shows_bar = is_notebook() and not console.quiet
    return NotebookWatcher(plan, console) if shows_bar else LaunchWatcher(plan, console)


class NotebookWatcher(LaunchWatcher):
    """Shows a bar, the time left and each running pack's step."""

    def __enter__(self) -> NotebookWatcher:
        ipython: Any = importlib.import_module("IPython.display")  # installed in every kernel, and needed only there
        self._html = ipython.HTML
        self._shown_at, self._last = 0.0, ""
        self._handle = ipython.display(ipython.HTML(bar_html(0, self.total, "starting", [])), display_id=True)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._last:
            self._handle.update(self._html(self._last))

    def __call__(self, progress: LaunchProgress) -> None:
        """Show the launch's progress."""
        self.update(progress)
        packs = []
        for pack, beat in progress.packs_running[:MAX_PACKS_SHOWN]:
            step, steps = beat.get("step") or 0, beat.get("num_steps")
            packs.append((self.describe(pack), f"step {step}/{steps}" if steps else "starting"))
        self._last = bar_html(progress.trials_done, self.total, self.summary(progress), packs)
        if time.monotonic() - self._shown_at >= BAR_REFRESH_S:
            self._shown_at = time.monotonic()
            self._handle.update(self._html(self._last))


def bar_html(done: int, total: int, summary: str, packs: list[tuple[str, str]]) -> str:
    """Render the bar as HTML: trials done of the total, a summary, and one line per running pack."""
    lines = "".join(f"<div style='opacity:.7'>{html.escape(name)}: {html.escape(step)}</div>" for name, step in packs)
    return (
        f"<div class='depthrate-bar'><progress value='{done}' max='{max(total, 1)}' style='width:20em'></progress> "
        f"{html.escape(summary)}{lines}</div>"
    )
