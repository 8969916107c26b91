"""depthrate for notebooks: open a store, define a task, load a sweep, fit rates. Only re-exports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from storage.files import StoreError
from storage.query import QueryError, Results
from storage.query import open_results as open
from sweeps.search_space import Measure, Prune, Search
from sweeps.sweep import FitRequest, Sweep, SweepError, load_sweep
from tasks.task import Interrupted, Pruned, TaskError, task

if TYPE_CHECKING:
    from tasks.fit import common_exponent, cutoff, fit_many, fit_rates, predict

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
    import tasks.fit

    return getattr(tasks.fit, name)
