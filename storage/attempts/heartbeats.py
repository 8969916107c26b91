"""Heartbeats of running attempts: one small file per node for all its workers.

Because of this file, records change only when attempts start and end. A heartbeat is a hint, like the record. Unreadable
heartbeats are ignored.
"""

import json
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from depthrate.storage.attempts.clocks import MAX_SKEW_S, is_time
from depthrate.storage.files.json_objects import read_object
from depthrate.storage.files.paths import heartbeat_path
from depthrate.storage.files.protocol import Stamp
from depthrate.storage.files.store import Store
from depthrate.storage.tables.states import AttemptState

HEARTBEAT_FIELDS = (
    *("heartbeat_at", "step", "num_steps", "step_s", "trials_done", "checkpoints", "progress_at", "needs_bytes"),
)
"""Fields of a heartbeat: the fields of a record that change while its attempt runs."""
FORGOTTEN_S = 3600.0
"""Age in seconds at which a node's file without new heartbeats is deleted."""

Heartbeat = dict[str, Any]
"""Values of HEARTBEAT_FIELDS of one attempt. `heartbeat_at` is never None."""


def write_heartbeats(store: Store, sweep: str, node: str, attempts: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the heartbeats of a node: attempt -> HEARTBEAT_FIELDS."""
    store.write(heartbeat_path(sweep, node), json.dumps({"at": time.time(), "attempts": attempts}).encode())


@dataclass
class _Node:
    stamp: Stamp
    at: float = 0.0
    """Time at which the file was written, by the local clock."""
    attempts: dict[str, Heartbeat] = field(default_factory=dict)


class NodeHeartbeats:
    """Latest heartbeats of the nodes, for one sweep or for all sweeps. Only changed files are read again."""

    def __init__(self, store: Store, sweep: str | None = None, max_files: int | None = None):
        """Read at most `max_files` files per poll, starting with the least recently read."""
        self._store, self._folder, self._max_files = store, heartbeat_path.folder(*filter(None, [sweep])), max_files
        self._nodes: dict[str, _Node] = {}

    def poll(self) -> dict[str, Heartbeat]:
        """Return attempt -> its newest heartbeat.

        If the store cannot be listed at the moment, return the previous result.
        """
        try:
            stamps = self._store.stamps(self._folder)
        except OSError:
            return self._attempts()
        self._nodes = {path: node for path, node in self._nodes.items() if path in stamps}
        changed = [p for p, stamp in stamps.items() if p not in self._nodes or self._nodes[p].stamp != stamp]
        changed.sort(key=lambda path: self._nodes[path].at if path in self._nodes else 0.0)
        for path, content in self._store.read_many(changed[: self._max_files]):
            if not isinstance(content, OSError):
                self._nodes[path] = self._parse(path, stamps[path], content)
        return self._attempts()

    def delete_ended(self, ended: Collection[str]) -> None:
        """Delete the files of nodes that report only ended attempts, and of nodes without new heartbeats."""
        before = time.time() - FORGOTTEN_S
        paths = [path for path, node in self._nodes.items() if node.at < before or node.attempts.keys() <= set(ended)]
        if paths:
            self._store.delete_many(paths)

    def _attempts(self) -> dict[str, Heartbeat]:
        newest: dict[str, Heartbeat] = {}
        for node in self._nodes.values():
            for attempt_id, beat in node.attempts.items():
                if attempt_id not in newest or beat["heartbeat_at"] > newest[attempt_id]["heartbeat_at"]:
                    newest[attempt_id] = beat
        return newest

    def _parse(self, path: str, stamp: Stamp, content: bytes) -> _Node:
        try:
            fields = read_object(content)
            at, attempts = fields["at"], fields["attempts"]
            if not is_time(at) or not isinstance(attempts, dict):
                return _Node(stamp)
            ahead_s = self._clock_ahead_s(path, at)
            parsed = {name: _parse_heartbeat(values, ahead_s) for name, values in attempts.items()}
            return _Node(stamp, at - ahead_s, {name: beat for name, beat in parsed.items() if beat is not None})
        except (ValueError, KeyError, TypeError):
            return _Node(stamp)

    def _clock_ahead_s(self, path: str, at: float) -> float:
        """Return the offset of a node's clock ahead of the local one in seconds, or 0 if they are close."""
        if abs(time.time() - at) <= MAX_SKEW_S:
            return 0.0
        received = self._store.modified(path)
        if received is None:
            return 0.0
        ahead_s = at - received - self._store.clock_ahead_s
        return ahead_s if abs(ahead_s) > MAX_SKEW_S else 0.0


def with_heartbeat(record: dict[str, Any], beats: Mapping[str, Heartbeat]) -> dict[str, Any]:
    """Return a record updated with its node's last heartbeat. The record of an ended attempt stays unchanged."""
    beat = beats.get(record["attempt_id"])
    if beat is None or record["state"] is not AttemptState.RUNNING:
        return record
    if beat["heartbeat_at"] <= (record["heartbeat_at"] or 0.0):
        return record
    return record | {name: value for name, value in beat.items() if name in record}


def _parse_heartbeat(values: object, ahead_s: float) -> Heartbeat | None:
    """Return the heartbeat of an attempt with its times by the local clock, or None if it is invalid."""
    if not isinstance(values, dict) or not is_time(values.get("heartbeat_at")):
        return None
    beat: Heartbeat = {"heartbeat_at": values["heartbeat_at"] - ahead_s}
    if is_time(values.get("progress_at")):
        beat["progress_at"] = values["progress_at"] - ahead_s
    if is_time(values.get("step_s")):
        beat["step_s"] = values["step_s"]
    for name in ("step", "num_steps", "trials_done", "checkpoints", "needs_bytes"):
        if isinstance(value := values.get(name), int) and not isinstance(value, bool) and 0 <= value < 2**63:
            beat[name] = value
    return beat
