"""The specs that were launched, whole, one file each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from storage.files import Files
from storage.layout import spec_path


def write_spec(files: Files, sweep: str, spec_hash: str, spec: Mapping[str, Any]) -> None:
    """Keep a spec that is launched; launching it again makes it the newest."""
    content = {"spec": dict(spec), "launched_at": datetime.now(UTC).isoformat()}
    files.write(spec_path(sweep, spec_hash), json.dumps(content, indent=1).encode())


def newest_specs(files: Files) -> dict[str, dict[str, Any]]:
    """Return the spec each sweep was launched with last; files that cannot be read are passed over."""
    newest: dict[str, tuple[str, dict[str, Any]]] = {}
    for path in files.list("sweeps"):
        parts = path.split("/")
        if len(parts) != 3 or not path.endswith(".json"):
            continue
        try:
            content = json.loads(files.read(path))
            found = (str(content["launched_at"]), dict(content["spec"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if parts[1] not in newest or found[0] > newest[parts[1]][0]:
            newest[parts[1]] = found
    return {sweep: spec for sweep, (_, spec) in newest.items()}
