"""The specs that were launched, whole, one file each, with the identities of the trials they expand to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from depthrate.storage.layout import spec_path, trial_ids_path
from depthrate.storage.store import Store


@dataclass(frozen=True)
class LaunchedSpec:
    """A spec as it was launched last."""

    sweep: str
    spec_hash: str
    spec: dict[str, Any]
    launched_at: str

    def trial_ids(self, store: Store) -> list[str] | None:
        """Return the identities of its trials, or None where an older version did not write them down."""
        try:
            return store.read(trial_ids_path(self.sweep, self.spec_hash)).decode("ascii").split()
        except (FileNotFoundError, UnicodeDecodeError):
            return None


def write_spec(
    store: Store, sweep: str, spec_hash: str, spec: Mapping[str, Any], trial_ids: Iterable[str] | None = None
) -> None:
    """Keep a spec that is launched; launching it again makes it the newest.

    Expanding a large sweep takes seconds; whoever only asks how far it is reads the identities that stand beside it.
    """
    if trial_ids is not None:
        store.write(trial_ids_path(sweep, spec_hash), "\n".join(trial_ids).encode())
    content = {"spec": dict(spec), "launched_at": datetime.now(UTC).isoformat()}
    store.write(spec_path(sweep, spec_hash), json.dumps(content, indent=1).encode())


def newest_specs(store: Store) -> dict[str, LaunchedSpec]:
    """Return the spec each sweep was launched with last; files that cannot be read are passed over."""
    newest: dict[str, LaunchedSpec] = {}
    paths = [path for path in store.list("sweeps") if path.count("/") == 2 and path.endswith(".json")]
    for path, content in store.read_many(paths):
        _, sweep, name = path.split("/")
        try:
            if isinstance(content, OSError):
                continue
            fields = json.loads(content)
            found = LaunchedSpec(sweep, name.removesuffix(".json"), dict(fields["spec"]), str(fields["launched_at"]))
        except (ValueError, KeyError, TypeError):
            continue
        if sweep not in newest or found.launched_at > newest[sweep].launched_at:
            newest[sweep] = found
    return newest
