"""Launched specs in full, one file per spec, with the IDs of the trials they expand to."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from depthrate.storage.files.json_objects import read_object
from depthrate.storage.files.paths import is_identity, spec_path, trial_ids_path
from depthrate.storage.files.protocol import InvalidFileError
from depthrate.storage.files.store import Store

MAX_LAUNCHES = 10**9
"""Upper bound on the launch number of a sweep. A larger number is invalid."""


@dataclass(frozen=True)
class LaunchedSpec:
    """A spec as last launched."""

    sweep: str
    spec_hash: str
    spec: dict[str, Any]
    launched_at: str
    number: int
    """Number of the launch within its sweep, which does not depend on clocks."""
    trials_sha256: str
    """Digest of the file with its trial IDs."""

    def parameter_names(self) -> list[str]:
        """Return the parameters that the spec sets, except those equal to the task's default."""
        search = self.spec.get("search")
        parts = [self.spec, *_list(self.spec.get("grids")), *([search] if isinstance(search, dict) else [])]
        named = [
            part.get(key) for part in parts if isinstance(part, dict) for key in ("params", "grid", "zip", "derive")
        ]
        points = [*named, *_list(self.spec.get("include"))]
        names = [str(name) for point in points if isinstance(point, dict) for name in point]
        return list(dict.fromkeys([*names, *(["seed"] if "seeds" in self.spec else [])]))

    def trial_ids(self, store: Store) -> list[str] | None:
        """Return its trial IDs, or None if the list is missing or corrupt."""
        try:
            content = store.read(trial_ids_path(self.sweep, self.spec_hash))
            is_intact = self.trials_sha256 == hashlib.sha256(content).hexdigest()
            return content.decode("ascii").split() if is_intact else None
        except (FileNotFoundError, InvalidFileError, UnicodeDecodeError):
            return None


def _list(part: Any) -> list[Any]:
    return part if isinstance(part, list) else []


def write_spec(store: Store, sweep: str, spec_hash: str, spec: Mapping[str, Any], trial_ids: Iterable[str]) -> None:
    """Write a launched spec. Launching it again makes it the newest.

    Expanding a large sweep takes seconds. Readers that need only its progress read the list of trial IDs next to the spec.
    """
    content: dict[str, Any] = {"spec": dict(spec), "launched_at": datetime.now(UTC).isoformat()}
    content["number"] = 1 + max((launched.number for launched in read_specs(store, sweep)), default=0)
    _write(store, sweep, spec_hash, content, trial_ids)


def write_list(store: Store, spec: LaunchedSpec, trial_ids: Iterable[str]) -> None:
    """Write the list of trials of a launch whose list is missing or corrupt. The order of launches does not change."""
    content = {"spec": spec.spec, "launched_at": spec.launched_at, "number": spec.number}
    _write(store, spec.sweep, spec.spec_hash, content, trial_ids)


def _write(store: Store, sweep: str, spec_hash: str, content: dict[str, Any], trial_ids: Iterable[str]) -> None:
    """Write a launch durably, its list before its spec, since trials that are in no list can be purged."""
    listed = "\n".join(trial_ids).encode()
    store.write(trial_ids_path(sweep, spec_hash), listed, durable=True)
    content["trials_sha256"] = hashlib.sha256(listed).hexdigest()
    store.write(spec_path(sweep, spec_hash), json.dumps(content, indent=1).encode(), durable=True)


def newest_specs(store: Store) -> dict[str, LaunchedSpec]:
    """Return the most recently launched spec of each sweep. Unreadable files are skipped."""
    newest: dict[str, LaunchedSpec] = {}
    for spec in read_specs(store):
        previous = newest.get(spec.sweep)
        if previous is None or (spec.number, spec.launched_at) > (previous.number, previous.launched_at):
            newest[spec.sweep] = spec
    return newest


def sweep_of_launch(name: str) -> str:
    """Return the sweep of `<sweep>@<number>`, or the name itself."""
    return name.partition("@")[0]


def find_launched(store: Store, name: str) -> tuple[str, LaunchedSpec] | None:
    """Return the newest launch of a sweep, or launch N of `<sweep>@N`, with its name, or None if there is none.

    The newest launch has the sweep's name alone. `<sweep>@0`, the trials that no recorded launch requests, has its spec.
    """
    sweep, _, number = name.partition("@")
    launches = {spec.number: spec for spec in read_specs(store) if spec.sweep == sweep}
    newest = newest_specs(store).get(sweep)
    if newest is None or number in ("", "0"):
        return None if newest is None else (name, newest)
    found = next((spec for count, spec in launches.items() if str(count) == number), None)
    return None if found is None else (sweep if found == newest else name, found)


def read_specs(store: Store, sweep: str | None = None) -> Iterator[LaunchedSpec]:
    """Yield all launched specs, of all sweeps or of one. Unreadable files are skipped."""
    listed = store.list("sweeps" if sweep is None else f"sweeps/{sweep}")
    paths = [path for path in listed if path.count("/") == 2 and path.endswith(".json")]
    for path, content in store.read_many(paths):
        try:
            if not isinstance(content, OSError):
                yield parse_spec(path, content)
        except (ValueError, KeyError, TypeError):
            continue


def parse_spec(path: str, content: bytes) -> LaunchedSpec:
    """Parse the spec in a file.

    Raises:
        ValueError, KeyError, TypeError: The content is invalid, or belongs to another sweep.
    """
    _, sweep, name = path.split("/")
    fields = read_object(content)
    spec, spec_hash = dict(fields["spec"]), name.removesuffix(".json")
    if not is_identity(sweep) or not is_identity(spec_hash) or spec.get("name", sweep) != sweep:
        raise ValueError(f"its sweep is {spec.get('name')!r:.200}")
    number = fields["number"]
    if not isinstance(number, int) or not 0 < number < MAX_LAUNCHES:
        raise ValueError(f"its launch number is {number!r:.50}")
    launched_at = datetime.fromisoformat(fields["launched_at"]).isoformat()
    return LaunchedSpec(sweep, spec_hash, spec, launched_at, number, str(fields["trials_sha256"]))
