"""What stands in a store beside the results (specs, submissions, searches, fits, decisions, code, checkpoints): is it sound?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

import pyarrow as pa

from depthrate.storage.catalog.code import iter_corrupt_code
from depthrate.storage.catalog.code_decisions import Decision
from depthrate.storage.catalog.removals import PurgeRecord, Removal
from depthrate.storage.catalog.requested_trials import is_batch
from depthrate.storage.catalog.specs import parse_spec, read_specs
from depthrate.storage.catalog.tags import Tagging
from depthrate.storage.commits.source import first_line
from depthrate.storage.files.json_objects import read_object, read_with_digest
from depthrate.storage.files.leftovers import list_unfinished_writes
from depthrate.storage.files.parquet import read_parquet
from depthrate.storage.files.paths import (
    checkpoint_trials_path,
    identity,
    is_identity,
    is_job_folder,
    is_purge_record,
    submission_path,
    trial_ids_path,
)
from depthrate.storage.files.regular import InvalidFileError
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.damage import BROKEN
from depthrate.storage.maintenance.findings import Finding
from depthrate.storage.maintenance.garbage import ABANDONED_S
from depthrate.storage.tables.custom_columns import TYPE_WORDS, late_claims
from depthrate.storage.tables.schema import FITS, MEASURED_TABLES

HashOf = Callable[[Mapping[str, Any]], str | None]
"""Spec of a sweep -> the hash that is its name, None where that is not known."""


def check_metadata_files(store: Store, committed: Set[str], hash_of: HashOf) -> Iterator[Finding]:
    """Yield what is wrong with them; `committed` are the trials that need no checkpoint any more."""

    def check_spec(path: str, content: bytes) -> None:
        _check_spec(store, path, content, hash_of)

    yield from _check_each(store, "sweeps", check_spec)
    for spec in read_specs(store):
        if spec.trials_sha256 is not None and spec.trial_ids(store) is None:
            what = "the list of a launch's trials is not as it was written; nothing is purged while that is so: "
            mend = "launch the sweep again, or depthrate upgrade"
            yield Finding(trial_ids_path(spec.sweep, spec.spec_hash), "damaged", what + mend)
    yield from _check_each(store, "jobs", _check_submission)
    yield from _check_each(store, "searches", _check_search)
    yield from _check_each(store, "fits", _check_fits)
    for table in MEASURED_TABLES:
        for path, (column, kind, held) in late_claims(store, table).items():
            what = f"column {column!r} of {table} is a {TYPE_WORDS.get(held, held)} in this store"
            yield Finding(path, "two types", f"{what}; a {TYPE_WORDS.get(kind, kind)} was claimed later")
    yield from _check_each(store, "decisions", _check_decision)
    yield from _check_each(store, "removals", _check_removal)
    yield from _check_each(store, "tags", _check_tagging)
    yield from (Finding(path, "damaged", what) for path, what in iter_corrupt_code(store))
    yield from _checkpoints(store, committed)
    for path in store.list_unsafe_paths():
        yield Finding(path, "foreign", "its path leads elsewhere; it is never read, nor touched by --repair")
    for path in list_unfinished_writes(store, ABANDONED_S):
        yield Finding(path, "leftover", "a writer was killed before this was written")


def _check_each(store: Store, folder: str, check: Callable[[str, bytes], None]) -> Iterator[Finding]:
    """Check the files of a folder; `check` raises what is wrong with one."""
    for path, content in store.read_many(store.list(folder)):
        try:
            if isinstance(content, InvalidFileError):
                raise content
            if not isinstance(content, OSError):
                check(path, content)
        except (*BROKEN, OverflowError) as error:
            yield Finding(path, "damaged", f"is not what it should be ({first_line(error)}); it is ignored")


def _check_spec(store: Store, path: str, content: bytes, hash_of: HashOf) -> None:
    if path.endswith(".json"):
        spec = parse_spec(path, content)
        if hash_of(spec.spec) not in (None, spec.spec_hash):
            raise ValueError("the spec is not the one whose hash is its name; launch the sweep again")


def _check_submission(path: str, content: bytes) -> None:
    fields = read_object(content)
    if submission_path(fields["sweep"], fields["name"]) != path:
        raise ValueError("it does not stand where it says")
    if not is_job_folder(fields["folder"], fields["sweep"], fields["name"]):
        raise ValueError(f"{fields['folder']!r:.200} is no folder of its jobs")


def _check_search(path: str, content: bytes) -> None:
    if "reports" not in read_with_digest(content) and not is_batch(path, content):
        raise ValueError("it was changed after it was written")


def _check_decision(path: str, content: bytes) -> None:
    Decision.from_bytes(path, content)


def _check_removal(path: str, content: bytes) -> None:
    (PurgeRecord if is_purge_record(path) else Removal).from_bytes(path, content)


def _check_tagging(path: str, content: bytes) -> None:
    Tagging.from_bytes(path, content)


def _check_fits(path: str, content: bytes) -> None:
    """Those of an older version lack the columns that came later."""
    found = read_parquet(content).schema
    known = [field for field in FITS if field.name in found.names]
    if "exponent" not in found.names or any(found.field(field.name) != field for field in known):
        raise pa.ArrowInvalid("its columns are not those of fits")


def _checkpoints(store: Store, committed: Set[str]) -> Iterator[Finding]:
    for path in store.list("checkpoints"):
        pack_id = path.split("/")[1]
        if not is_identity(pack_id) or path != checkpoint_trials_path(pack_id):
            continue
        try:
            members = {identity(trial_id) for trial_id in read_with_digest(store.read(path))["trial_ids"]}
        except FileNotFoundError:
            continue  # deleted meanwhile
        except BROKEN as error:
            what = f"does not say whose checkpoint this is ({first_line(error)}); it is not used"
            yield Finding(path, "damaged", what)
            continue
        if members <= committed:
            what = f"all trials of pack {pack_id} are committed; its checkpoint is not needed"
            yield Finding(path, "leftover", what)
