"""Which sweep is meant by a file's name, the name of a launch, or that of a shipped sweep."""

from __future__ import annotations

import sys
from pathlib import Path

from depthrate.orchestrator.plan import CheckedSweep, check_sweep
from depthrate.orchestrator.search.proposals import SearchView, with_search
from depthrate.orchestrator.usage import UsageError
from depthrate.storage.specs import newest_specs
from depthrate.storage.store import Store
from depthrate.sweeps.sweep import Sweep
from depthrate.sweeps.sweep_file import load_sweep, sweep_of_spec


def find_sweep(given: str, store: Store) -> tuple[CheckedSweep, SearchView | None]:
    """Return the sweep that is meant, a file, the last launch under a name, or a shipped one, and its search.

    Raises:
        ValueError: `SweepError`, `TaskError` or `ParameterError` for what there is not.
    """
    launched = newest_specs(store)
    is_launch = given in launched and not Path(given).is_file()
    sweep = sweep_of_spec(launched[given].spec) if is_launch else load_sweep(given)
    return with_search(check_sweep(sweep), store)


def planned_trials(given: str | None, store: Store) -> dict[str, list[str]]:
    """Return sweep -> identities of its trials, of the sweep that is meant or of all that were launched.

    Raises:
        ValueError: there is no such sweep, or none at all.
    """
    launched = newest_specs(store)
    if given is None and not launched:
        raise UsageError(f"store {store.url} has no sweep yet; run one: depthrate run quickstart")
    if given is not None and (given not in launched or Path(given).is_file()):
        sweep = load_sweep(given)
        return {sweep.name: _expanded(sweep, store)}
    planned = {}
    for spec in launched.values() if given is None else [launched[given]]:
        try:
            # a search that was killed knows more trials than were written down with its spec
            trial_ids = None if "search" in spec.spec else spec.trial_ids(store)
            planned[spec.sweep] = _expanded(sweep_of_spec(spec.spec), store) if trial_ids is None else trial_ids
        except ValueError as error:
            if given is not None:
                raise
            print(f"warning: sweep {spec.sweep}: {error}", file=sys.stderr)
    return planned


def _expanded(sweep: Sweep, store: Store) -> list[str]:
    checked, _ = with_search(check_sweep(sweep), store)
    return [trial.trial_id for trial in checked.trials]
