"""Signs of life of attempts that run: one small file a node for all its workers, so that their records change only when they
begin and when they end.

A beat is a hint like the record: what cannot be read is left out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from depthrate.storage.attempts.clocks import MAX_SKEW_S, is_time
from depthrate.storage.files.json_objects import read_object
from depthrate.storage.files.paths import heartbeat_path, heartbeats_folder
from depthrate.storage.files.protocol import Stamp
from depthrate.storage.files.store import Store
from depthrate.storage.tables.states import AttemptState

HEARTBEAT_FIELDS = ("heartbeat_at", "step", "num_steps", "trials_done", "checkpoints", "progress_at", "needs_bytes")
"""What a beat says of an attempt: those values of its record that change while it runs."""
FORGOTTEN_S = 3600.0
"""A node that was silent for so long has left its file behind."""

Heartbeat = dict[str, Any]
"""HEARTBEAT_FIELDS of one attempt; `heartbeat_at` is never None."""


def write_heartbeats(store: Store, sweep: str, node: str, attempts: Mapping[str, Mapping[str, Any]]) -> None:
    """Say how the attempts of a node are: attempt -> HEARTBEAT_FIELDS.

    Raises:
        OSError: the store refuses it.
    """
    store.write(heartbeat_path(sweep, node), json.dumps({"at": time.time(), "attempts": attempts}).encode())


@dataclass
class _Node:
    stamp: Stamp
    at: float = 0.0
    """When the file was written, by our clock."""
    attempts: dict[str, Heartbeat] = field(default_factory=dict)


class NodeHeartbeats:
    """What the nodes said last, of one sweep or of all; only what has changed is read again."""

    def __init__(self, store: Store, sweep: str | None = None, most: int | None = None):
        """Read at most `most` files a look, those first that were not read for the longest."""
        self._store, self._folder, self._most = store, heartbeats_folder(sweep), most
        self._nodes: dict[str, _Node] = {}

    def poll(self) -> dict[str, Heartbeat]:
        """Return attempt -> its newest beat; those of the look before if the store cannot be listed just now."""
        try:
            stamps = self._store.stamps(self._folder)
        except OSError:
            return self._attempts()
        self._nodes = {path: node for path, node in self._nodes.items() if path in stamps}
        changed = [p for p, stamp in stamps.items() if p not in self._nodes or self._nodes[p].stamp != stamp]
        changed.sort(key=lambda path: self._nodes[path].at if path in self._nodes else 0.0)
        for path, content in self._store.read_many(changed[: self._most]):
            if not isinstance(content, OSError):
                self._nodes[path] = self._parsed(path, stamps[path], content)
        return self._attempts()

    def delete_ended(self, ended: Collection[str]) -> None:
        """Delete the files of nodes that only spoke of attempts that have ended, and of those that have long been silent.

        Raises:
            OSError: the store refuses it.
        """
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

    def _parsed(self, path: str, stamp: Stamp, content: bytes) -> _Node:
        try:
            fields = read_object(content)
            at, said = fields["at"], fields["attempts"]
            if not is_time(at) or not isinstance(said, dict):
                return _Node(stamp)
            ahead_s = self._clock_ahead_s(path, at)
            attempts = {name: beat for name, each in said.items() if (beat := _typed(each, ahead_s)) is not None}
            return _Node(stamp, at - ahead_s, attempts)
        except (ValueError, KeyError, TypeError):
            return _Node(stamp)

    def _clock_ahead_s(self, path: str, said: float) -> float:
        """Return by how much the clock of a node is ahead of ours; 0 where what it says is close to our time."""
        if abs(time.time() - said) <= MAX_SKEW_S:
            return 0.0
        received = self._store.modified(path)
        if received is None:
            return 0.0
        ahead_s = said - received - self._store.clock_ahead_s
        return ahead_s if abs(ahead_s) > MAX_SKEW_S else 0.0


def with_heartbeat(record: dict[str, Any], beats: Mapping[str, Heartbeat]) -> dict[str, Any]:
    """Return a record with what its node said since it was written; one of an attempt that has ended stays as it is."""
    beat = beats.get(record["attempt_id"])
    if beat is None or record["state"] is not AttemptState.RUNNING:
        return record
    if beat["heartbeat_at"] <= (record["heartbeat_at"] or 0.0):
        return record
    return record | {name: value for name, value in beat.items() if name in record}


def _typed(said: object, ahead_s: float) -> Heartbeat | None:
    """Return what was said of an attempt, by our clock; None where it is no beat."""
    if not isinstance(said, dict) or not is_time(said.get("heartbeat_at")):
        return None
    beat: Heartbeat = {"heartbeat_at": said["heartbeat_at"] - ahead_s}
    if is_time(said.get("progress_at")):
        beat["progress_at"] = said["progress_at"] - ahead_s
    for name in ("step", "num_steps", "trials_done", "checkpoints", "needs_bytes"):
        if isinstance(value := said.get(name), int) and not isinstance(value, bool) and 0 <= value < 2**63:
            beat[name] = value
    return beat
