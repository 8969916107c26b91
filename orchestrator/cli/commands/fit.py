"""`depthrate fit`: fit, save and print a sweep's rates. With options, print an ad hoc fit."""

from typing import Any

import click

from depthrate.orchestrator.api.find_sweep import find_sweep
from depthrate.orchestrator.api.fit import changed_requests, fit_sweep
from depthrate.orchestrator.cli.options import declared, json_option, store_option, sweep_argument, wide_option
from depthrate.orchestrator.console.errors import UsageError, next_call
from depthrate.orchestrator.console.fit_table import print_fits
from depthrate.orchestrator.console.tables import counted, make_console, print_json, print_warnings
from depthrate.storage.files.store import existing_store


@declared(__doc__)
@sweep_argument("sweep")
@store_option
@click.option("--metric", help="Metric to fit instead of the sweep's fits.")
@click.option("--x", help="Parameter to fit over. Default: depth.")
@click.option("--by", multiple=True, help="Parameter with one curve per value. Repeatable.")
@click.option("--layer", type=int, help="Layer to fit, -2 for the one before the last. Default: the last.")
@click.option("--where", help="SQL condition over results that selects trials.")
@click.option("--x-min", type=float, help="Lower cut-off of x.")
@click.option("--unconverged", help="Unconverged trials: keep or drop.")
@click.option("--target", type=float, help="Estimate the x at which the metric has this value.")
@json_option
@wide_option
def command(sweep: str, store: str | None, json: bool, wide: bool, by: tuple[str, ...], **options: Any) -> None:
    opened = existing_store(store)
    changes = {name: value for name, value in {"by": list(by) or None, **options}.items() if value is not None}
    checked, view = find_sweep(sweep, opened)
    if not changes and not checked.sweep.fit:
        name = checked.sweep.name
        raise UsageError(f"sweep {name!r} requests no fit. Add one, for example fit: [{{metric: nc1, x: depth}}]")
    result = fit_sweep(checked, opened, view, changed_requests(checked.sweep, changes) if changes else None)
    if changes and not any(curve.rows for curve in result.curves):
        given = ", ".join(f"{name} {value}" for name, value in changes.items())
        counts = f"{counted(len(checked.trials), 'trial')} of sweep {checked.sweep.name!r}"
        left_out = "".join(f". Left out: {curve.excluded_text}" for curve in result.curves[:1])
        raise UsageError(f"nothing to fit: none of {counts} is committed with a value for {given}{left_out}")
    console = make_console()
    print_warnings(result.warnings)
    if json:
        print_json(result.rows)
        return
    more = "--wide" if changes else next_call("fit", checked.sweep.name, opened.url, "--wide")
    print_fits(console, result.curves, wide=wide, more=more)
    if changes:
        console.print("not saved. To save a fit, add it under the key fit of the sweep file.")
    print_warnings(result.problems)
