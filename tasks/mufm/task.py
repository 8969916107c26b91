"""The tasks `ufm` and `mufm`, all of them put together. Importable without torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from depthrate.tasks.data import published
from depthrate.tasks.data.published import check_dataset
from depthrate.tasks.data.sources import DataSource
from depthrate.tasks.mufm.inputs import GAUSSIAN
from depthrate.tasks.mufm.measurements import MEASUREMENTS, PANELS
from depthrate.tasks.mufm.schema import MUFM_SCHEMA, UFM_SCHEMA, check_trial, measured, pack_shape
from depthrate.tasks.schema import ParameterSchema
from depthrate.tasks.task import Params, Task, TaskContext, TrialResult
from depthrate.tasks.training.cost import estimate_s, max_pack_size
from depthrate.tasks.training.memory import memory_bytes


def run(trials: Sequence[Params], context: TaskContext) -> Iterator[TrialResult]:
    """Solve or train, and measure, a pack; torch is imported here and not before."""
    from depthrate.tasks.mufm.pack import run_pack

    yield from run_pack(trials, context)


def _data_sets(trials: Sequence[Params]) -> list[str]:
    return [name for name in dict.fromkeys(params["data"] for params in trials) if name != GAUSSIAN]


def check_data(trials: Sequence[Params], source: DataSource) -> None:
    """Refuse trials whose data set is not there.

    Raises:
        DatasetError: saying where it looked and how to get the files.
    """
    for name in _data_sets(trials):
        check_dataset(name, source)


def check_contents(trials: Sequence[Params], source: DataSource) -> None:
    """Refuse trials whose data set is damaged.

    Raises:
        DatasetError: naming the file, what was expected of it, and what to do.
    """
    for name in _data_sets(trials):
        published.check_contents(name, source)


def _task(name: str, schema: ParameterSchema, doc: str) -> Task:
    return Task(
        name=name,
        version=1,
        schema=schema,
        run=run,
        fused=True,
        doc=doc,
        measurements=MEASUREMENTS,
        panels=PANELS,
        check_trial=check_trial,
        check_data=check_data,
        check_contents=check_contents,
        max_pack_size=lambda params, device: max_pack_size(pack_shape(params), device),
        measured=measured,
        memory_bytes=lambda params, num_trials, device: memory_bytes(pack_shape(params), num_trials, device),
        estimate_s=lambda params: estimate_s(pack_shape(params)),
    )


UFM = _task("ufm", UFM_SCHEMA, "Solve the unconstrained features model, exactly or by gradient descent.")
MUFM = _task(
    "mufm", MUFM_SCHEMA, "Solve the multilayer unconstrained features model, whose features are held to their input."
)
