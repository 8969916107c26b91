"""depthrate for notebooks and tasks: open a store, define a task, load a sweep, fit rates.

Beside this file lie links to the five folders of the code. Names are imported when they are asked for: a command that
reads a table need not wait for what trains.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from depthrate.orchestrator.notebook.comparison import Comparison, compare
    from depthrate.orchestrator.notebook.results import open_results as open
    from depthrate.orchestrator.notebook.serving import Served, serve
    from depthrate.orchestrator.notebook.sweep import RunError, Sweep, load
    from depthrate.storage.files.store import StoreError
    from depthrate.storage.query.results import Results
    from depthrate.storage.query.sql_checks import QueryError
    from depthrate.sweeps.errors import SweepError
    from depthrate.sweeps.load import load_sweep
    from depthrate.sweeps.spec import FitRequest, Measure, Prune, Search
    from depthrate.tasks.fits.common_exponent import common_exponent
    from depthrate.tasks.fits.cutoffs import cutoff
    from depthrate.tasks.fits.rates import fit_many, fit_rates, predict
    from depthrate.tasks.function_task import task
    from depthrate.tasks.interface import Interrupted, Pruned, TaskError
    from depthrate.tasks.measures.geodesic import along_geodesic, geodesic
    from depthrate.tasks.measures.geometry import effective_rank, intrinsic_dimension, linear_cka, regression_collapse
    from depthrate.tasks.measures.labelled import FeaturesError
    from depthrate.tasks.measures.linear_probe import probe_accuracy, probe_r2
    from depthrate.tasks.measures.measure import measure
    from depthrate.tasks.measures.stream import Measurer
    from depthrate.tasks.metric import Measurement
    from depthrate.tasks.supervised.probe import probe

__all__ = [
    "Comparison",
    "FeaturesError",
    "FitRequest",
    "Interrupted",
    "Measure",
    "Measurement",
    "Measurer",
    "Prune",
    "Pruned",
    "QueryError",
    "Results",
    "RunError",
    "Search",
    "Served",
    "StoreError",
    "Sweep",
    "SweepError",
    "TaskError",
    "along_geodesic",
    "common_exponent",
    "compare",
    "cutoff",
    "effective_rank",
    "fit_many",
    "fit_rates",
    "geodesic",
    "intrinsic_dimension",
    "linear_cka",
    "load",
    "load_sweep",
    "measure",
    "open",
    "predict",
    "probe",
    "probe_accuracy",
    "probe_r2",
    "regression_collapse",
    "serve",
    "task",
]

_HOMES = {
    "orchestrator.notebook.comparison": ("Comparison", "compare"),
    "orchestrator.notebook.serving": ("Served", "serve"),
    "orchestrator.notebook.sweep": ("RunError", "Sweep", "load"),
    "storage.query.sql_checks": ("QueryError",),
    "storage.query.results": ("Results",),
    "storage.files.store": ("StoreError",),
    "sweeps.errors": ("SweepError",),
    "sweeps.load": ("load_sweep",),
    "sweeps.spec": ("FitRequest", "Measure", "Prune", "Search"),
    "tasks.fits.common_exponent": ("common_exponent",),
    "tasks.fits.cutoffs": ("cutoff",),
    "tasks.fits.rates": ("fit_many", "fit_rates", "predict"),
    "tasks.metric": ("Measurement",),
    "tasks.measures.labelled": ("FeaturesError",),
    "tasks.measures.linear_probe": ("probe_accuracy", "probe_r2"),
    "tasks.measures.measure": ("measure",),
    "tasks.measures.stream": ("Measurer",),
    "tasks.supervised.probe": ("probe",),
    "tasks.measures.geometry": ("effective_rank", "intrinsic_dimension", "linear_cka", "regression_collapse"),
    "tasks.measures.geodesic": ("along_geodesic", "geodesic"),
    "tasks.function_task": ("task",),
    "tasks.interface": ("Interrupted", "Pruned", "TaskError"),
}
_PLACES = {name: (module, name) for module, names in _HOMES.items() for name in names}
_PLACES["open"] = ("orchestrator.notebook.results", "open_results")


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'depthrate' has no attribute {name!r}; it has {', '.join(__all__)}")
    module, attribute = _PLACES[name]
    value = getattr(importlib.import_module(f"depthrate.{module}"), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
