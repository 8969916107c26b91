"""The context of a running task: its device, stop requests, checkpoints, progress and reports."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from depthrate.orchestrator.attempts.record import Attempt
from depthrate.orchestrator.attempts.spec import AttemptSpec
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
MIN_TIMED_S = 1.0
"""Seconds of steps from which the seconds per step are recorded."""


class StopFlag:
    """A stop request, set by a signal or after the driver has exited. Tasks check it between steps."""

    def __init__(self) -> None:
        self.is_set = False
        self.reason = ""

    def set(self, reason: str) -> None:
        """Request a checkpoint and a stop."""
        self.is_set, self.reason = True, reason


def raise_oom_score(file: str = "/proc/self/oom_score_adj") -> None:
    """Let the kernel kill this worker, and not the parent that reports its end, when memory runs out."""
    with contextlib.suppress(OSError, ValueError):
        if int(Path(file).read_text()) < 500:  # thousandths of the memory. Ray's workers have a higher score
            Path(file).write_text("500")


def node_scratch_store() -> Store | None:
    """Return a private store on the node's disk for checkpoints that the full store refuses, or None if none can be created."""
    folder = Path(tempfile.gettempdir()) / f"depthrate-kept-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077:
        return None  # the folder belongs to another user, or is accessible to other users
    return Store(str(folder))


@dataclass
class CheckpointIndex:
    """Result of the search for a pack's checkpoints, shared by its trials so that the store is read once."""

    is_empty: bool = False
    """True if no trial of the pack has a checkpoint."""


@dataclass
class WorkerContext(ManualTraining):
    """Context of a running task (`tasks.interface.TaskContext`)."""

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
    """Seconds of training in earlier attempts, up to the loaded checkpoint."""
    checkpoint_index: CheckpointIndex = field(default_factory=CheckpointIndex)
    """Checkpoints of the whole pack."""
    live: LiveCurves | None = None
    """Live curves of the whole pack."""

    def __post_init__(self) -> None:
        self.started = self.last_checkpoint = self._timed_since = time.monotonic()
        self._timed_from = float("inf")
        """First step since `_timed_since`."""

    @property
    def device(self) -> str:
        """Device to compute on."""
        return self.job.options.device

    @property
    def engine(self) -> Engine:
        """Engine that the launch requests."""
        return Engine(self.job.options.engine)

    @property
    def libraries(self) -> StoredLibraries | None:
        """Kernel libraries shared through the store with nodes that cannot build them, or None."""
        return StoredLibraries(self.store) if self.job.options.shares_libraries else None

    def report_engine(self, engine: Engine, compile_s: float | None = None) -> None:
        """Record the engine in use and the seconds spent building kernels."""
        self.attempt.engine, self.attempt.compile_s = engine, compile_s

    def should_stop(self) -> bool:
        """Return whether the task should save a checkpoint now and raise `Interrupted`."""
        return self.stop.is_set

    def progress(self, step: int, num_steps: int) -> None:
        """Record the step reached, of `num_steps`, and the seconds per step."""
        self.attempt.step, self.attempt.num_steps = step, num_steps
        now = time.monotonic()
        if step <= self._timed_from:
            self._timed_from, self._timed_since = step, now
        elif now - self._timed_since >= MIN_TIMED_S:
            self.attempt.step_s = (now - self._timed_since) / (step - self._timed_from)

    def show_curves(self, curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Publish the curves that trials log while they train."""
        if self.live is not None:
            self.live.follow(curves)

    def report(self, step: int, values: Mapping[int, Mapping[str, float | None]]) -> set[int]:
        """Report metrics of training trials (position -> metric -> value). Return the positions of trials to prune."""
        pruned = self.pruning.report(step, {self.first + index: row for index, row in values.items()})
        return {position - self.first for position in pruned}

    def checkpoint_due(self) -> bool:
        """Return whether the checkpoint interval has passed."""
        return time.monotonic() - self.last_checkpoint >= self.job.options.checkpoint_seconds

    def save_checkpoint(self, content: bytes) -> None:
        """Save a checkpoint. A failed write is logged: it costs time after a crash, not results."""
        self.last_checkpoint = time.monotonic()
        pack_id = self.job.pack_id
        wall_s = self.wall_s_before + self.last_checkpoint - self.started
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
            if is_full(error) and (scratch := node_scratch_store()) is not None:
                with contextlib.suppress(OSError):
                    write(scratch)
                    self.attempt.checkpoints += 1
                    log.warning("checkpoint saved on this node instead, in %s", scratch.root)

    def load_checkpoint(self) -> bytes | None:
        """Return the newest checkpoint saved with this code version or an accepted version, or None."""
        if not self.may_have_checkpoint:
            return None
        saved: list[tuple[float, Store, int | None]] = []
        scratch = node_scratch_store()
        for store in (self.store, *([] if scratch is None else [scratch])):
            try:
                members = read_with_digest(store.read(checkpoint_trials_path(self.job.pack_id)))
                size = members.get("bytes")  # the checkpoint file may be an older file of slightly different size
                max_bytes = 2 * size + SLACK_BYTES if isinstance(size, int) else None
                saved.append((float(members["wall_s"]), store, max_bytes))
            except (OSError, ValueError, KeyError, TypeError) as error:
                if store is self.store:
                    self.checkpoint_index.is_empty = isinstance(error, FileNotFoundError)
        self.checkpoint_index.is_empty &= not saved
        for wall_s_before, store, max_bytes in sorted(saved, key=lambda entry: entry[0], reverse=True):
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
        """True unless the store is known to have no checkpoint of this pack."""
        return self.attempt.checkpoints > 0 or not self.checkpoint_index.is_empty

    def _checkpoint(self, version: str | None) -> str:
        """Return a checkpoint's name, which contains the code version so that other code does not resume from it."""
        return self.name if version is None else f"{self.name}.{version[:12]}"

    def for_trial(self, index: int) -> WorkerContext:
        """Return the context of one trial, with a separate checkpoint."""
        trial_id = self.trial_ids[index]
        return replace(self, trial_ids=[trial_id], first=index, name=trial_id, wall_s_before=0.0)
