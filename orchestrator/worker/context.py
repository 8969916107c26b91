"""What a task is given beside its parameters: where to compute, when to stop, its checkpoints, and whom to tell."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from depthrate.orchestrator.attempts.record import Attempt
from depthrate.orchestrator.executors.base import AttemptSpec
from depthrate.orchestrator.worker.live_curve_writer import LiveCurves
from depthrate.orchestrator.worker.pruning import Pruning
from depthrate.orchestrator.worker.stored_libraries import StoredLibraries
from depthrate.storage.files.data_folder import DataFolder
from depthrate.storage.files.full import is_full
from depthrate.storage.files.json_objects import read_with_digest, with_digest
from depthrate.storage.files.parquet import SLACK_BYTES
from depthrate.storage.files.paths import checkpoint_path, checkpoint_trials_path
from depthrate.storage.files.store import Store
from depthrate.tasks.interface import Engine
from depthrate.tasks.manual_training import ManualTraining

log = logging.getLogger("depthrate")


class StopFlag:
    """Set by a signal or by the death of the driver; tasks look at it between steps."""

    def __init__(self) -> None:
        self.is_set = False
        self.reason = ""

    def set(self, reason: str) -> None:
        """Ask whatever runs to save a checkpoint and end."""
        self.is_set, self.reason = True, reason


def node_scratch_store() -> Store | None:
    """Return a place of this user's own on the node's disk, for what the store has no room for; None where there is none."""
    folder = Path(tempfile.gettempdir()) / f"depthrate-kept-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        there = folder.lstat()
    except OSError:
        return None
    if there.st_uid != os.getuid() or not stat.S_ISDIR(there.st_mode) or there.st_mode & 0o077:
        return None  # somebody else's
    return Store(str(folder))


@dataclass
class CheckpointIndex:
    """What an attempt saw of the checkpoints of its pack, so that it asks for them once."""

    nothing: bool = False
    """Whether there were none of any trial."""


@dataclass
class WorkerContext(ManualTraining):
    """What a running task may ask of the outside (`tasks.task.TaskContext`)."""

    store: Store
    job: AttemptSpec
    data: DataFolder
    attempt: Attempt
    stop: StopFlag
    trial_ids: Sequence[str]
    pruning: Pruning
    first: int = 0
    """Position in the pack of the first of `trial_ids`."""
    name: str = "pack"
    wall_s_before: float = 0.0
    """Training time of earlier attempts that the checkpoint stands for."""
    found: CheckpointIndex = field(default_factory=CheckpointIndex)
    """What was seen of the whole pack's."""
    live: LiveCurves | None = None
    """Shows the whole pack's curves while it trains."""

    def __post_init__(self) -> None:
        self.began = self.last_checkpoint = time.monotonic()

    @property
    def device(self) -> str:
        """Where to compute."""
        return self.job.options.device

    @property
    def engine(self) -> Engine:
        """How the launch wants steps to be run."""
        return Engine(self.job.options.engine)

    @property
    def libraries(self) -> StoredLibraries | None:
        """Where kernels are left for nodes that cannot build them."""
        return StoredLibraries(self.store) if self.job.options.shares_libraries else None

    def report_engine(self, engine: Engine, compile_s: float | None = None) -> None:
        """Note how steps are run, and how long compiling them took."""
        self.attempt.engine, self.attempt.compile_s = engine, compile_s

    def should_stop(self) -> bool:
        """Whether to save a checkpoint now and raise `Interrupted`."""
        return self.stop.is_set

    def progress(self, step: int, num_steps: int) -> None:
        """Note how far the pack has come."""
        self.attempt.step, self.attempt.num_steps = step, num_steps

    def show_curves(self, curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Let the store have what trials log while they train."""
        if self.live is not None:
            self.live.follow(curves)

    def report(self, step: int, values: Mapping[int, Mapping[str, float | None]]) -> set[int]:
        """Tell what trials measure while they train; return the positions of those to leave out."""
        left_out = self.pruning.report(step, {self.first + index: row for index, row in values.items()})
        return {position - self.first for position in left_out}

    def checkpoint_due(self) -> bool:
        """Whether the last checkpoint is old enough."""
        return time.monotonic() - self.last_checkpoint >= self.job.options.checkpoint_seconds

    def save_checkpoint(self, content: bytes) -> None:
        """Keep `content` until the commit; a store that refuses it costs time after a crash, not results."""
        self.last_checkpoint = time.monotonic()
        pack_id = self.job.pack_id
        wall_s = self.wall_s_before + self.last_checkpoint - self.began
        members = {"trial_ids": self.job.trial_ids, "wall_s": wall_s, "code_hash": self.attempt.code_hash}
        members["bytes"] = len(content)

        def write(store: Store) -> None:
            store.write(checkpoint_path(pack_id, self._checkpoint(self.attempt.code_hash)), content)
            store.write(checkpoint_trials_path(pack_id), with_digest(members))

        try:
            self.pruning.write(self.store)
            write(self.store)
            self.attempt.checkpoints += 1
        except OSError as error:
            log.warning("checkpoint not written: %s", error)
            if is_full(error) and (kept := node_scratch_store()) is not None:
                with contextlib.suppress(OSError):
                    write(kept)
                    self.attempt.checkpoints += 1
                    log.warning("it is kept on this node, in %s", kept.root)

    def load_checkpoint(self) -> bytes | None:
        """Return what an earlier attempt saved, with this code or one that counts as this, or None."""
        if not self.may_have_checkpoint:
            return None
        saved: list[tuple[float, Store, int | None]] = []
        kept = node_scratch_store()
        for store in (self.store, *([] if kept is None else [kept])):
            try:
                members = read_with_digest(store.read(checkpoint_trials_path(self.job.pack_id)))
                size = members.get("bytes")  # the one before it may have been another, by little
                max_bytes = 2 * size + SLACK_BYTES if isinstance(size, int) else None
                saved.append((float(members["wall_s"]), store, max_bytes))
            except (OSError, ValueError, KeyError, TypeError) as error:
                if store is self.store:
                    self.found.nothing = isinstance(error, FileNotFoundError)
        self.found.nothing &= not saved
        for wall_s_before, store, max_bytes in sorted(saved, key=lambda each: each[0], reverse=True):
            for version in dict.fromkeys((self.attempt.code_hash, *self.job.options.accepted_codes, None)):
                try:
                    content = store.read(checkpoint_path(self.job.pack_id, self._checkpoint(version)), max_bytes)
                except OSError:
                    continue
                self.wall_s_before = wall_s_before
                return content
        return None

    @property
    def may_have_checkpoint(self) -> bool:
        """Whether there may be a checkpoint of this pack in the store."""
        return self.attempt.checkpoints > 0 or not self.found.nothing

    def _checkpoint(self, version: str | None) -> str:
        """Return a checkpoint's name: other code does not go on from it."""
        return self.name if version is None else f"{self.name}.{version[:12]}"

    def for_trial(self, index: int) -> WorkerContext:
        """Return this context narrowed to one trial, with a checkpoint of its own."""
        trial_id = self.trial_ids[index]
        return WorkerContext(
            *(self.store, self.job, self.data, self.attempt, self.stop, [trial_id], self.pruning, index, trial_id),
            found=self.found,
            live=self.live,
        )
