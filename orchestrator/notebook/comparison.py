"""Comparison of two sweeps in a notebook: differing parameters, and whether exponents are equal."""

import os
from dataclasses import dataclass

import pandas as pd

from depthrate.orchestrator.api.compare import compare_fits
from depthrate.orchestrator.api.find_sweep import find_sweep
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.notebook.sweep import StoreUrl, Sweep, Table
from depthrate.storage.files.store import existing_store


@dataclass(frozen=True)
class Comparison:
    """Two tables, shown as HTML in a notebook: differing parameters, and the fits of both sweeps."""

    parameters: Table
    """One row per parameter with different values, one column per sweep."""
    fits: Table
    """One row per curve of both sweeps: the exponents, the common exponent, and the p-value of the F test of equality.
    """

    def df(self) -> pd.DataFrame:
        """Return the fits as a pandas frame."""
        return self.fits.frame

    def __repr__(self) -> str:
        return f"{self.parameters!r}\n{self.fits!r}"

    def _repr_html_(self) -> str:
        return self.parameters._repr_html_() + self.fits._repr_html_()


def compare(
    first: str | os.PathLike[str] | Sweep, second: str | os.PathLike[str] | Sweep, store: StoreUrl = None
) -> Comparison:
    """Compare two sweeps of a store, as `depthrate compare` does.

    Args:
        first: Sweep file, name of a launched sweep, or `Sweep`.
        second: The sweep to compare with.
        store: Folder or fsspec URL. Default: DEPTHRATE_STORE, else ./results.
    Returns:
        The parameters with different values, and the fits of both sweeps.
    Raises:
        StoreError: The store does not exist.
        ValueError: A sweep is unknown.
    """
    opened = existing_store(store)
    one, other = (
        sweep.checked(opened) if isinstance(sweep, Sweep) else find_sweep(os.fspath(sweep), opened)
        for sweep in (first, second)
    )
    comparison = compare_fits((one, other), opened)
    names = comparison.names
    if names[0] == names[1]:
        names = [f"{names[0]} (first)", f"{names[1]} (second)"]
    values = [[name, *both] for name, both in comparison.parameters.items()]
    rows = [
        {"metric": fit["metric"], "x": fit["x"], "by": fit["by"][0] if fit["by"][0] == fit["by"][1] else fit["by"]}
        | {
            f"{position}_{key}": None if fit[position] is None else fit[position][key]
            for position in ("first", "second")
            for key in ("exponent", "ci_low", "ci_high", "n_points")
        }
        | {"common_exponent": fit["common_exponent"], "p_equal": fit["p_equal"]}
        for fit in comparison.fields()["fits"]
    ]
    sizes = " and ".join(
        f"{name} ({counted(size, 'trial')})" for name, size in zip(names, comparison.sizes, strict=True)
    )
    shared = f"{counted(comparison.num_shared, 'trial is', 'trials are')} in both"
    differ = "" if values else ". All parameters have the same values"
    both_fit = f"{counted(len(rows), 'curve')} in both. p_equal: F test that both share the exponent"
    return Comparison(
        Table(f"{sizes}. {shared}{differ}", pd.DataFrame(values, columns=["parameter", *names])),
        Table(comparison.unpaired or both_fit, pd.DataFrame(rows)),
    )
