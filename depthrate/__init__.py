"""depthrate for notebooks: open a store, define a task, load a sweep, fit rates. Only re-exports, and a link to each folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from depthrate.storage.query import QueryError, Results
from depthrate.storage.query import open_results as open
from depthrate.storage.store import StoreError
from depthrate.sweeps.search_space import Measure, Prune, Search
from depthrate.sweeps.sweep import FitRequest, Sweep, SweepError, load_sweep
from depthrate.tasks.task import Interrupted, Pruned, TaskError, task

if TYPE_CHECKING:
    from depthrate.tasks.fits.rates import common_exponent, cutoff, fit_many, fit_rates, predict

__all__ = [
    "FitRequest",
    "Interrupted",
    "Measure",
    "Prune",
    "Pruned",
    "QueryError",
    "Results",
    "Search",
    "StoreError",
    "Sweep",
    "SweepError",
    "TaskError",
    "common_exponent",
    "cutoff",
    "fit_many",
    "fit_rates",
    "load_sweep",
    "open",
    "predict",
    "task",
]

_FITTING = ("common_exponent", "cutoff", "fit_many", "fit_rates", "predict")


def __getattr__(name: str) -> Any:
    """Import the fitting functions when they are asked for: scipy takes 0.3 s that a task's own file need not wait."""
    if name not in _FITTING:
        raise AttributeError(f"module 'depthrate' has no attribute {name!r}")
    from depthrate.tasks.fits import rates

    return getattr(rates, name)
