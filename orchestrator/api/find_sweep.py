"""Find sweeps by file, by name of a launch, or by name of a shipped sweep, and their trials."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.console.tables import listed
from depthrate.storage.catalog.specs import LaunchedSpec, find_launched, newest_specs, read_specs, write_list
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.json_objects import parse_object
from depthrate.storage.files.paths import spec_path
from depthrate.storage.files.store import NoStoreError, Store, StoreError, existing_store
from depthrate.storage.query.membership import read_membership
from depthrate.sweeps.trial import Trial, Trials

# modules that expand sweeps are imported only when needed, since status reads the lists of trials that launches write
if TYPE_CHECKING:
    from depthrate.orchestrator.launch.launch_plan import CheckedSweep
    from depthrate.orchestrator.search.search_view import SearchView
    from depthrate.sweeps.spec import SweepSpec
    from depthrate.tasks.interface import Task


MAX_SWEEPS_SHOWN = 20
"""Maximum number of sweeps listed in an error."""


def find_sweep(sweep_ref: str, store: Store) -> tuple[CheckedSweep, SearchView | None]:
    """Find a sweep by file, name of its last launch, or name of a shipped sweep. Return it with its search.

    Raises:
        ValueError: `SweepError`, `TaskError` or `ParameterError`: the sweep is unknown or invalid.
    """
    found = _launched(sweep_ref, store)
    if found is None:
        return _checked(_load(sweep_ref, store), store)
    name, launched = found
    return find_launch(launched, store) if name == launched.sweep else (_committed(name, launched, store), None)


def _launched(sweep_ref: str, store: Store) -> tuple[str, LaunchedSpec] | None:
    """Return the launch of a name as `find_launched` does, or None for a file or another name.

    Raises:
        UsageError: The sweep has no launch of this number.
    """
    found = None if Path(sweep_ref).is_file() else find_launched(store, sweep_ref)
    sweep, at, number = sweep_ref.partition("@")
    if found is None and at and (numbers := [spec.number for spec in read_specs(store) if spec.sweep == sweep]):
        known = listed([f"{sweep}@{count}" for count in sorted(numbers)], MAX_SWEEPS_SHOWN)
        raise UsageError(f"no launch {number} of sweep {sweep!r} is recorded in {store.url}. Recorded: {known}")
    return found


def _committed(name: str, launched: LaunchedSpec, store: Store) -> CheckedSweep:
    """Return a launch with its committed trials: of `<sweep>@<number>`, those that only it requested."""
    from depthrate.orchestrator.analysis.open_results import results_of
    from depthrate.orchestrator.launch.launch_plan import CheckedSweep

    sweep = launched_sweep(launched, store).replace(name=name, search=None)
    task = sweep.load_task()
    rows = results_of(store, task).for_sweep(name).sql("select trial_id, task, task_version, params from trials")
    defaults = {parameter.name: parameter.default for parameter in task.schema.values()}
    place = {trial_id: place for place, trial_id in enumerate(launched.trial_ids(store) or ())}
    ordered = sorted(rows.fetchall(), key=lambda row: place.get(row[0], len(place)))
    trials = Trials(Trial(i, name, version, defaults | parse_object(p)) for i, name, version, p in ordered)
    return CheckedSweep(sweep, task, trials, _varied(sweep, task))


def _varied(sweep: SweepSpec, task: Task) -> frozenset[str]:
    """Return the parameters with several values in a sweep."""
    from depthrate.sweeps.expand import expand

    values: dict[str, set[str]] = {}
    for trial in expand(sweep, task):
        for name, value in trial.params.items():
            values.setdefault(name, set()).add(repr(value))
    return frozenset(name for name, of in values.items() if len(of) > 1)


def find_launch(launched: LaunchedSpec, store: Store) -> tuple[CheckedSweep, SearchView | None]:
    """Return the sweep of a launch, and its search.

    If its spec now expands to other trials, because the version of the task was raised, it has the committed ones.

    Raises:
        ValueError: As in `find_sweep`.
    """
    checked, view = _checked(launched_sweep(launched, store), store)
    requested = launched.trial_ids(store) if view is None else None
    if requested and set(requested).isdisjoint(checked.trials.ids):
        return _committed(launched.sweep, launched, store), None
    return checked, view


def sweep_to_launch(sweep_ref: str, overrides: Mapping[str, object], url: str | None) -> SweepSpec:
    """Return the sweep of a file, of a shipped sweep or, failing both, of the newest launch of this name, with overrides.

    Raises:
        ValueError: The sweep is unknown or cannot be read.
    """
    from depthrate.sweeps.errors import NoSweepFileError
    from depthrate.sweeps.load import changed_sweep, load_sweep

    try:
        return load_sweep(sweep_ref, overrides)
    except NoSweepFileError as error:
        try:
            store = existing_store(url)
        except NoStoreError:
            raise error from None  # the first launch creates the store
        except StoreError as refusal:
            raise NoSweepFileError(f"{error}. Launches cannot be checked: {refusal}") from None
    if (found := _launched(sweep_ref, store)) is None:
        return _load(sweep_ref, store)  # raises, and lists the sweeps
    return changed_sweep(launched_sweep(found[1], store), overrides)


def planned_trials(
    sweep_ref: str | None, store: Store, on_warning: Callable[[str], None] = lambda text: None
) -> dict[str, list[str]]:
    """Map one sweep, or every launched sweep, to its trial_ids.

    Args:
        sweep_ref: Sweep file, or name of a shipped or launched sweep. None: every launched sweep.
        store: Store of the sweeps.
        on_warning: Called with the name and the error of each sweep that is left out.

    Raises:
        ValueError: The sweep is unknown, or the store has no sweeps.
    """
    launched = newest_specs(store)
    if sweep_ref is None and not launched:
        raise UsageError(f"store {store.url} has no sweeps yet. Run one: depthrate run quickstart")
    found = None if sweep_ref is None else _launched(sweep_ref, store)
    if sweep_ref is not None and found is None:
        sweep = _load(sweep_ref, store)
        return {sweep.name: _expanded(sweep, store)}
    if found is not None and found[0] != found[1].sweep:
        return {found[0]: sorted(read_membership(store, take_snapshot(store)).of_sweep.get(found[0], ()))}
    planned = {}
    for spec in launched.values() if found is None else [found[1]]:
        try:
            # an interrupted search may have more trials than its spec lists
            trial_ids = None if "search" in spec.spec else spec.trial_ids(store)
            planned[spec.sweep] = _expanded(launched_sweep(spec, store), store) if trial_ids is None else trial_ids
        except ValueError as error:
            if sweep_ref is not None:
                raise
            on_warning(f"sweep {spec.sweep}: {error}")
    return planned


def write_missing_lists(store: Store, *, removed: str | None = None) -> None:
    """Write missing lists of requested trials: for searches, and in place of corrupt lists.

    Args:
        store: Store of the launches.
        removed: Sweep about to be removed. Its list may stay missing, as after an interrupted removal.

    Raises:
        ValueError: A sweep can no longer be expanded, so its requested trials are unknown.
    """
    newest = newest_specs(store)
    for spec in unlisted_launches(store):
        try:
            requested = _expanded(launched_sweep(spec, store), store)
            digest = hashlib.sha256("\n".join(requested).encode()).hexdigest()
            if spec.trials_sha256 != digest and "search" not in spec.spec and spec != newest[spec.sweep]:
                raise UsageError(f"its launch {spec.spec_hash} now expands to other trials")
        except ValueError as error:
            if spec.sweep == removed:
                continue
            raise UsageError(
                f"the trials of sweep {spec.sweep!r} are unknown ({error}), so nothing can be removed. "
                "Make its task available, or remove the folder of that sweep in sweeps/."
            ) from None
        if requested != spec.trial_ids(store):
            write_list(store, spec, requested)


def unlisted_launches(store: Store) -> list[LaunchedSpec]:
    """Return the launches without an intact list of trials, and the newest launch of each search."""
    searches = [spec for spec in newest_specs(store).values() if "search" in spec.spec]
    return [*searches, *(s for s in read_specs(store) if s not in searches and s.trial_ids(store) is None)]


def _expanded(sweep: SweepSpec, store: Store) -> list[str]:
    checked, _ = _checked(sweep, store)
    return checked.trials.ids


def _checked(sweep: SweepSpec, store: Store) -> tuple[CheckedSweep, SearchView | None]:
    from depthrate.orchestrator.launch.launch_plan import check_sweep
    from depthrate.orchestrator.search.search_view import with_search

    return with_search(check_sweep(sweep), store)


def _load(sweep_ref: str, store: Store) -> SweepSpec:
    from depthrate.sweeps.errors import NoSweepFileError
    from depthrate.sweeps.load import load_sweep

    try:
        return load_sweep(sweep_ref)
    except NoSweepFileError as error:
        names = listed(sorted(newest_specs(store)), MAX_SWEEPS_SHOWN) or "none yet"
        raise NoSweepFileError(f"{error}. Sweeps in {store.url}: {names}") from None


def launched_sweep(launched: LaunchedSpec, store: Store) -> SweepSpec:
    """Return the sweep of a launch in a store.

    Raises:
        ValueError: It is not a valid sweep, or its code is not trusted.
    """
    from depthrate.orchestrator.code.permission import check_stored_sweep
    from depthrate.sweeps.load import sweep_of_spec

    return check_stored_sweep(sweep_of_spec(launched.spec), spec_path(launched.sweep, launched.spec_hash), store)
