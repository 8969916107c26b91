"""Permission to run code named by a store: other users may write to a store, so it must not decide which code runs.

Code runs only if the user trusted it, or if nobody else can write either the code or the file of the store that names it.
"""

from pathlib import Path

from depthrate.orchestrator.console.errors import UsageError
from depthrate.storage.files.store import Store
from depthrate.sweeps.spec import StoredSweep, SweepSpec, with_code
from depthrate.tasks.code.collect import is_installed
from depthrate.tasks.code.load import how_to_accept
from depthrate.tasks.code.trust import distrust_of_paths, is_accepted, is_hash, untrusted_reason
from depthrate.tasks.loading import code_of_task, names_user_code


def check_stored_sweep(sweep: SweepSpec, path: str, store: Store) -> StoredSweep:
    """Check that the code of a sweep stored at `path` may run, and return the sweep with the code that was checked.

    Raises:
        UsageError: Other users can change it, and it is not trusted.
        TaskError: A file is missing or cannot be read.
    """
    task = sweep.loaded_task
    has_code = names_user_code(task)
    code = code_of_task(task) if has_code else None
    checked = with_code(sweep, None if code is None or is_installed(code.root) else code.contents)
    if not has_code or (code is not None and is_accepted(code.content_hash)):
        return checked
    reason = list_writers(store, path)
    if code is not None:
        reason = next(iter(untrusted_reason(code, code.root / code.main, named=False)), reason)
    if reason is not None:
        location = task if code is None else code.root / code.main
        advice = "" if code is None else f", or {how_to_accept(code)}"
        raise UsageError(
            f"sweep {sweep.name!r} in the store names the code {location}, which is not executed: {reason}. Give the sweep's "
            f"file instead of its name{advice}"
        )
    return checked


def check_stored_code(prefix: str, code_hash: str, path: str, store: Store) -> None:
    """Check that code stored at `path` may run, given its hash or a prefix of it.

    Raises:
        UsageError: Only a prefix is given, other users can store code with this prefix, and it is not trusted.
    """
    if is_hash(prefix) or is_accepted(code_hash) or (reason := list_writers(store, path)) is None:
        return
    raise UsageError(
        f"code {code_hash} of the store, which --code-version {prefix} abbreviates, is not executed: {reason}. Read it, and "
        f"give the full hash to run it: --code-version {code_hash}"
    )


def list_writers(store: Store, path: str) -> str | None:
    """Return a sentence about other users who can write to a path of the store, or None."""
    if not store.is_shared:
        return None
    if store.local_folder is None:
        return f"it is unknown who can write to {store.url}"
    return next(iter(distrust_of_paths([Path(store.full_path(path))])), None)
