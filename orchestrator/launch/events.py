"""What happens in a launch, told as a person wants to read it: one line a kind of event, counted.

Whoever notices something calls `note`, or logs a warning; `EventLog` takes both while a launch runs, merges what is alike,
shows the lines, and keeps them in the store for who looks later.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from depthrate.orchestrator.attempts.liveness import heartbeat_s
from depthrate.orchestrator.attempts.record import new_attempt_id
from depthrate.orchestrator.attempts.retry import error_pattern
from depthrate.orchestrator.console.tables import counted, print_line
from depthrate.storage.attempts.clocks import is_time
from depthrate.storage.files.json_objects import read_object
from depthrate.storage.files.paths import launch_log_path, launch_path, launches_folder
from depthrate.storage.files.store import Store

if TYPE_CHECKING:
    from depthrate.orchestrator.launch.progress import Progress, Watcher

log = logging.getLogger("depthrate")
EVENT_REPEAT_INTERVAL_S = 30.0
"""Events of a kind that was told are counted for so long before they are told again."""
MAX_EVENTS = 200
MAX_NODES_SHOWN = 5
GIVEN_UP = "given up"
"""The outcome that is listed when a launch ends."""
_EVENT_ATTRIBUTE = "depthrate_notice"


@dataclass(frozen=True)
class LaunchEvent:
    """Something that happened, or that is so now."""

    kind: str
    """What the line says beside its number and its nodes."""
    noun: str = ""
    """Of what there are several: job, pack; empty where nothing is counted."""
    count: int = 1
    where: str = ""
    """The node."""
    is_state: bool = False
    """Whether it says how many there are now, not how many more."""
    outcome: str = ""
    """What was done about it: tried again, given up. Notices of a kind are one line, whatever their outcomes."""


def log_event(
    noun: str, kind: str, *, count: int = 1, where: str = "", is_state: bool = False, outcome: str = ""
) -> None:
    """Tell whoever follows this launch that something happened to some `noun`s: "2 packs on n1 <outcome>: <kind>"."""
    notice = LaunchEvent(kind, noun, count, where, is_state, outcome)
    log.info("%s", _line(notice, Counter({outcome: count}), [where] if where else []), extra={_EVENT_ATTRIBUTE: notice})


@dataclass
class _EventGroup:
    """Events of a kind that were not told yet, and what was."""

    notice: LaunchEvent
    counts: Counter[str] = field(default_factory=Counter)
    """Outcome -> how often it was noted."""
    nodes: dict[str, None] = field(default_factory=dict)
    published_at: float = float("-inf")
    published: str = ""


class EventLog(logging.Handler):
    """Takes what is noted, and warnings, from its beginning to its end; tells of each kind in one line."""

    def __init__(
        self,
        store: Store,
        sweep: str,
        print_event: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        calls: Callable[[], Mapping[str, int]] = dict,
    ):
        super().__init__(logging.INFO)
        self._store, self._sweep, self._print_event, self._clock = store, sweep, print_event, clock
        self._calls = calls
        """Returns how often each of a scheduler's commands was called."""
        self._launch_id = new_attempt_id()
        self._started_at = time.time()
        self._kinds: dict[tuple[str, str], _EventGroup] = {}
        self._lines: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        self._written: object = None
        self._written_at = float("-inf")
        self._level_before = logging.NOTSET

    def __enter__(self) -> EventLog:
        self._level_before = log.level
        if not log.isEnabledFor(logging.INFO):
            log.setLevel(logging.INFO)
        log.addHandler(self)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        log.removeHandler(self)
        log.setLevel(self._level_before)
        self.publish(is_last=True)

    def wrap_watcher(self, watcher: Watcher) -> Watcher:
        """Return a watcher that also lets this tell what is new."""

        def watch(progress: Progress) -> None:
            self.publish()
            watcher(progress)

        return watch

    def emit(self, record: logging.LogRecord) -> None:
        """Take a notice or a warning; what is logged otherwise is for who debugs us."""
        notice = getattr(record, _EVENT_ATTRIBUTE, None)
        if notice is None and record.levelno >= logging.WARNING:
            notice = LaunchEvent(record.getMessage())
        if notice is not None:
            self._add(notice)

    def _add(self, notice: LaunchEvent) -> None:
        merged = self._kinds.setdefault((notice.noun, error_pattern(notice.kind)), _EventGroup(notice))
        merged.notice = notice
        merged.counts[notice.outcome] = notice.count + (0 if notice.is_state else merged.counts[notice.outcome])
        if notice.where:
            merged.nodes[notice.where] = None

    def publish(self, *, is_last: bool = False) -> None:
        """Tell what is new, and put it into the store if it is time."""
        with self.lock or contextlib.nullcontext():  # others log too
            self._publish(is_last)

    def _publish(self, is_last: bool) -> None:
        now = self._clock()
        for merged in list(self._kinds.values()):
            if not merged.counts or (now - merged.published_at < EVENT_REPEAT_INTERVAL_S and not is_last):
                continue
            line = _line(merged.notice, merged.counts, list(merged.nodes))
            if not (merged.notice.is_state and line == merged.published):
                self._lines.append({"at": time.time(), "text": line})
                is_summed_up = GIVEN_UP in merged.counts or (merged.published and merged.notice.outcome)
                if not (is_last and is_summed_up):  # a launch ends by listing what it gave up, and why
                    self._show(line, is_warning=not (merged.notice.noun or merged.notice.is_state))
            merged.published, merged.published_at = line, now
            merged.counts.clear()
            merged.nodes.clear()
        if is_last or now - self._written_at >= heartbeat_s(self._store):
            self._write(now)

    def _show(self, line: str, *, is_warning: bool) -> None:
        """Show a line where launches show things; a warning where Python would, which it has not since it was taken here."""
        if not is_warning:
            self._print_event(line)
        elif not logging.getLogger().handlers:
            print_line(line, stderr=True)

    def _write(self, now: float) -> None:
        """Keep it in the store, if there is anything new; a store that refuses it stops nothing."""
        calls = dict(self._calls())
        content = {"launch_id": self._launch_id, "started_at": self._started_at, "host": socket.gethostname()}
        content |= {"pid": os.getpid(), "scheduler_calls": calls, "events": list(self._lines)}
        if not (calls or self._lines) or content == self._written:
            return
        lines = [f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(e['at']))} {e['text']}" for e in self._lines]
        try:
            self._store.write(launch_path(self._sweep, self._launch_id), json.dumps(content).encode())
            self._store.write(launch_log_path(self._sweep, self._launch_id), "\n".join([*lines, ""]).encode())
        except OSError as error:
            log.debug("events not written: %s", error)
        self._written, self._written_at = content, now


def _line(notice: LaunchEvent, counts: Counter[str], nodes: list[str]) -> str:
    """Say what was noted so often, by outcome, on these nodes."""
    count, more = counts.total(), len(nodes) - MAX_NODES_SHOWN
    if not notice.noun:
        return f"{notice.kind} ({count} times)" if count > 1 else notice.kind
    where = f" on {', '.join(nodes[:MAX_NODES_SHOWN])}{f' and {more} more' if more > 0 else ''}" if nodes else ""
    if not notice.outcome:
        return f"{counted(count, notice.noun)}{where} {notice.kind}"
    if len(counts) == 1:
        return f"{counted(count, notice.noun)}{where} {notice.outcome}: {notice.kind}"
    (outcome, number), *others = counts.most_common()
    said = [f"{counted(number, notice.noun)} {outcome}", *(f"{number} {outcome}" for outcome, number in others)]
    return f"{', '.join(said)}{where}: {notice.kind}"


def read_last_launch(store: Store, sweep: str) -> dict[str, Any] | None:
    """Return what the last launch of a sweep that had anything to tell wrote down; None where there is none."""
    paths = sorted(path for path in store.list(launches_folder(sweep)) if path.endswith(".json"))
    for path in reversed(paths):
        try:
            found = read_object(store.read(path))
            events = [{"at": e["at"], "text": str(e["text"])} for e in found["events"] if is_time(e["at"])]
            calls = {str(name): int(count) for name, count in found["scheduler_calls"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        return {"started_at": found.get("started_at"), "events": events, "scheduler_calls": calls}
    return None
