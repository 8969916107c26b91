"""`depthrate fit`: fit the rates that a sweep asks for, keep them in the store, and print them; with options, others of
the moment.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Console

from depthrate.orchestrator.analysis.fit_curves import fit_curves
from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.cli.find_sweep import find_sweep
from depthrate.orchestrator.cli.fit_table import print_fits
from depthrate.orchestrator.cli.mixtures import mixtures
from depthrate.orchestrator.cli.options import declared, json_option, store_option, sweep_argument, wide_option
from depthrate.orchestrator.console.errors import UsageError, next_call
from depthrate.orchestrator.console.tables import make_console, print_json, print_warnings
from depthrate.orchestrator.launch.plan import CheckedSweep, check_filters
from depthrate.orchestrator.search.proposals import SearchView, fitted_trials
from depthrate.storage.catalog.fits import write_fits
from depthrate.storage.commits.source import Problem
from depthrate.storage.files.store import Store, existing_store
from depthrate.storage.query.results import Results
from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.load import parse_yaml
from depthrate.sweeps.spec import SweepSpec, check_fits, fit_request


def fit_sweep(given: str, store: Store, options: Mapping[str, Any], as_json: bool, *, wide: bool = False) -> None:
    """Fit what a sweep asks for, or what those of the options say instead that were given: not None, not empty.

    Raises:
        ValueError: there is no such sweep, it asks for no fit, or an option is not allowed.
    """
    changes = {name: value for name, value in options.items() if value not in (None, [])}
    if "x_min" in changes:
        changes["x_min"] = parse_yaml(changes["x_min"])  # a number, or auto
    checked, view = find_sweep(given, store)
    if changes:
        problems = fit_otherwise(make_console(), checked, store, view, changes, as_json, wide=wide)
    elif checked.sweep.fit:
        problems = fit_and_print(make_console(), checked, store, view, as_json, wide=wide)
    else:
        name = checked.sweep.name
        raise UsageError(f"sweep {name!r} asks for no fit; add to it, for example, fit: [{{metric: nc1, x: depth}}]")
    if not as_json:
        print_warnings(problems)


def fit_and_print(
    console: Console,
    checked: CheckedSweep,
    store: Store,
    view: SearchView | None,
    as_json: bool = False,
    *,
    wide: bool = False,
) -> Sequence[Problem]:
    """Fit a sweep's rates, keep and print them, and return what is wrong with the store.

    `view` is the sweep's search: its fits are about what it chose.
    """
    results = results_of(store, checked.task)
    _warn_of_mixtures(checked, results)
    curves = fit_curves(results, checked.sweep.fit, fitted_trials(checked, view), checked.task)
    rows = [row for curve in curves for row in curve.table_rows(checked.sweep.name)]
    if rows:
        try:
            write_fits(store, checked.sweep.name, rows)
        except OSError as error:
            print(f"warning: fits are not kept: {error}", file=sys.stderr)
    if as_json:
        print_json(rows)
    elif curves:
        print_fits(console, curves, wide=wide, more=next_call("fit", checked.sweep.name, store.url, "--wide"))
    return results.problems


def fit_otherwise(
    console: Console,
    checked: CheckedSweep,
    store: Store,
    view: SearchView | None,
    changes: Mapping[str, Any],
    as_json: bool,
    *,
    wide: bool = False,
) -> Sequence[Problem]:
    """Fit what the command line asks for and print it; the store's fits stay those of the sweep.

    Raises:
        SweepError: a metric or parameter is unknown, an option is not allowed.
    """
    requests = changed_requests(checked.sweep, changes)
    otherwise = checked.sweep.replace(fit=requests)
    check_fits(otherwise, checked.task)
    check_filters(otherwise, checked.task)
    results = results_of(store, checked.task)
    _warn_of_mixtures(checked, results)
    curves = fit_curves(results, requests, fitted_trials(checked, view), checked.task)
    if as_json:
        print_json([row for curve in curves for row in curve.table_rows(checked.sweep.name)])
    else:
        print_fits(console, curves, wide=wide, more="--wide")
        console.print(
            "not kept in the store; to keep a fit, write it under the key fit of the sweep file", highlight=False
        )
    return results.problems


def _warn_of_mixtures(checked: CheckedSweep, results: Results) -> None:
    for sentence in mixtures(checked, results):
        print(f"warning: {sentence}", file=sys.stderr)


def changed_requests(sweep: SweepSpec, changes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return one new request if a metric is given, else those of the sweep with these options."""
    if "metric" in changes:
        return (fit_request(changes),)
    if not sweep.fit:
        raise SweepError(f"sweep {sweep.name!r} asks for no fit; say which metric: --metric nc1")
    return tuple(fit_request({**request.spec(), **changes}) for request in sweep.fit)


@declared(__doc__)
@sweep_argument("sweep")
@store_option
@click.option("--metric", help="Fit this instead of what the sweep asks for.")
@click.option("--x", help="The parameter to fit over; default: depth.")
@click.option("--by", multiple=True, help="One curve for each value; several times.")
@click.option("--layer", type=int, help="Default: the last; -2 is the one before it.")
@click.option("--where", help="SQL over results: which trials.")
@click.option("--weights", help="equal, spread or robust.")
@click.option("--x-min", help="Lower cut-off: a number, or auto.")
@click.option("--unconverged", help="keep or drop.")
@click.option("--target", type=float, help="At which x is this value reached?")
@json_option
@wide_option
def command(sweep: str, store: str | None, json: bool, wide: bool, by: tuple[str, ...], **changes: Any) -> None:
    fit_sweep(sweep, existing_store(store), {"by": list(by) or None, **changes}, json, wide=wide)
