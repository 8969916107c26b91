"""Findings of a verification: faults of files, and the trials lost."""

from dataclasses import dataclass, field

ORPHANED_KINDS = ("foreign", "leftover")
"""Kinds of findings for files that no commit names."""
NEWER = "newer"
"""Kind of findings for files that only newer versions of depthrate can read. The files are intact."""


@dataclass(frozen=True)
class Finding:
    """A fault in a store."""

    path: str
    kind: str
    """One of: damaged, missing, foreign, leftover, newer."""
    what: str
    trial_ids: tuple[str, ...] = ()
    """Trials that are or may be invisible because of it."""

    def __str__(self) -> str:
        lost = f" (trials: {len(self.trial_ids)})" if self.trial_ids else ""
        return f"{self.path}: {self.kind}: {self.what}{lost}"


@dataclass
class Verification:
    """Counts and findings of a verification."""

    num_files: int = 0
    num_bytes: int = 0
    num_trials: int = 0
    findings: list[Finding] = field(default_factory=list)
    lost: dict[str, set[str]] = field(default_factory=dict)
    """Commit or manifest with a fault -> its trials that cannot be used."""
    files: dict[str, list[str]] = field(default_factory=dict)
    """The same commits, with the paths of their data files."""
