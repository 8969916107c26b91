"""The specs that were launched, whole, one file each, with the identities of the trials they expand to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from depthrate.storage.files.json_objects import read_object
from depthrate.storage.files.paths import is_identity, spec_path, trial_ids_path
from depthrate.storage.files.regular import InvalidFileError
from depthrate.storage.files.store import Store

MAX_LAUNCHES = 10**9
"""Of one sweep: a larger number was never counted."""


@dataclass(frozen=True)
class LaunchedSpec:
    """A spec as it was launched last."""

    sweep: str
    spec_hash: str
    spec: dict[str, Any]
    launched_at: str
    number: int = 0
    """Of the launch among those of its sweep: unlike a time it does not depend on a clock; 0 where it was not counted."""
    trials_sha256: str | None = None
    """Of the file with its trials' identities."""

    def parameter_names(self) -> list[str]:
        """Return the parameters that it names; those that its task gives a default are not among them."""
        search = self.spec.get("search")
        parts = [self.spec, *_list(self.spec.get("grids")), *([search] if isinstance(search, dict) else [])]
        named = [
            part.get(key) for part in parts if isinstance(part, dict) for key in ("params", "grid", "zip", "derive")
        ]
        points = [*named, *_list(self.spec.get("include"))]
        names = [str(name) for point in points if isinstance(point, dict) for name in point]
        return list(dict.fromkeys([*names, *(["seed"] if "seeds" in self.spec else [])]))

    def trial_ids(self, store: Store) -> list[str] | None:
        """Return the identities of its trials, or None where they are not there as they were written."""
        try:
            content = store.read(trial_ids_path(self.sweep, self.spec_hash))
            if self.trials_sha256 not in (None, hashlib.sha256(content).hexdigest()):
                return None
            return content.decode("ascii").split()
        except (FileNotFoundError, InvalidFileError, UnicodeDecodeError):
            return None


def _list(part: Any) -> list[Any]:
    return part if isinstance(part, list) else []


def write_spec(
    store: Store, sweep: str, spec_hash: str, spec: Mapping[str, Any], trial_ids: Iterable[str] | None = None
) -> None:
    """Keep a spec that is launched; launching it again makes it the newest.

    Expanding a large sweep takes seconds; whoever only asks how far it is reads the identities that stand beside it.
    """
    content: dict[str, Any] = {"spec": dict(spec), "launched_at": datetime.now(UTC).isoformat()}
    content["number"] = 1 + max((known.number for known in read_specs(store, sweep)), default=0)
    _write(store, sweep, spec_hash, content, trial_ids)


def write_list(store: Store, spec: LaunchedSpec, trial_ids: Iterable[str]) -> None:
    """Keep the trials of a launch that was written down without them, or whose list is damaged; its place stays as it is."""
    content = {"spec": spec.spec, "launched_at": spec.launched_at, "number": spec.number}
    _write(store, spec.sweep, spec.spec_hash, content, trial_ids)


def _write(store: Store, sweep: str, spec_hash: str, content: dict[str, Any], trial_ids: Iterable[str] | None) -> None:
    """Write a launch: its list first, each durably, for what is removed for good is what no list has."""
    if trial_ids is not None:
        listed = "\n".join(trial_ids).encode()
        store.write(trial_ids_path(sweep, spec_hash), listed, durable=True)
        content["trials_sha256"] = hashlib.sha256(listed).hexdigest()
    store.write(spec_path(sweep, spec_hash), json.dumps(content, indent=1).encode(), durable=True)


def newest_specs(store: Store) -> dict[str, LaunchedSpec]:
    """Return the spec each sweep was launched with last; files that cannot be read are passed over."""
    newest: dict[str, LaunchedSpec] = {}
    for found in read_specs(store):
        known = newest.get(found.sweep)
        if known is None or (found.number, found.launched_at) > (known.number, known.launched_at):
            newest[found.sweep] = found
    return newest


def read_specs(store: Store, sweep: str | None = None) -> Iterator[LaunchedSpec]:
    """Yield all specs that were launched, of all sweeps or one; files that cannot be read are passed over."""
    listed = store.list("sweeps" if sweep is None else f"sweeps/{sweep}")
    paths = [path for path in listed if path.count("/") == 2 and path.endswith(".json")]
    for path, content in store.read_many(paths):
        try:
            if not isinstance(content, OSError):
                yield parse_spec(path, content)
        except (ValueError, KeyError, TypeError):
            continue


def parse_spec(path: str, content: bytes) -> LaunchedSpec:
    """Return the spec in a file.

    Raises:
        ValueError, KeyError, TypeError: it holds none, or that of another sweep.
    """
    _, sweep, name = path.split("/")
    fields = read_object(content)
    spec, spec_hash = dict(fields["spec"]), name.removesuffix(".json")
    if not is_identity(sweep) or not is_identity(spec_hash) or spec.get("name", sweep) != sweep:
        raise ValueError(f"says that it is of sweep {spec.get('name')!r:.200}")
    number = fields.get("number", 0)
    if not isinstance(number, int) or not 0 <= number < MAX_LAUNCHES:
        raise ValueError(f"says that it is launch {number!r:.50}")
    launched_at = datetime.fromisoformat(fields["launched_at"]).isoformat()
    return LaunchedSpec(sweep, spec_hash, spec, launched_at, number, fields.get("trials_sha256"))
