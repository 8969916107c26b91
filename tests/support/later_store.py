"""A store as a later version of depthrate might have written it: a column more in every table, a key more in every file."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from depthrate.storage.commits.commit import METADATA_KEY
from depthrate.storage.files.json_objects import with_digest
from depthrate.storage.files.parquet import trials_bytes

COLUMN = "later"


def age(root: Path) -> int:
    """Add the column and the key everywhere, renew sizes and checksums, and return how many files were changed."""
    renewed: dict[str, tuple[int, str]] = {}
    tables = sorted(root.rglob("*.parquet"), key=lambda path: path.relative_to(root).parts[0] == "trials")
    for path in tables:  # trials last: they name the others with size and checksum
        old = hashlib.sha256(path.read_bytes()).hexdigest()
        table = pq.read_table(path, partitioning=None)
        metadata = dict(pq.read_metadata(path).metadata or {})
        metadata = {key: metadata[key] for key in metadata if key == METADATA_KEY}
        if METADATA_KEY in metadata:
            commit = _renewed(json.loads(metadata[METADATA_KEY]), renewed)
            metadata[METADATA_KEY] = json.dumps({**commit, COLUMN: [1]}).encode()
        column = pa.array([b"x"] * table.num_rows, pa.binary())
        aged = table.append_column(COLUMN, column).replace_schema_metadata(metadata)
        if path.relative_to(root).parts[0] == "trials":
            path.write_bytes(trials_bytes(aged, is_commit=METADATA_KEY in metadata))
        else:
            pq.write_table(aged, path, write_page_checksum=True)
        renewed[old] = path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()
    objects = list(root.rglob("*.json"))
    for path in objects:
        fields = json.loads(path.read_text())
        is_sealed = fields.pop("sha256", None) is not None
        fields = {**_renewed(fields, renewed), COLUMN: {"a": [1, None]}}
        path.write_bytes(with_digest(fields) if is_sealed else json.dumps(fields).encode())
    return len(tables) + len(objects)


def _renewed(value: Any, renewed: dict[str, tuple[int, str]]) -> Any:
    """Return a value in which every file has its new size and checksum."""
    if isinstance(value, list):
        return [_renewed(item, renewed) for item in value]
    if not isinstance(value, dict):
        return value
    fields = {key: _renewed(item, renewed) for key, item in value.items()}
    if fields.get("sha256") in renewed:
        fields["size"], fields["sha256"] = renewed[fields["sha256"]]
    return fields
