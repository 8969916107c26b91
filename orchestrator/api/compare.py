"""Compare two sweeps: parameters with different values, and the curves fitted by both."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from depthrate.orchestrator.analysis.compare import FitPair, pair_up, unpaired_text
from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.api.fit import fits_of
from depthrate.orchestrator.launch.launch_plan import CheckedSweep
from depthrate.orchestrator.monitor.status import sweep_status
from depthrate.orchestrator.report.curve_groups import sort_key
from depthrate.orchestrator.search.search_view import SearchView
from depthrate.storage.files.store import Store

FoundSweep = tuple[CheckedSweep, SearchView | None]
"""A sweep with its trials so far, and its search."""


@dataclass(frozen=True)
class SweepComparison:
    """Differing parameters of two sweeps, and the curves fitted by both."""

    names: list[str]
    sizes: list[int]
    """Number of trials of each sweep."""
    num_shared: int
    """Number of trials in both sweeps."""
    parameters: dict[str, tuple[list[Any], list[Any]]]
    """Parameter with different values -> its values in each sweep."""
    pairs: list[FitPair]
    unpaired: str
    """Reason why the sweeps share no curve. Empty if they share one."""

    def fields(self) -> dict[str, Any]:
        """Return the JSON for --json."""
        return {
            "sweeps": self.names,
            "trials": dict(zip(self.names, self.sizes, strict=True)),
            "shared": self.num_shared,
            "parameters": self.parameters,
            "fits": [_pair_json(pair) for pair in self.pairs],
        }


def compare_fits(sweeps: tuple[FoundSweep, FoundSweep], store: Store) -> SweepComparison:
    """Fit the curves of two sweeps and compare them, parameter by parameter and curve by curve."""
    curves = []
    for sweep, view in sweeps:
        requests = [request for request in sweep.sweep.fit if request.is_curve]
        results = results_of(store, sweep.task)
        unfinished = sweep_status(sweep.sweep.name, sweep.trials.ids, results.snapshot, store).unfinished
        curves.append(fits_of(sweep, view, results, requests, unfinished).curves)
    first, second = (sweep for sweep, _ in sweeps)
    pairs, names = list(pair_up(curves[0], curves[1])), [first.sweep.name, second.sweep.name]
    return SweepComparison(
        names=names,
        sizes=[len(first.trials), len(second.trials)],
        num_shared=len(set(first.trials.ids) & set(second.trials.ids)),
        parameters=_differing_parameters(first, second),
        pairs=pairs,
        unpaired="" if pairs else unpaired_text(names, curves),
    )


def _differing_parameters(first: CheckedSweep, second: CheckedSweep) -> dict[str, tuple[list[Any], list[Any]]]:
    """Map each parameter with different values to its values in both sweeps."""
    values = [_values(first), _values(second)]
    names = dict.fromkeys([*values[0], *values[1]])
    both = {name: (values[0].get(name, []), values[1].get(name, [])) for name in names}
    tasks = {"task": ([first.task.name], [second.task.name])} if first.task.name != second.task.name else {}
    return tasks | {name: pair for name, pair in both.items() if _keys(pair[0]) != _keys(pair[1])}


def _values(checked: CheckedSweep) -> dict[str, list[Any]]:
    values: dict[str, dict[str, Any]] = {}
    for trial in checked.trials:
        for name, value in trial.params.items():
            values.setdefault(name, {})[json.dumps(value, sort_keys=True)] = value
    return {name: sorted(unique.values(), key=lambda value: sort_key((value,))) for name, unique in values.items()}


def _keys(values: Sequence[Any]) -> set[str]:
    return {json.dumps(value, sort_keys=True) for value in values}


def _pair_json(pair: FitPair) -> Mapping[str, Any]:
    common = pair.common
    fields: dict[str, Any] = {"metric": pair.first.metric, "x": pair.first.x, "by": [pair.first.by, pair.second.by]}
    for name, curve in (("first", pair.first), ("second", pair.second)):
        power = curve.power
        names = ("exponent", "ci_low", "ci_high", "n_points")
        fields[name] = None if power is None else {key: getattr(power, key) for key in names}
    fields["common_exponent"] = None if common is None else common.exponent
    return fields | {"p_equal": None if common is None else common.p_common}
