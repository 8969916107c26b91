"""The log of a launch: one counted line per kind of event.

Code that detects an event calls `attempts.events.log_event` or logs a warning. While a launch runs, `EventLog` receives both,
merges similar events, prints one line per kind and stores the lines.
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
from types import MappingProxyType, TracebackType
from typing import Any

from depthrate.orchestrator.attempts.events import EVENT_ATTRIBUTE, GIVEN_UP, LaunchEvent, format_line
from depthrate.orchestrator.attempts.liveness import heartbeat_s
from depthrate.orchestrator.attempts.record import new_attempt_id
from depthrate.orchestrator.attempts.retry_policy import error_pattern
from depthrate.orchestrator.console.tables import print_line
from depthrate.storage.attempts.clocks import is_time
from depthrate.storage.files.json_objects import read_object
from depthrate.storage.files.paths import launch_log_path, launch_path
from depthrate.storage.files.store import Store

log = logging.getLogger("depthrate")
EVENT_REPEAT_INTERVAL_S = 30.0
"""Minimum seconds between two lines about the same kind of event. Events in between are counted."""
MAX_EVENTS = 200
"""Maximum number of lines in a launch's log. The newest lines are retained."""


@dataclass
class _EventGroup:
    """Unpublished events of one kind, and the last published line."""

    event: LaunchEvent
    counts: Counter[str] = field(default_factory=Counter)
    """Outcome -> number of events."""
    nodes: dict[str, None] = field(default_factory=dict)
    published_at: float = float("-inf")
    published: str = ""


class EventLog(logging.Handler):
    """Collects events and warnings while a launch runs, and publishes one line per kind."""

    def __init__(
        self,
        store: Store,
        sweep: str,
        print_event: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        calls: Mapping[str, int] = MappingProxyType({}),
    ):
        super().__init__(logging.INFO)
        self._store, self._sweep, self._print_event, self._clock = store, sweep, print_event, clock
        self._calls = calls
        """Command of a scheduler -> number of calls so far."""
        self._launch_id = new_attempt_id()
        self._started_at = time.time()
        self._kinds: dict[tuple[str, str, bool], _EventGroup] = {}
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

    def emit(self, record: logging.LogRecord) -> None:
        """Collect an event or a warning. Other log records are for debugging only."""
        event = getattr(record, EVENT_ATTRIBUTE, None)
        if event is None and record.levelno >= logging.WARNING:
            event = LaunchEvent(record.getMessage())
        if event is None:
            return
        key = event.noun, error_pattern(event.kind), bool(event.where)  # a line must not place jobs that had no node
        group = self._kinds.setdefault(key, _EventGroup(event))
        group.event = event
        group.counts[event.outcome] = event.count + (0 if event.is_state else group.counts[event.outcome])
        if event.where:
            group.nodes[event.where] = None

    def publish(self, *, is_last: bool = False) -> None:
        """Print new events, and write them to the store if a heartbeat interval has passed."""
        with self.lock or contextlib.nullcontext():  # other threads also log
            self._publish(is_last)

    def _publish(self, is_last: bool) -> None:
        now = self._clock()
        for group in list(self._kinds.values()):
            if not group.counts or (now - group.published_at < EVENT_REPEAT_INTERVAL_S and not is_last):
                continue
            line = format_line(group.event, group.counts, list(group.nodes))
            if not (group.event.is_state and line == group.published):
                self._lines.append({"at": time.time(), "text": line})
                is_summed_up = GIVEN_UP in group.counts or (group.published and group.event.outcome)
                if is_last and is_summed_up:
                    pass  # a launch ends with a list of the packs it gave up
                elif group.event.noun or group.event.is_state:
                    self._print_event(line)
                elif not logging.getLogger().handlers:  # a warning, which handlers of the root logger also print
                    print_line(line, stderr=True)
            group.published, group.published_at = line, now
            group.counts.clear()
            group.nodes.clear()
        if is_last or now - self._written_at >= heartbeat_s(self._store):
            self._write(now)

    def _write(self, now: float) -> None:
        """Write new events to the store. A failed write does not stop the launch."""
        calls = dict(self._calls)
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


def read_last_launch(store: Store, sweep: str) -> dict[str, Any] | None:
    """Return the log of the last launch of the sweep that wrote a valid log, or None."""
    paths = sorted(path for path in store.list(launch_path.folder(sweep)) if path.endswith(".json"))
    for path in reversed(paths):
        try:
            content = read_object(store.read(path))
            events = [{"at": e["at"], "text": str(e["text"])} for e in content["events"] if is_time(e["at"])]
            calls = {str(name): int(count) for name, count in content["scheduler_calls"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        return {"started_at": content.get("started_at"), "events": events, "scheduler_calls": calls}
    return None
