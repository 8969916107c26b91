"""Tags that users give to trials, to find them again.

Each change writes a new small file, and the last change applies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from depthrate.storage.files.json_objects import read_with_digest, with_digest
from depthrate.storage.files.paths import new_name, tag_path
from depthrate.storage.files.store import Store, StoreError

_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:+-]{0,59}")


@dataclass(frozen=True)
class Tagging:
    """Trials to which a tag was added at one time, or from which it was removed."""

    tag: str
    is_set: bool
    trial_ids: tuple[str, ...]

    @staticmethod
    def from_bytes(path: str, content: bytes) -> Tagging:
        """Parse a file's content.

        Raises:
            ValueError, KeyError, TypeError: The content is invalid.
        """
        fields = read_with_digest(content)
        return Tagging(require_tag(fields["tag"]), bool(fields["is_set"]), tuple(map(str, fields["trial_ids"])))


def require_tag(tag: object) -> str:
    """Check a tag and return it.

    Raises:
        StoreError: It is invalid.
    """
    if not isinstance(tag, str) or _TAG.fullmatch(tag) is None:
        raise StoreError(f"tag {tag!r:.80} is invalid, expected letters, digits and _.:+-, at most 60")
    return tag


def write_tag(store: Store, tag: str, trial_ids: Iterable[str], *, is_set: bool) -> None:
    """Add a tag to trials, or remove it.

    Raises:
        StoreError: The tag is invalid.
    """
    fields = {"tag": require_tag(tag), "is_set": is_set, "trial_ids": sorted(trial_ids)}
    store.write(tag_path(new_name()), with_digest(fields), durable=True)


def read_tags(store: Store) -> dict[str, list[str]]:
    """Return trial -> its tags in order. Unreadable files are skipped, and `verify` reports them."""
    tags: dict[str, set[str]] = {}
    for path, content in store.read_many(sorted(store.list("tags"))):
        try:
            if isinstance(content, OSError):
                continue
            tagging = Tagging.from_bytes(path, content)
        except (ValueError, KeyError, TypeError):
            continue
        for trial_id in tagging.trial_ids:
            of_trial = tags.setdefault(trial_id, set())
            (of_trial.add if tagging.is_set else of_trial.discard)(tagging.tag)
    return {trial_id: sorted(of_trial) for trial_id, of_trial in tags.items() if of_trial}
