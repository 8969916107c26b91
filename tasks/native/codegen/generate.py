"""Kernels that train a network, and the table of their calls, from the network's forward function."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from depthrate.tasks.native.codegen.cuda_emit import CudaSource, emit_cuda
from depthrate.tasks.native.codegen.cuda_plan import Tuning, plan_cuda
from depthrate.tasks.native.codegen.emit import emit
from depthrate.tasks.native.codegen.emitter import Shape
from depthrate.tasks.native.codegen.errors import CannotGenerateError
from depthrate.tasks.native.codegen.lower import Program, lower
from depthrate.tasks.native.codegen.plan import plan
from depthrate.tasks.native.codegen.trace import Tile, trace
from depthrate.tasks.native.codegen.values import ROWS, Layout, up
from depthrate.tasks.native.table import StepTable

TILE_ROWS = 64
"""Rows of a tile, of samples or of their positions: they stay in cache. Fixed, because it affects how sums round."""


def tile_samples(batch: int, positions: int, tile_rows: int = TILE_ROWS) -> int:
    """Return the samples of a tile: a multiple of the rows that kernels compute at a time."""
    return min(up(batch, ROWS), up(max(1, tile_rows // positions), ROWS))


def generate(
    tile: Tile,
    decay_groups: Mapping[str, int],
    *,
    has_targets: bool = False,
    label_smoothing: float = 0.0,
    fixed: Mapping[str, Tensor] | None = None,
) -> StepTable:
    """Return the kernels of a step and the table of their calls.

    Args:
        tile: The network's function, with examples of a tile's tensors.
        decay_groups: Trained parameter -> number of its group of weight decay, negative for none.
        has_targets: Whether labels are numbers rather than classes.
        label_smoothing: As `tasks.training.step.losses` describes it.
        fixed: Integer tensors of the state. All trials have the same.

    Raises:
        CannotGenerateError: An operation has no kernel, or samples depend on each other.
    """
    program, outputs = _lowered(tile, fixed)
    return emit(plan(program), Shape(len(tile.x), outputs, has_targets, label_smoothing, dict(decay_groups)))


def generate_cuda(
    tile: Tile,
    decay_groups: Mapping[str, int],
    tuning: Tuning,
    *,
    has_targets: bool = False,
    label_smoothing: float = 0.0,
    fixed: Mapping[str, Tensor] | None = None,
) -> CudaSource:
    """Return the source of a step on a GPU, as `generate` does for a CPU.

    Raises:
        CannotGenerateError: As `generate`.
    """
    program, outputs = _lowered(tile, fixed, is_cuda=True)
    shape = Shape(len(tile.x), outputs, has_targets, label_smoothing, dict(decay_groups))
    return emit_cuda(plan_cuda(program, tuning), shape, tuning)


def _lowered(tile: Tile, fixed: Mapping[str, Tensor] | None, *, is_cuda: bool = False) -> tuple[Program, int]:
    """Return a lowered step, and the number of outputs per sample."""
    number_bytes = next(iter(tile.parameters.values())).dtype.itemsize
    program = lower(trace(tile), Layout(number_bytes, is_cuda=is_cuda), fixed or {})
    outputs, rest = divmod(program.target.shape[0], len(tile.x))
    if rest:
        raise CannotGenerateError("its outputs are not rows of samples")
    return program, outputs
