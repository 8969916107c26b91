"""`depthrate compare`: show how two sweeps differ, and whether they share exponents."""

from collections.abc import Sequence
from typing import Any

from depthrate.orchestrator.api.compare import compare_fits
from depthrate.orchestrator.api.find_sweep import find_sweep
from depthrate.orchestrator.cli.options import declared, json_option, store_option, sweep_argument
from depthrate.orchestrator.console.sheet_table import print_sheet
from depthrate.orchestrator.console.tables import counted, make_console, print_json, print_table
from depthrate.orchestrator.sheet.curve_sheets import pairs_sheet
from depthrate.storage.files.store import existing_store

MAX_VALUES_SHOWN = 6
"""Maximum number of values printed per parameter."""


def _listed(values: Sequence[Any]) -> str:
    text = ", ".join("null" if value is None else str(value) for value in values[:MAX_VALUES_SHOWN])
    return text + (f", ... {len(values)} values" if len(values) > MAX_VALUES_SHOWN else "")


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
        print_sheet(console, pairs_sheet(comparison.pairs), more="see --json")
    else:
        console.print(comparison.unpaired)
