"""Native steps generated from a network's own code, see `tasks/native/codegen`.

Shapes: T trials, N samples, B samples of a tile, I numbers per sample, P parameters of one trial.
"""

import ast
import dataclasses
from collections.abc import Callable
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from depthrate.tasks.data.dataset import Dataset, DataShape
from depthrate.tasks.interface import SharedLibraries
from depthrate.tasks.native.build import NUMBERS, cached_text, load_kernels, load_library
from depthrate.tasks.native.codegen import trace
from depthrate.tasks.native.codegen.cuda_emit import CudaSource
from depthrate.tasks.native.codegen.cuda_plan import Tuning
from depthrate.tasks.native.codegen.errors import CannotGenerateError
from depthrate.tasks.native.codegen.generate import generate, generate_cuda, tile_samples
from depthrate.tasks.native.codegen.trace import Tile
from depthrate.tasks.native.compiler import EngineError
from depthrate.tasks.native.cuda import load_cuda_library, tuning_of
from depthrate.tasks.native.library import Library
from depthrate.tasks.native.table import StepTable, TableLibrary
from depthrate.tasks.networks import operations
from depthrate.tasks.networks.flat_parameters import split_parameters, start_trials
from depthrate.tasks.networks.network import GENERATED, Network
from depthrate.tasks.training.training_plan import TrainingPlan

NUM_PARTS = 4
"""Parts of a large batch on a GPU: 66 trials then occupy 264 blocks."""


@lru_cache(maxsize=256)
def generation_fault(
    network: Network, data: DataShape, dtype: str, batch_size: int | None = None, label_smoothing: float = 0.0
) -> str | None:
    """Return the reason why no steps can be generated for a network on data of a shape, or None if they can."""
    try:
        samples = tile_samples(batch_size or data.num_samples, network.rows_per_sample)
        _table(network, getattr(torch, dtype), "mse" if data.has_targets else "ce", samples, data, label_smoothing)
    except CannotGenerateError as error:
        return str(error)
    return None


def generated_library(
    network: Network,
    plan: TrainingPlan,
    dataset: Dataset,
    should_stop: Callable[[], bool],
    shared: SharedLibraries | None = None,
    *,
    is_fresh: bool = False,
) -> tuple[Library, float]:
    """Load the kernels generated for a network. Also return the seconds spent building or waiting.

    `is_fresh`: Whether the table is generated again if it is cached, because the cached one does not compute the step.

    Raises:
        EngineError: As `load_kernels` and `load_library`, or kernels cannot be generated.
        Interrupted: As `load_kernels` and `load_library`.
    """
    try:
        samples = tile_samples(plan.batch_size or dataset.shape.num_samples, network.rows_per_sample)
        table = _table(network, plan.dtype, plan.loss, samples, dataset.shape, plan.label_smoothing, is_fresh)
    except CannotGenerateError as error:
        raise EngineError(f"no kernels can be generated for the network: {error}") from error
    constants = {"NUMBER": NUMBERS[plan.dtype_name]}
    kernels, kernels_s = load_kernels(table.sources(), constants, should_stop, shared)
    bind = partial(TableLibrary, table=table, kernels=kernels)
    library, library_s = load_library(GENERATED, constants, should_stop, shared, bind=bind)
    return library, kernels_s + library_s


@lru_cache(maxsize=64)
def _table(
    network: Network,
    dtype: torch.dtype,
    loss: str,
    samples: int,
    data: DataShape,
    label_smoothing: float,
    is_fresh: bool = False,
) -> StepTable:
    """Return a network's kernels and the table of their calls, from the cache on disk if it is there.

    Raises:
        CannotGenerateError: They cannot be generated.
    """

    def make() -> str:
        tile, groups, options = _tile(network, dtype, loss, samples, data, label_smoothing)
        return generate(tile, groups, **options).to_text()

    parts = _parts(network, data, dtype, loss, samples, label_smoothing)
    return StepTable.from_text(cached_text("table", parts, make, is_fresh=is_fresh))


def _parts(network: Network, data: DataShape, *options: object) -> list[str]:
    """Return everything that determines a table or a CUDA source."""
    read = (data.num_inputs, data.vocabulary_size, data.has_targets)
    return [*map(repr, (*options, *read, torch.__version__)), *network.step_texts(), _code()]


@cache
def _code() -> str:
    """Return the code of this module, the networks and the generator, without comments and docstrings."""
    folders = (Path(module).parent for module in (operations.__file__, trace.__file__))
    paths = [Path(__file__), *(path for folder in folders for path in sorted(folder.glob("*.py")))]
    texts = [path.read_text(encoding="utf-8") for path in paths]
    return cached_text("code", texts, lambda: "\n".join(map(_without_comments, texts)))


def _without_comments(code: str) -> str:
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [statement for statement in node.body if not _is_text(statement)]
    return ast.unparse(tree)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def generated_cuda_library(
    network: Network,
    plan: TrainingPlan,
    dataset: Dataset,
    num_trials: int,
    should_stop: Callable[[], bool],
    *,
    is_fresh: bool = False,
) -> tuple[Library, float]:
    """Load the kernels generated for a network on torch's current GPU. Also return the seconds spent compiling or waiting.

    The number of trials affects the speed only. `is_fresh`: As `generated_library`.

    Raises:
        EngineError: As `load_cuda_library`, or kernels cannot be generated.
        Interrupted: As `load_cuda_library`.
    """
    try:
        num_blocks = num_trials * _num_parts(network, plan, dataset.shape, Tuning())
        source = cuda_source(network, plan, dataset.shape, tuning_of(num_blocks), is_fresh=is_fresh)
    except CannotGenerateError as error:
        raise EngineError(f"no kernels can be generated for the network: {error}") from error
    return load_cuda_library(source, NUMBERS[plan.dtype_name], should_stop)


def cuda_source(
    network: Network, plan: TrainingPlan, data: DataShape, tuning: Tuning, *, is_fresh: bool = False
) -> CudaSource:
    """Return the source of a network's kernels on a GPU, from the cache on disk if it is there.

    Raises:
        CannotGenerateError: They cannot be generated.
        EngineError: The cache cannot be used.
    """
    samples = _cuda_samples(network, plan, data, tuning)

    def make() -> str:
        tile, groups, options = _tile(network, plan.dtype, plan.loss, samples, data, plan.label_smoothing)
        return generate_cuda(tile, groups, tuning, **options).to_file()

    parts = _parts(network, data, plan.dtype, plan.loss, samples, plan.label_smoothing, tuning)
    source = CudaSource.from_file(cached_text("cuda-source", parts, make, is_fresh=is_fresh))
    return dataclasses.replace(source, num_parts=_num_parts(network, plan, data, tuning))


def _cuda_samples(network: Network, plan: TrainingPlan, data: DataShape, tuning: Tuning) -> int:
    return tile_samples(plan.batch_size or data.num_samples, network.rows_per_sample, tuning.tile_rows)


def _num_parts(network: Network, plan: TrainingPlan, data: DataShape, tuning: Tuning) -> int:
    """Choose the parts of a trial's batch whose gradients separate blocks compute: one, or several if each has a tile.

    They depend on the batch only, not on the pack, because sums over parts round differently.
    """
    batch = min(plan.batch_size or data.num_samples, data.num_samples)
    return NUM_PARTS if batch > (NUM_PARTS - 1) * _cuda_samples(network, plan, data, tuning) else 1


def _tile(
    network: Network, dtype: torch.dtype, loss: str, samples: int, data: DataShape, label_smoothing: float
) -> tuple[Tile, dict[str, int], dict[str, Any]]:
    """Return a network's function with examples, the parameters' groups of weight decay, and options of `generate`.

    Raises:
        CannotGenerateError: Kernels cannot be generated.
    """
    specs = network.parameter_specs()
    theta_1P, carried = start_trials(network, "normal", [torch.Generator().manual_seed(0)], dtype)
    parameters = {name: tensor[0] for name, tensor in split_parameters(theta_1P, specs).items()}
    state = {name: tensor[0] for name, tensor in carried.items()}
    groups = {group: number for number, group in enumerate(network.native_kernels(has_classes=False).decay_groups)}
    options = {
        "has_targets": data.has_targets,
        "label_smoothing": label_smoothing if loss == "ce" else 0.0,
        "fixed": {name: tensor for name, tensor in state.items() if not tensor.is_floating_point()},
    }
    tile = Tile(network.step_logits, parameters, state, _example(data, samples, dtype), loss, network.fixed_parameters)
    return tile, {spec.name: -1 if spec.decay is None else groups[spec.decay] for spec in specs}, options


def _example(data: DataShape, samples: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if data.vocabulary_size is not None:
        return torch.randint(data.vocabulary_size, (samples, data.num_inputs), generator=generator)
    return torch.randn(samples, data.num_inputs, dtype=dtype, generator=generator)
