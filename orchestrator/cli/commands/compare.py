"""`depthrate compare`: show what two sweeps differ in, their fits side by side, and whether they share their exponents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from depthrate.orchestrator.analysis.compare import FitPair, pair_up
from depthrate.orchestrator.analysis.fit_curves import fit_curves
from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.cli.find_sweep import find_sweep
from depthrate.orchestrator.cli.options import declared, json_option, store_option, sweep_argument
from depthrate.orchestrator.console.tables import counted, make_console, print_json, print_rows, print_table, printable
from depthrate.orchestrator.launch.plan import CheckedSweep
from depthrate.orchestrator.search.proposals import SearchView, fitted_trials
from depthrate.storage.files.store import Store, existing_store

SHOWN = 6
"""Values of a parameter that are printed."""


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
    return Compared(
        names=[first.sweep.name, second.sweep.name],
        sizes=[len(first.trials), len(second.trials)],
        num_shared=len({t.trial_id for t in first.trials} & {t.trial_id for t in second.trials}),
        parameters=differing_parameters(first, second),
        pairs=list(pair_up(curves[0], curves[1])),
    )


def compare_sweeps(given: tuple[str, str], store: Store, as_json: bool, console: Console) -> None:
    """Print what two sweeps differ in and how their rates compare.

    Raises:
        ValueError: there is no such sweep.
    """
    found = compared((find_sweep(given[0], store), find_sweep(given[1], store)), store)
    if as_json:
        print_json(found.fields())
        return
    for place, name, size in zip(("first", "second"), found.names, found.sizes, strict=True):
        console.print(f"{place}: {name}, {counted(size, 'trial')}", highlight=False, markup=False)
    console.print(f"{counted(found.num_shared, 'trial is', 'trials are')} in both", highlight=False)
    rows = [[name, *map(_listed, both)] for name, both in found.parameters.items()]
    if rows:
        print_table(console, ["parameter", *found.names], rows)
    else:
        console.print("parameters: the same values", highlight=False)
    if found.pairs:
        head = ["metric", "group", "p(equal)", "exponent of first", "of second", "both"]
        compared_rows = [_pair_row(pair) for pair in found.pairs]
        shown = [i for i in range(len(head)) if head[i] != "group" or any(row[i] for row in compared_rows)]
        rows = [[row[i] for i in shown] for row in compared_rows]
        print_rows(console, [head[i] for i in shown], rows, more="--json has them")
        console.print("p(equal): F test that both share the exponent, over the seeds that both have", highlight=False)
    else:
        console.print("no fit that both ask for, of the same metric over the same x", highlight=False)


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


def _listed(values: Sequence[Any]) -> str:
    text = ", ".join("null" if value is None else str(value) for value in values[:SHOWN])
    return text + (f", ... {len(values)} values" if len(values) > SHOWN else "")


def _pair_row(pair: FitPair) -> list[Any]:
    common = pair.common
    both = "" if common is None else _with_interval(common.exponent, common.ci_low, common.ci_high)
    p = None if common is None else "<0.001" if common.p_common < 0.001 else f"{common.p_common:.3f}"
    group = pair.first.label() if pair.first.by == pair.second.by else f"{pair.first.label()} / {pair.second.label()}"
    metric = f"{pair.first.metric} over {pair.first.x}" if pair.first.x != "depth" else pair.first.metric
    return [metric, printable(group), p, _exponent(pair.first), _exponent(pair.second), both]


def _exponent(curve: FittedCurve) -> str:
    power = curve.power
    return "no fit" if power is None else _with_interval(power.exponent, power.ci_low, power.ci_high)


def _with_interval(exponent: float, low: float | None, high: float | None) -> str:
    return f"{exponent:.3f}" if low is None or high is None else f"{exponent:.3f} [{low:.3f}, {high:.3f}]"


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


@declared(__doc__)
@sweep_argument("first")
@sweep_argument("second")
@store_option
@json_option
def command(first: str, second: str, store: str | None, json: bool) -> None:
    compare_sweeps((first, second), existing_store(store), json, make_console())
