"""Two sweeps compared in a notebook: what they differ in, and whether they share their exponents."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from depthrate.orchestrator.notebook.sweep import StoreUrl, Sweep, Table

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Comparison:
    """Two tables: parameters whose values differ, and the rates that both sweeps have; a notebook shows both as HTML."""

    parameters: Table
    """A row a parameter, a column a sweep."""
    fits: Table
    """A row a curve that both have: the exponent of each and of both, and the p-value of the F test that they are one."""

    def df(self) -> pd.DataFrame:
        """Return the rates as a pandas frame."""
        return self.fits.frame

    def __repr__(self) -> str:
        return f"{self.parameters!r}\n{self.fits!r}"

    def _repr_html_(self) -> str:
        return self.parameters._repr_html_() + self.fits._repr_html_()


def compare(
    first: str | os.PathLike[str] | Sweep, second: str | os.PathLike[str] | Sweep, store: StoreUrl = None
) -> Comparison:
    """Compare two sweeps of a store as `depthrate compare` does: files, names of launches or `Sweep` objects.

    Raises:
        StoreError: there is no such store.
        ValueError: there is no such sweep.
    """
    import pandas as pd

    from depthrate.orchestrator.api.compare import compared
    from depthrate.orchestrator.api.find_sweep import find_sweep
    from depthrate.orchestrator.console.tables import counted
    from depthrate.storage.files.store import existing_store

    opened = existing_store(store)
    one, other = (
        each.checked(opened) if isinstance(each, Sweep) else find_sweep(os.fspath(each), opened)
        for each in (first, second)
    )
    found = compared((one, other), opened)
    names = (
        found.names if found.names[0] != found.names[1] else [f"{found.names[0]} (first)", f"{found.names[1]} (second)"]
    )
    values = [[name, *both] for name, both in found.parameters.items()]
    rows = [
        {"metric": fit["metric"], "x": fit["x"], "by": fit["by"][0] if fit["by"][0] == fit["by"][1] else fit["by"]}
        | {
            f"{place}_{key}": None if fit[place] is None else fit[place][key]
            for place in ("first", "second")
            for key in ("exponent", "ci_low", "ci_high", "n_points")
        }
        | {"common_exponent": fit["common_exponent"], "p_equal": fit["p_equal"]}
        for fit in found.fields()["fits"]
    ]
    said = " and ".join(f"{name} ({counted(size, 'trial')})" for name, size in zip(names, found.sizes, strict=True))
    shared = f"{counted(found.num_shared, 'trial is', 'trials are')} in both"
    differ = "" if values else "; parameters have the same values"
    both_fit = f"{counted(len(rows), 'curve')} that both have; p_equal: F test that they share the exponent"
    return Comparison(
        Table(f"{said}; {shared}{differ}", pd.DataFrame(values, columns=["parameter", *names])),
        Table(found.unpaired or both_fit, pd.DataFrame(rows)),
    )
