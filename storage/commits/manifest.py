"""Manifests of compactions: one small file that lists the files written and the files they replace.

Writing the manifest switches readers from many files to few.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from depthrate.storage.files.json_objects import read_with_digest, with_digest
from depthrate.storage.files.parquet import DataFile
from depthrate.storage.files.paths import (
    DATA_TABLES,
    attempt_path,
    compaction_of_path,
    identity,
    is_compacted,
    is_table_path,
    log_path,
    manifest_path,
    table_path,
)
from depthrate.storage.files.store import Store

_TABLES = ("trials", *DATA_TABLES, "attempts")


@dataclass(frozen=True)
class Manifest:
    """One compaction of one sweep. It is immutable, and reading its rows needs nothing else.

    It is visible if every file it names exists in full. The commits and compactions it replaces then need not be read, since it
    holds all of their visible rows. Two compactions may overlap, and readers take each trial from one of them.
    """

    compaction_id: str
    sweep: str
    created_at: float
    """Seconds since the epoch, by the clock of the compacting node."""
    files: dict[str, list[DataFile]]
    """Table (trials, metrics, curves, features, attempts) -> files. Large features stay in the files of their
    commits."""
    commits: list[str] = field(default_factory=list)
    """Names (<attempt>[-<part>]) of the commits it replaces."""
    compactions: list[str] = field(default_factory=list)
    """IDs of the compactions it replaces."""
    attempts: dict[str, int] = field(default_factory=dict)
    """Attempts whose records it holds -> bytes of the record it read."""
    logs: list[str] = field(default_factory=list)
    """Attempts whose logs it holds."""

    @property
    def path(self) -> str:
        """Path in the store."""
        return manifest_path(self.sweep, self.compaction_id)

    def all_files(self) -> list[DataFile]:
        """Return every file it names."""
        return [file for files in self.files.values() for file in files]

    def replaced_paths(self) -> list[str]:
        """Return the files of the commits it replaces, starting with the commit itself, except for features it still names."""
        still_named = {file.path for file in self.all_files()}
        tables = ("trials", *DATA_TABLES)
        paths = [table_path(table, self.sweep, name, None) for table in tables for name in self.commits]
        return [path for path in paths if path not in still_named]

    def replaced_records(self) -> dict[str, int | None]:
        """Return the attempts' records that it holds, with their sizes in bytes, and its logs, whatever their size."""
        records: dict[str, int | None] = {attempt_path(self.sweep, a): size for a, size in self.attempts.items()}
        return records | {log_path(self.sweep, attempt): None for attempt in self.logs}

    def write(self, store: Store) -> None:
        """Write the manifest to the store. This makes the compaction visible."""
        content: dict[str, Any] = {
            "compaction_id": self.compaction_id,
            "sweep": self.sweep,
            "created_at": self.created_at,
            "files": {table: [file.to_json() for file in named] for table, named in self.files.items()},
            "replaces": {name: getattr(self, name) for name in ("commits", "compactions", "attempts", "logs")},
        }
        store.write(self.path, with_digest(content), durable=True)

    @staticmethod
    def from_bytes(path: str, content: bytes) -> Manifest:
        """Parse the manifest in a file.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: The content is invalid, or names files of others.
        """
        fields = read_with_digest(content)
        replaces = fields["replaces"]
        manifest = Manifest(
            identity(fields["compaction_id"]),
            identity(fields["sweep"]),
            float(fields["created_at"]),
            {table: [DataFile.from_fields(file) for file in named] for table, named in fields["files"].items()},
            [identity(name) for name in replaces["commits"]],
            [identity(name) for name in replaces["compactions"]],
            {identity(attempt): _bytes(size) for attempt, size in replaces["attempts"].items()},
            [identity(name) for name in replaces["logs"]],
        )
        manifest.check(path)
        return manifest

    def check(self, path: str) -> None:
        """Check that the manifest belongs at `path` and names only its own files, apart from features that it retains.

        Raises:
            ValueError: It does not.
        """
        if self.path != path:
            raise ValueError(f"its content belongs to {self.path}")
        if not math.isfinite(self.created_at):
            raise ValueError(f"its creation time is {self.created_at}")
        for table, named in self.files.items():
            for file in named:
                is_own = is_compacted(file.path) and compaction_of_path(file.path) == self.compaction_id
                if table not in _TABLES or not is_table_path(file.path, table, self.sweep):
                    raise ValueError(f"names {file.path!r:.200}, which is not a file of table {table!r:.50}")
                if not is_own and table != "features":
                    raise ValueError(f"names {file.path}, which is not a file of this compaction")


def _bytes(size: object) -> int:
    if not isinstance(size, int):
        raise ValueError(f"a size is {size!r:.80}, expected an int")
    return size
