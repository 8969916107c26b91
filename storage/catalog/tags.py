"""Tags and notes that users give to trials and sweeps, to find them again.

Each change writes a new small file, and the last change applies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from depthrate.storage.files.json_objects import read_with_digest, with_digest
from depthrate.storage.files.parquet import UNREADABLE_ERRORS
from depthrate.storage.files.paths import new_name, tag_path
from depthrate.storage.files.store import Store, StoreError

MERGE_BELOW = 2**20
"""Size in bytes from which a file of changes is not merged again."""
MERGED_BYTES = 2**24
"""Maximum size in bytes of the files merged into one."""
MAX_TAG_SCANS = 5
"""Maximum number of scans while a compaction merges the files of changes."""
MAX_NOTE = 10_000
"""Maximum number of characters of a note."""
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:+-]{0,59}")


@dataclass(frozen=True)
class Annotation:
    """A change made at one time: tags added to or removed from trials or a sweep, or their note."""

    trial_ids: tuple[str, ...] = ()
    sweep: str | None = None
    """The sweep itself, if the change is not of trials."""
    tags: Mapping[str, bool] = field(default_factory=dict)
    """Tag -> whether it is added, else it is removed."""
    note: str | None = None
    """A note replaces an earlier one, and an empty note removes it."""

    @staticmethod
    def from_fields(fields: Mapping[str, Any]) -> Annotation:
        """Parse a change. Earlier versions wrote a file for each tag.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: The content is invalid.
        """
        sweep, note = fields.get("sweep"), fields.get("note")
        tags = {fields["tag"]: fields.get("is_set", True)} if "tag" in fields else fields.get("tags", {})
        return Annotation(
            tuple(map(str, fields["trial_ids"])),
            None if sweep is None else str(sweep),
            {require_tag(tag): bool(is_set) for tag, is_set in tags.items()},
            None if note is None else require_note(note),
        )


def parse_changes(path: str, content: bytes) -> dict[str, dict[str, Any]]:
    """Return the changes in a file by path: its single change, or all that `merge_annotations` put into it.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: The content is invalid.
    """
    fields = read_with_digest(content)
    changes = fields.get("merged", {path: fields})
    for change in changes.values():
        Annotation.from_fields(change)
    return dict(changes)


@dataclass
class Marks:
    """The tags, in order, and the note of a trial or sweep."""

    tags: list[str] = field(default_factory=list)
    note: str = ""


@dataclass(frozen=True)
class Annotations:
    """All tags and notes of a store. Trials and sweeps without any are left out."""

    trials: dict[str, Marks]
    sweeps: dict[str, Marks]

    def tags(self) -> dict[str, list[str]]:
        """Return trial -> its tags."""
        return {trial_id: marks.tags for trial_id, marks in self.trials.items() if marks.tags}


def require_tag(tag: object) -> str:
    """Check a tag and return it.

    Raises:
        StoreError: It is invalid.
    """
    if not isinstance(tag, str) or _TAG.fullmatch(tag) is None:
        raise StoreError(f"tag {tag!r:.80} is invalid, expected letters, digits and _.:+-, at most 60")
    return tag


def require_note(note: object) -> str:
    """Check a note and return it.

    Raises:
        StoreError: It is invalid.
    """
    if not isinstance(note, str) or len(note) > MAX_NOTE:
        given = f"has {len(note)} characters" if isinstance(note, str) else f"is {type(note).__name__}"
        raise StoreError(f"a note {given}, expected text of at most {MAX_NOTE} characters")
    return note.encode("utf-8", "replace").decode()


def annotate(
    store: Store,
    target: str | Iterable[str],
    *,
    add: Iterable[str] = (),
    remove: Iterable[str] = (),
    note: str | None = None,
) -> None:
    """Add and remove tags, and replace the note. Nothing is written if one of them is invalid.

    Args:
        target: A sweep's name, or IDs of trials.

    Raises:
        StoreError: A tag or the note is invalid.
    """
    tags = {require_tag(tag): True for tag in add} | {require_tag(tag): False for tag in remove}
    of = {"sweep": target, "trial_ids": []} if isinstance(target, str) else {"trial_ids": sorted(target)}
    change = of | {"tags": tags} | ({} if note is None else {"note": require_note(note)})
    if tags or note is not None:
        store.write(tag_path(new_name()), with_digest(change), durable=True)


def merge_annotations(store: Store) -> None:
    """Merge the small files of changes into one. Each change keeps its path, so that a reader of both files counts it once."""
    sizes = {path: size for path, size in store.list("tags").items() if size < MERGE_BELOW}
    small = [path for path, total in zip(sizes, accumulate(sizes.values()), strict=True) if total < MERGED_BYTES]
    changes: dict[str, dict[str, Any]] = {}
    merged = []
    for path, content in store.read_many(small):
        with suppress(*UNREADABLE_ERRORS):  # verify reports it
            changes |= parse_changes(path, content) if isinstance(content, bytes) else {}
            merged += [path] if isinstance(content, bytes) else []
    if len(merged) > 1:
        store.write(tag_path(new_name()), with_digest({"merged": changes}), durable=True)
        store.delete_many(merged)


def read_annotations(store: Store) -> Annotations:
    """Return all tags and notes. Unreadable files are skipped, and `verify` reports them."""
    trials: dict[str, Marks] = {}
    sweeps: dict[str, Marks] = {}
    for _ in range(MAX_TAG_SCANS):
        changes, contents = dict[str, dict[str, Any]](), list(store.read_many(sorted(store.list("tags"))))
        if not any(isinstance(content, FileNotFoundError) for _, content in contents):
            break  # else a compaction has merged them
    for path, content in contents:
        with suppress(*UNREADABLE_ERRORS):
            changes |= parse_changes(path, content) if isinstance(content, bytes) else {}
    for change in (Annotation.from_fields(changes[path]) for path in sorted(changes)):
        of_sweep = [] if change.sweep is None else [sweeps.setdefault(change.sweep, Marks())]
        for marks in [*of_sweep, *(trials.setdefault(trial_id, Marks()) for trial_id in change.trial_ids)]:
            marks.note = marks.note if change.note is None else change.note
            added = {tag for tag, is_set in change.tags.items() if is_set}
            marks.tags = sorted({*marks.tags} - change.tags.keys() | added)
    kept = ({name: marks for name, marks in of.items() if marks.tags or marks.note} for of in (trials, sweeps))
    return Annotations(*kept)
