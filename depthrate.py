"""depthrate for notebooks: open a store, define a task, load a sweep. Only re-exports."""

from storage.files import StoreError
from storage.query import QueryError, Results
from storage.query import open_results as open
from sweeps.search_space import Measure, Prune, Search
from sweeps.sweep import FitRequest, Sweep, SweepError, load_sweep
from tasks.task import Interrupted, Pruned, TaskError, task

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
    "load_sweep",
    "open",
    "task",
]
