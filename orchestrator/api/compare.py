"""Compare two sweeps: parameters whose values differ, and the curves that both have fitted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from depthrate.orchestrator.analysis.compare import FitPair, pair_up, unpaired_text
from depthrate.orchestrator.analysis.fit_curves import fit_curves
from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.launch.launch_plan import CheckedSweep
from depthrate.orchestrator.search.proposals import SearchView, fitted_trials
from depthrate.storage.files.store import Store

Found = tuple[CheckedSweep, SearchView | None]
"""A sweep with all its trials so far, and its search."""


@dataclass(frozen=True)
class Compared:
    """What two sweeps differ in, and the curves that both have."""

    names: list[str]
    sizes: list[int]
    """Trials of each."""
    num_shared: int
    """Trials that both ask for."""
    parameters: dict[str, tuple[list[Any], list[Any]]]
    """Parameter -> the values it takes in each, of those that differ."""
    pairs: list[FitPair]
    unpaired: str
    """Why there is no pair; empty where there is one."""

    def fields(self) -> dict[str, Any]:
        """Return it as --json prints it."""
        return {
            "sweeps": self.names,
            "trials": dict(zip(self.names, self.sizes, strict=True)),
            "shared": self.num_shared,
            "parameters": self.parameters,
            "fits": [_pair_json(pair) for pair in self.pairs],
        }


def compared(found: tuple[Found, Found], store: Store) -> Compared:
    """Fit the curves of two sweeps and compare them, parameter by parameter and curve by curve."""
    curves = [
        fit_curves(results_of(store, each.task), each.sweep.fit, fitted_trials(each, view), each.task)
        for each, view in found
    ]
    first, second = (each for each, _ in found)
    pairs, names = list(pair_up(curves[0], curves[1])), [first.sweep.name, second.sweep.name]
    return Compared(
        names=names,
        sizes=[len(first.trials), len(second.trials)],
        num_shared=len({t.trial_id for t in first.trials} & {t.trial_id for t in second.trials}),
        parameters=differing_parameters(first, second),
        pairs=pairs,
        unpaired="" if pairs else unpaired_text(names, curves),
    )


def differing_parameters(first: CheckedSweep, second: CheckedSweep) -> dict[str, tuple[list[Any], list[Any]]]:
    """Return parameter -> the values it takes in each sweep, of those parameters whose values differ."""
    values = [_values(each) for each in (first, second)]
    names = dict.fromkeys([*values[0], *values[1]])
    both = {name: (values[0].get(name, []), values[1].get(name, [])) for name in names}
    tasks = {"task": ([first.task.name], [second.task.name])} if first.task.name != second.task.name else {}
    return tasks | {name: pair for name, pair in both.items() if _keys(pair[0]) != _keys(pair[1])}


def _values(checked: CheckedSweep) -> dict[str, list[Any]]:
    found: dict[str, dict[str, Any]] = {}
    for trial in checked.trials:
        for name, value in trial.params.items():
            found.setdefault(name, {})[json.dumps(value, sort_keys=True)] = value
    return {name: _sorted(list(of.values())) for name, of in found.items()}


def _sorted(values: list[Any]) -> list[Any]:
    return sorted(
        values, key=lambda value: (not isinstance(value, int | float), value if _is_number(value) else 0, str(value))
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _keys(values: Sequence[Any]) -> set[str]:
    return {json.dumps(value, sort_keys=True) for value in values}


def _pair_json(pair: FitPair) -> Mapping[str, Any]:
    common = pair.common
    fields: dict[str, Any] = {"metric": pair.first.metric, "x": pair.first.x, "by": [pair.first.by, pair.second.by]}
    for name, curve in (("first", pair.first), ("second", pair.second)):
        power = curve.power
        fields[name] = (
            None
            if power is None
            else {
                "exponent": power.exponent,
                "ci_low": power.ci_low,
                "ci_high": power.ci_high,
                "n_points": power.n_points,
            }
        )
    fields["common_exponent"] = None if common is None else common.exponent
    return fields | {"p_equal": None if common is None else common.p_common}
