"""Verify files other than results: specs, submissions, searches, fits, decisions, code and checkpoints."""

from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial
from typing import Any

import pyarrow as pa

from depthrate.storage.catalog.code import iter_corrupt_code
from depthrate.storage.catalog.code_decisions import Decision
from depthrate.storage.catalog.fits import ADDED_LATER
from depthrate.storage.catalog.removals import Removal
from depthrate.storage.catalog.requested_trials import is_batch
from depthrate.storage.catalog.specs import parse_spec, read_specs
from depthrate.storage.catalog.tags import parse_changes
from depthrate.storage.commits.visible_commits import first_line
from depthrate.storage.files.json_objects import read_object, read_with_digest
from depthrate.storage.files.parquet import UNREADABLE_ERRORS, read_parquet
from depthrate.storage.files.paths import (
    checkpoint_trials_path,
    identity,
    is_identity,
    is_job_folder,
    submission_path,
    sweep_of_path,
    trial_ids_path,
)
from depthrate.storage.files.protocol import InvalidFileError
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.delta_log import check_delta_logs
from depthrate.storage.maintenance.findings import Finding
from depthrate.storage.maintenance.replaced_files import ABANDONED_S
from depthrate.storage.maintenance.verify_rows import FaultOf
from depthrate.storage.tables.schema import FITS

HashOf = Callable[[Mapping[str, Any]], str | None]
"""Function: spec of a sweep -> the hash in its path, or None if it is unknown."""


def check_metadata_files(store: Store, committed: Set[str], hash_of: HashOf, fault_of: FaultOf) -> Iterator[Finding]:
    """Yield a finding for each fault.

    Args:
        committed: Trials that no longer need a checkpoint.
    """

    checks: dict[str, Callable[[str, bytes], object]] = {
        "sweeps": partial(_check_spec, hash_of),
        "jobs": _check_submission,
        "searches": _check_search,
        "fits": partial(_check_fits, fault_of),
        "decisions": Decision.from_bytes,
        "removals": Removal.from_bytes,
        "tags": parse_changes,
    }
    for folder, check in checks.items():
        yield from _check_folder(store, folder, check)
    for spec in read_specs(store):
        if spec.trial_ids(store) is None:
            fault = (
                "a launch's list of trials was changed after it was written. Nothing is purged until this is fixed. "
            )
            fix = "Launch the sweep again"
            yield Finding(trial_ids_path(spec.sweep, spec.spec_hash), "damaged", fault + fix)
    yield from (Finding(path, "damaged", fault) for path, fault in iter_corrupt_code(store))
    yield from _checkpoints(store, committed)
    yield from check_delta_logs(store)
    for path in store.list_unsafe_paths():
        yield Finding(path, "foreign", "its path leads elsewhere. It is never read, and --repair leaves it")
    for path in store.unfinished_writes(ABANDONED_S):
        yield Finding(path, "leftover", "its writer was killed before the write was complete")


def _check_folder(store: Store, folder: str, check: Callable[[str, bytes], object]) -> Iterator[Finding]:
    """Check the files of a folder. `check` raises an error for an invalid file."""
    for path, content in store.read_many(store.list(folder)):
        try:
            if isinstance(content, InvalidFileError):
                raise content
            if not isinstance(content, OSError):
                check(path, content)
        except UNREADABLE_ERRORS as error:
            yield Finding(path, "damaged", f"is invalid ({first_line(error)}). It is ignored")


def _check_spec(hash_of: HashOf, path: str, content: bytes) -> None:
    if path.endswith(".json"):
        spec = parse_spec(path, content)
        if hash_of(spec.spec) not in (None, spec.spec_hash):
            raise ValueError("the spec does not match the hash in its path, launch the sweep again")


def _check_submission(path: str, content: bytes) -> None:
    fields = read_object(content)
    if submission_path(fields["sweep"], fields["name"]) != path:
        raise ValueError("its content does not match its path")
    if not is_job_folder(fields["folder"], fields["sweep"], fields["name"]):
        raise ValueError(f"{fields['folder']!r:.200} is not a folder of its jobs")


def _check_search(path: str, content: bytes) -> None:
    if "/reports/" in path:
        read_with_digest(content)
    elif not is_batch(path, content):
        raise ValueError("it was changed after it was written")


def _check_fits(fault_of: FaultOf, path: str, content: bytes) -> None:
    table = read_parquet(content)
    schema = table.schema
    expected = [field for field in FITS if field.name in schema.names or field.name not in ADDED_LATER]
    if any(field.name not in schema.names or schema.field(field.name) != field for field in expected):
        raise pa.ArrowInvalid("its columns differ from the table fits")
    for row in table.to_pylist():
        if row["sweep"] != sweep_of_path(path):
            raise ValueError(f"a fit is of sweep {row['sweep']!r:.80}")
        if (fault := fault_of("fits", row)) is not None:
            raise ValueError(f"a fit {fault}")


def _checkpoints(store: Store, committed: Set[str]) -> Iterator[Finding]:
    for path in store.list("checkpoints"):
        pack_id = path.split("/")[1]
        if not is_identity(pack_id) or path != checkpoint_trials_path(pack_id):
            continue
        try:
            members = {identity(trial_id) for trial_id in read_with_digest(store.read(path))["trial_ids"]}
        except FileNotFoundError:
            continue  # deleted meanwhile
        except UNREADABLE_ERRORS as error:
            fault = f"does not name the trials of its checkpoint ({first_line(error)}). The checkpoint is not used"
            yield Finding(path, "damaged", fault)
            continue
        if members <= committed:
            yield Finding(path, "leftover", f"all trials of pack {pack_id} are committed. Its checkpoint is not needed")
