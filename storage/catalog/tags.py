"""Tags and notes that users give to trials and sweeps, to find them again.

Each change writes a new small file, and the last change applies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from depthrate.storage.files.json_objects import read_with_digest, with_digest
from depthrate.storage.files.paths import new_name, tag_path
from depthrate.storage.files.store import Store, StoreError

MAX_NOTE = 10_000
"""Maximum number of characters of a note."""
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:+-]{0,59}")


@dataclass(frozen=True)
class Annotation:
    """A change made at one time: a tag added to or removed from trials or a sweep, or their note."""

    trial_ids: tuple[str, ...] = ()
    sweep: str | None = None
    """The sweep itself, if the change is not of trials."""
    tag: str | None = None
    is_set: bool = True
    note: str | None = None
    """A note replaces an earlier one, and an empty note removes it."""

    @staticmethod
    def from_bytes(path: str, content: bytes) -> Annotation:
        """Parse a file's content.

        Raises:
            ValueError, KeyError, TypeError: The content is invalid.
        """
        fields = read_with_digest(content)
        sweep, note = fields.get("sweep"), fields.get("note")
        tag = require_tag(fields["tag"]) if note is None else None
        return Annotation(
            tuple(map(str, fields["trial_ids"])),
            None if sweep is None else str(sweep),
            tag,
            bool(fields.get("is_set", True)),
            None if note is None else require_note(note),
        )


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
    changes: list[dict[str, object]] = [{"tag": require_tag(tag), "is_set": True} for tag in add]
    changes += [{"tag": require_tag(tag), "is_set": False} for tag in remove]
    changes += [] if note is None else [{"note": require_note(note)}]
    of = {"sweep": target, "trial_ids": []} if isinstance(target, str) else {"trial_ids": sorted(target)}
    for change in changes:
        store.write(tag_path(new_name()), with_digest(change | of), durable=True)


def read_annotations(store: Store) -> Annotations:
    """Return all tags and notes. Unreadable files are skipped, and `verify` reports them."""
    trials: dict[str, Marks] = {}
    sweeps: dict[str, Marks] = {}
    for path, content in store.read_many(sorted(store.list("tags"))):
        try:
            if isinstance(content, OSError):
                continue
            change = Annotation.from_bytes(path, content)
        except (ValueError, KeyError, TypeError):
            continue
        of_sweep = [] if change.sweep is None else [sweeps.setdefault(change.sweep, Marks())]
        for marks in [*of_sweep, *(trials.setdefault(trial_id, Marks()) for trial_id in change.trial_ids)]:
            if change.note is not None:
                marks.note = change.note
            elif change.tag is not None:
                rest = {*marks.tags} - {change.tag}
                marks.tags = sorted(rest | {change.tag} if change.is_set else rest)
    kept = ({name: marks for name, marks in of.items() if marks.tags or marks.note} for of in (trials, sweeps))
    return Annotations(*kept)
