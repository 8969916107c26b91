"""What a verification found: which file is not as it should be, how, and which trials that costs."""

from __future__ import annotations

from dataclasses import dataclass, field

from depthrate.storage.commits.source import VisibleCommit

ORPHANED_KINDS = ("foreign", "leftover")
"""Kinds of findings of files that no commit rests on."""
NEWER = "newer"
"""The kind of findings of files that only newer versions of depthrate can read: nothing is wrong with them."""


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be."""

    path: str
    kind: str
    """damaged, missing, wrong schema, two types, incomplete, miscounted, foreign, leftover, newer."""
    what: str
    trial_ids: tuple[str, ...] = ()
    """Trials that do not count because of it, or may not."""

    def __str__(self) -> str:
        lost = f" (trials: {len(self.trial_ids)})" if self.trial_ids else ""
        return f"{self.path}: {self.kind}: {self.what}{lost}"


@dataclass
class Verification:
    """What was looked at and found."""

    num_files: int = 0
    num_bytes: int = 0
    num_trials: int = 0
    newer: set[str] = field(default_factory=set)
    """Columns, as `table.column`, that newer versions of depthrate have written."""
    findings: list[Finding] = field(default_factory=list)
    lost: dict[str, set[str]] = field(default_factory=dict)
    """Commit or manifest with something wrong -> those of its trials that cannot be used."""
    sources: dict[str, VisibleCommit] = field(default_factory=dict)
    """The same commits, with the trials that can be read from them."""
