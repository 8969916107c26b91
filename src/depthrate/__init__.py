"""The Python interface of depthrate: define tasks, load and run sweeps, open stores, fit exponents.

This folder contains links to the five folders of the code. Public names are imported on first use, so that a command
that only reads a table does not import torch.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from depthrate.orchestrator.notebook.comparison import Comparison, compare
    from depthrate.orchestrator.notebook.results import open_results as open
    from depthrate.orchestrator.notebook.sweep import RunError, Sweep, load
    from depthrate.orchestrator.notebook.table_fit import fit
    from depthrate.storage.files.store import StoreError
    from depthrate.storage.query.results import Results
    from depthrate.storage.query.sql_checks import QueryError
    from depthrate.sweeps.errors import SweepError
    from depthrate.sweeps.spec import FinalRuns, FitRequest, Prune, Search
    from depthrate.tasks.figure_request import FigureRequest
    from depthrate.tasks.fits.collapse import fit_collapse
    from depthrate.tasks.fits.common_exponent import common_exponent
    from depthrate.tasks.fits.layer_law import fit_layers
    from depthrate.tasks.fits.rates import fit_many, fit_rates, predict
    from depthrate.tasks.function_task import task
    from depthrate.tasks.interface import Interrupted, Pruned, TaskError
    from depthrate.tasks.measures.geodesic import along_geodesic, geodesic
    from depthrate.tasks.measures.geometry import effective_rank, intrinsic_dimension, linear_cka, regression_collapse
    from depthrate.tasks.measures.labelled import FeaturesError
    from depthrate.tasks.measures.linear_probe import probe_accuracy, probe_r2
    from depthrate.tasks.measures.measure import measure
    from depthrate.tasks.measures.stream import StreamingMetrics
    from depthrate.tasks.metric import Metric
    from depthrate.tasks.supervised.probe import probe

# Read by the libraries when they are loaded. NumPy's threads sleep when idle, instead of spinning for .1 to .2 processor
# seconds. DuckDB returns a query's memory, instead of keeping it for the next one.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
os.environ.setdefault("DUCKDB_JE_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")

__all__ = [
    "Comparison",
    "FeaturesError",
    "FigureRequest",
    "FinalRuns",
    "FitRequest",
    "Interrupted",
    "Metric",
    "Prune",
    "Pruned",
    "QueryError",
    "Results",
    "RunError",
    "Search",
    "StoreError",
    "StreamingMetrics",
    "Sweep",
    "SweepError",
    "TaskError",
    "along_geodesic",
    "common_exponent",
    "compare",
    "effective_rank",
    "fit",
    "fit_collapse",
    "fit_layers",
    "fit_many",
    "fit_rates",
    "geodesic",
    "intrinsic_dimension",
    "linear_cka",
    "load",
    "measure",
    "open",
    "predict",
    "probe",
    "probe_accuracy",
    "probe_r2",
    "regression_collapse",
    "task",
]

_HOMES = {
    "orchestrator.notebook.comparison": ("Comparison", "compare"),
    "orchestrator.notebook.sweep": ("RunError", "Sweep", "load"),
    "orchestrator.notebook.table_fit": ("fit",),
    "storage.query.sql_checks": ("QueryError",),
    "storage.query.results": ("Results",),
    "storage.files.store": ("StoreError",),
    "sweeps.errors": ("SweepError",),
    "sweeps.spec": ("FinalRuns", "FitRequest", "Prune", "Search"),
    "tasks.figure_request": ("FigureRequest",),
    "tasks.fits.collapse": ("fit_collapse",),
    "tasks.fits.common_exponent": ("common_exponent",),
    "tasks.fits.layer_law": ("fit_layers",),
    "tasks.fits.rates": ("fit_many", "fit_rates", "predict"),
    "tasks.metric": ("Metric",),
    "tasks.measures.labelled": ("FeaturesError",),
    "tasks.measures.linear_probe": ("probe_accuracy", "probe_r2"),
    "tasks.measures.measure": ("measure",),
    "tasks.measures.stream": ("StreamingMetrics",),
    "tasks.supervised.probe": ("probe",),
    "tasks.measures.geometry": ("effective_rank", "intrinsic_dimension", "linear_cka", "regression_collapse"),
    "tasks.measures.geodesic": ("along_geodesic", "geodesic"),
    "tasks.function_task": ("task",),
    "tasks.interface": ("Interrupted", "Pruned", "TaskError"),
}
_MODULES = {name: (module, name) for module, names in _HOMES.items() for name in names}
_MODULES["open"] = ("orchestrator.notebook.results", "open_results")


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'depthrate' has no attribute {name!r}; it has {', '.join(__all__)}")
    module, attribute = _MODULES[name]
    value = globals()[name] = getattr(importlib.import_module(f"depthrate.{module}"), attribute)
    return value


def __dir__() -> list[str]:
    return __all__
