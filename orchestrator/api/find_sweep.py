"""Which sweep is meant by a file's name, the name of a launch, or that of a shipped sweep."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.console.tables import print_line
from depthrate.storage.catalog.specs import LaunchedSpec, newest_specs, read_specs, write_list
from depthrate.storage.files.paths import spec_path
from depthrate.storage.files.store import NoStoreError, Store, StoreError, existing_store

# what expands a sweep is imported where one is expanded: status reads what was written down at the launch
if TYPE_CHECKING:
    from depthrate.orchestrator.launch.launch_plan import CheckedSweep
    from depthrate.orchestrator.search.proposals import SearchView
    from depthrate.sweeps.spec import SweepSpec


MAX_SWEEPS_SHOWN = 20
"""Sweeps of a store that an error names."""


def find_sweep(given: str, store: Store) -> tuple[CheckedSweep, SearchView | None]:
    """Return the sweep that is meant, a file, the last launch under a name, or a shipped one, and its search.

    Raises:
        ValueError: `SweepError`, `TaskError` or `ParameterError` for what there is not.
    """
    launched = newest_specs(store)
    is_launch = given in launched and not Path(given).is_file()
    return find_launch(launched[given], store) if is_launch else _checked(_load(given, launched, store), store)


def find_launch(launched: LaunchedSpec, store: Store) -> tuple[CheckedSweep, SearchView | None]:
    """Return the sweep of a launch, and its search.

    Raises:
        ValueError: as `find_sweep`.
    """
    return _checked(launched_sweep(launched, store), store)


def sweep_to_launch(given: str, overrides: Mapping[str, object], url: str | None) -> SweepSpec:
    """Return the sweep of a file, a shipped one, or else that of the newest launch under a name.

    Raises:
        ValueError: there is no such sweep, or it cannot be read.
    """
    from depthrate.sweeps.errors import NoSweepFileError
    from depthrate.sweeps.load import changed_sweep, load_sweep

    try:
        return load_sweep(given, overrides)
    except NoSweepFileError as error:
        try:
            store = existing_store(url)
        except NoStoreError:
            raise error from None  # a first launch makes its store
        except StoreError as refusal:
            raise NoSweepFileError(f"{error}; whether it was launched is not known: {refusal}") from None
    launched = newest_specs(store)
    if given not in launched:
        return _load(given, launched, store)  # which says what there is
    return changed_sweep(launched_sweep(launched[given], store), overrides)


def planned_trials(given: str | None, store: Store) -> dict[str, list[str]]:
    """Return sweep -> identities of its trials, of the sweep that is meant or of all that were launched.

    Raises:
        ValueError: there is no such sweep, or none at all.
    """
    launched = newest_specs(store)
    if given is None and not launched:
        raise UsageError(f"store {store.url} has no sweep yet; run one: depthrate run quickstart")
    if given is not None and (given not in launched or Path(given).is_file()):
        sweep = _load(given, launched, store)
        return {sweep.name: _expanded(sweep, store)}
    planned = {}
    for spec in launched.values() if given is None else [launched[given]]:
        try:
            # a search that was killed knows more trials than were written down with its spec
            trial_ids = None if "search" in spec.spec else spec.trial_ids(store)
            planned[spec.sweep] = _expanded(launched_sweep(spec, store), store) if trial_ids is None else trial_ids
        except ValueError as error:
            if given is not None:
                raise
            print_line(f"warning: sweep {spec.sweep}: {error}", stderr=True)
    return planned


def write_missing_lists(store: Store, *, removed: str | None = None) -> None:
    """Write down which trials every launch asks for where a store does not say: searches, early versions, damaged lists.

    Of the sweep that is about to be `removed` a list may stay missing: its removal was killed on the way.

    Raises:
        ValueError: a sweep cannot be expanded any more, so that nobody can say what it asks for.
    """
    newest = newest_specs(store)
    for spec in unlisted_launches(store):
        try:
            wanted = _expanded(launched_sweep(spec, store), store)
            digest = hashlib.sha256("\n".join(wanted).encode()).hexdigest()
            if spec.trials_sha256 not in (None, digest) and "search" not in spec.spec and spec != newest[spec.sweep]:
                raise UsageError(f"its launch {spec.spec_hash} asks for other trials today than it did then")
        except ValueError as error:
            if spec.sweep == removed:
                continue
            raise UsageError(
                f"which trials sweep {spec.sweep!r} asks for cannot be told ({error}); nothing is removed while that is so: "
                "make its task available, or remove that sweep's folder below sweeps/"
            ) from None
        if wanted != spec.trial_ids(store):
            write_list(store, spec, wanted)


def unlisted_launches(store: Store) -> list[LaunchedSpec]:
    """Return the launches whose list of trials is not there as it was written, and the newest of each search."""
    searches = [spec for spec in newest_specs(store).values() if "search" in spec.spec]
    return [*searches, *(s for s in read_specs(store) if s not in searches and s.trial_ids(store) is None)]


def _expanded(sweep: SweepSpec, store: Store) -> list[str]:
    checked, _ = _checked(sweep, store)
    return [trial.trial_id for trial in checked.trials]


def _checked(sweep: SweepSpec, store: Store) -> tuple[CheckedSweep, SearchView | None]:
    from depthrate.orchestrator.launch.launch_plan import check_sweep
    from depthrate.orchestrator.search.proposals import with_search

    return with_search(check_sweep(sweep), store)


def _load(given: str, launched: Iterable[str], store: Store) -> SweepSpec:
    from depthrate.sweeps.errors import NoSweepFileError
    from depthrate.sweeps.load import load_sweep

    try:
        return load_sweep(given)
    except NoSweepFileError as error:
        names = sorted(launched)
        there = ", ".join(names[:MAX_SWEEPS_SHOWN]) + (
            f" and {len(names) - MAX_SWEEPS_SHOWN} more" if len(names) > MAX_SWEEPS_SHOWN else ""
        )
        raise NoSweepFileError(f"{error}; sweeps of {store.url}: {there or 'none yet'}") from None


def launched_sweep(launched: LaunchedSpec, store: Store) -> SweepSpec:
    """Return the sweep of a launch that a store has written down.

    Raises:
        ValueError: it is no sweep, or its code is not to be executed because a store says so.
    """
    from depthrate.orchestrator.code.permission import check_stored_sweep
    from depthrate.sweeps.load import sweep_of_spec

    sweep = sweep_of_spec(launched.spec)
    check_stored_sweep(sweep, spec_path(launched.sweep, launched.spec_hash), store)
    return sweep
