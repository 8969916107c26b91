"""`depthrate compare`: show how two sweeps differ, and whether they share exponents."""

from collections.abc import Sequence
from typing import Any

from depthrate.orchestrator.analysis.compare import FitPair
from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.analysis.preferred_model import adequate_power, preferred_models
from depthrate.orchestrator.api.compare import compare_fits
from depthrate.orchestrator.api.find_sweep import find_sweep
from depthrate.orchestrator.cli.options import declared, json_option, store_option, sweep_argument
from depthrate.orchestrator.console.tables import (
    counted,
    make_console,
    print_json,
    print_rows,
    print_table,
    with_interval,
)
from depthrate.storage.files.store import existing_store

MAX_VALUES_SHOWN = 6
"""Maximum number of values printed per parameter."""


def _listed(values: Sequence[Any]) -> str:
    text = ", ".join("null" if value is None else str(value) for value in values[:MAX_VALUES_SHOWN])
    return text + (f", ... {len(values)} values" if len(values) > MAX_VALUES_SHOWN else "")


def _pair_row(pair: FitPair) -> list[Any]:
    common = pair.stated_common
    both = "" if common is None else with_interval(common.exponent, common.ci_low, common.ci_high)
    p = None if common is None else "<0.001" if common.p_common < 0.001 else f"{common.p_common:.3f}"
    labels = pair.first.label(), pair.second.label()
    group = labels[0] if pair.first.by == pair.second.by else " / ".join(label or "all" for label in labels)
    metric = f"{pair.first.metric} over {pair.first.x}" if pair.first.x != "depth" else pair.first.metric
    return [metric, group, p, _exponent(pair.first), _exponent(pair.second), both]


def _exponent(curve: FittedCurve) -> str:
    power, preference = adequate_power(curve), preferred_models(curve)
    if power is None:
        return preference.text if curve.num_waiting else "no power law fits" if curve.power else "no fit"
    return with_interval(power.exponent, power.ci_low, power.ci_high)


@declared(__doc__)
@sweep_argument("first")
@sweep_argument("second")
@store_option
@json_option
def command(first: str, second: str, store: str | None, json: bool) -> None:
    opened, console = existing_store(store), make_console()
    comparison = compare_fits((find_sweep(first, opened), find_sweep(second, opened)), opened)
    if json:
        print_json(comparison.fields())
        return
    for position, name, size in zip(("first", "second"), comparison.names, comparison.sizes, strict=True):
        console.print(f"{position}: {name}, {counted(size, 'trial')}")
    console.print(f"{counted(comparison.num_shared, 'trial is', 'trials are')} in both")
    rows = [[name, *map(_listed, both)] for name, both in comparison.parameters.items()]
    if rows:
        print_table(console, ["parameter", *comparison.names], rows)
    else:
        console.print("parameters: the same values")
    if comparison.pairs:
        head = ["metric", "group", "p(equal)", "exponent of first", "of second", "of both"]
        print_rows(console, head, list(map(_pair_row, comparison.pairs)), optional=["group"], more="see --json")
        console.print("p(equal): F test that both share the exponent, over the seeds in both")
    else:
        console.print(comparison.unpaired)
