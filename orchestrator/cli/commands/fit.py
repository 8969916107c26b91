"""`depthrate fit`: fit, save and print a sweep's rates. With options, print an ad hoc fit. Fits any table as well."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from depthrate.orchestrator.analysis.table_fit import fit_table, read_table
from depthrate.orchestrator.api.find_sweep import find_sweep
from depthrate.orchestrator.api.fit import changed_requests, fit_sweep
from depthrate.orchestrator.cli.options import declared, json_option, store_option, wide_option
from depthrate.orchestrator.console.errors import UsageError, next_call
from depthrate.orchestrator.console.sheet_table import print_fits, print_sheet
from depthrate.orchestrator.console.tables import counted, make_console, print_json, print_warnings
from depthrate.orchestrator.sheet.value_sheets import table_fields, table_sheet
from depthrate.storage.files.store import existing_store
from depthrate.tasks.fits import DEFAULT_FORMS, LOSSES, MAX_VARIABLES
from depthrate.tasks.fits.models import FORMS, forms_of

_OF_SEVERAL = forms_of(MAX_VARIABLES)
FORMS_TEXT = (
    f"{', '.join(_OF_SEVERAL)}, and of one variable {', '.join(name for name in FORMS if name not in _OF_SEVERAL)}"
)


@declared(__doc__)
@click.argument("sweep", help="A sweep file, the name of a shipped or launched sweep, or a table with --y.")
@store_option
@click.option("--y", help="Column of the table (.csv, .parquet, .json) SWEEP to fit, instead of a sweep.")
@click.option("--over", help="With --y: column of the independent units, such as a run. Default: each row.")
@click.option(
    "--loss", type=click.Choice(LOSSES), help="Squares of residuals of log y (the default) or y, or Huber's function."
)
@click.option(
    "--huber",
    type=click.FloatRange(0, min_open=True),
    help="With loss huber: residual of log y from which it is linear.",
)
@click.option("--metric", help="Metric to fit instead of the sweep's fits.")
@click.option("--x", help="Parameter to fit over, two or three with commas between them, or layer. Default: depth.")
@click.option("--by", multiple=True, help="Parameter with one curve per value. Repeatable.")
@click.option(
    "--layer", type=float, help="Layer to fit, -2 for the one before the last, .5 for half. Default: the last."
)
@click.option("--where", help="SQL condition over results that selects trials.")
@click.option("--x-min", type=float, help="Lower cut-off of x.")
@click.option("--unconverged", help="Unconverged trials: keep or drop.")
@click.option("--model", multiple=True, help=f"Form to fit: {FORMS_TEXT}. Repeatable.")
@click.option("--target", type=float, help="Estimate the x at which the metric has this value.")
@json_option
@wide_option
def command(
    sweep: str, store: str | None, json: bool, wide: bool, by: tuple[str, ...], model: tuple[str, ...], **options: Any
) -> int:
    table = {name: options.pop(name) for name in ("y", "over")}
    if table["y"] is not None:
        losses = {"loss": options["loss"] or "log", "huber": options["huber"]}
        _fit_table(Path(sweep), options["x"] or "depth", **table, **losses, forms=model or DEFAULT_FORMS, json=json)
        return 0
    opened = existing_store(store)
    given_options = {"by": list(by) or None, "model": model or None, **options}
    changes = {name: value for name, value in given_options.items() if value is not None}
    if changes.get("layer", 0.5).is_integer():
        changes["layer"] = int(changes["layer"])
    if "," in changes.get("x", ""):
        changes["x"] = [name.strip() for name in changes["x"].split(",")]
    checked, view = find_sweep(sweep, opened)
    if not changes and not checked.sweep.fit:
        name = checked.sweep.name
        raise UsageError(f"sweep {name!r} requests no fit. Add one, for example fit: [{{metric: nc1, x: depth}}]")
    result = fit_sweep(checked, opened, view, changed_requests(checked.sweep, changes) if changes else None)
    if changes and not any(group.rows for group in result.groups):
        given = ", ".join(f"{name} {value}" for name, value in changes.items())
        counts = f"{counted(len(checked.trials), 'trial')} of sweep {checked.sweep.name!r}"
        left_out = "".join(f". Left out: {group.excluded_text}" for group in result.groups[:1])
        raise UsageError(f"nothing to fit: none of {counts} is committed with a value for {given}{left_out}")
    console, code = make_console(), 2 if result.missing else 0 if result.is_saved else 1
    print_warnings(result.warnings)
    if json:
        print_json(result.rows)
        return code
    more = "--wide" if changes else next_call("fit", checked.sweep.name, opened.url, "--wide")
    print_fits(console, result, wide=wide, more=more)
    if changes:
        console.print("not saved. To save a fit, add it under the key fit of the sweep file.")
    print_warnings(result.problems)
    return code


def _fit_table(
    path: Path,
    x: str,
    y: str,
    over: str | None,
    loss: str,
    huber: float | None,
    forms: Sequence[str],
    *,
    json: bool,
) -> None:
    """Fit the columns of a table, and print one row per form and variable."""
    names = [name.strip() for name in x.split(",")]
    found = fit_table(read_table(path), y, names, over, loss=loss, huber=huber, forms=forms)
    if json:
        print_json(table_fields(found))
        return
    print_sheet(make_console(), table_sheet(found))
