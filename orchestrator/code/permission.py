"""Code that a store names is executed where the user alone decides both what the store says and what the code is, or where
that very code was accepted: others may write to a store, and it does not choose what runs."""

from __future__ import annotations

from pathlib import Path

from depthrate.orchestrator.console.errors import UsageError
from depthrate.storage.files.store import Store
from depthrate.sweeps.spec import SweepSpec
from depthrate.tasks.code.load import how_to_accept
from depthrate.tasks.code.trust import distrust_of_paths, is_accepted, is_hash, untrusted_reason
from depthrate.tasks.loading import code_of_task, names_user_code


def check_stored_sweep(sweep: SweepSpec, path: str, store: Store) -> None:
    """Check that a sweep, which the store has at `path`, may have its code executed.

    Raises:
        UsageError: others decide what it is, and it was not accepted.
        TaskError: a file is not there, or cannot be read.
    """
    task = sweep.loaded_task
    if not names_user_code(task):
        return
    code = code_of_task(task)
    if code is not None and is_accepted(code.content_hash):
        return
    reason = list_writers(store, path)
    if code is not None:
        reason = next(iter(untrusted_reason(code, code.root / code.main, named=False)), reason)
    if reason is not None:
        where = task if code is None else code.root / code.main
        ways_on = "" if code is None else f", or {how_to_accept(code)}"
        raise UsageError(
            f"sweep {sweep.name!r} in the store names the code of {where}, which is not executed because a store says so: "
            f"{reason}; give the sweep's file instead of its name{ways_on}"
        )


def check_kept_code(given: str, code_hash: str, path: str, store: Store) -> None:
    """Check that code which the store keeps at `path` is what was meant by a hash, or by how it begins.

    Raises:
        UsageError: others can keep code there whose hash begins so, and it was not accepted.
    """
    if is_hash(given) or is_accepted(code_hash) or (reason := list_writers(store, path)) is None:
        return
    raise UsageError(
        f"code {code_hash} of the store, which --code-version {given} abbreviates, is not executed: {reason}. Read it, and "
        f"give the full hash to run it: --code-version {code_hash}"
    )


def list_writers(store: Store, path: str) -> str | None:
    """Say who else may write what a store has at a path; None where nobody does."""
    if not store.is_shared:
        return None
    if not store.is_local:
        return f"who may write to {store.url} is not known here"
    return next(iter(distrust_of_paths([Path(store.full_path(path))])), None)
