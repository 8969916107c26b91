"""Prediction of a pack's size and time from its network's costs. Importable without torch."""

from __future__ import annotations

from dataclasses import dataclass

from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.interface import Engine
from depthrate.tasks.measures.named_columns import EIGENVALUE_NAMES, TRACE_NAMES, split_measure
from depthrate.tasks.networks.network import Network
from depthrate.tasks.training.training_plan import EXACT_TRACE_PARAMETERS, TRACE_PROBES, PolishPlan, evaluation_rows

PRODUCT_S = 1.4e-5
"""Minimum seconds per matrix product of an eager step."""
POLISH_FACTOR = 2.5
"""Ratio of the time of a polish evaluation, in float64, to the time of a training step with the same number of rows."""
HESSIAN_FACTOR = 3.5
"""Ratio of the time of a Hessian product to the time of an evaluation of the objective and its gradient (measured)."""
EIGENVALUE_PRODUCTS = 40
"""Typical number of Hessian products for the largest eigenvalues (measured)."""
STATIONARY_SHARE = 0.3
"""Share of its evaluations that a trial uses before it is stationary (measured, depth 2 to 34)."""


LAYER_S = 4e-4
"""Seconds for the metrics of one layer's features, in addition to the time per number (measured)."""
LAYER_S_PER_NUMBER = 1.2e-8
"""Seconds per feature value for the metrics of a layer, in float64 (measured)."""


GPU_STEP_ROWS = 65_536
"""Rows per step above which more trials make no GPU faster. On an H100 (depth 8, width 64) they reach 96 % of the highest rate,
and half as many 92 % (eager steps, 2026-11-27)."""
GPU_TRIALS_AT_ONCE = 264
"""Trials that native steps train at the same time on an H100 or H200: two blocks on each of 132 multiprocessors."""


@dataclass(frozen=True, kw_only=True)
class PackShape:
    """Everything that a pack's memory and time depend on, except the number of trials."""

    network: Network
    data: DataShape
    batch_size: int | None
    num_steps: int
    num_measured_steps: int
    num_curve_rows: int
    """Curve rows during the training steps."""
    optimizer: str
    dtype: str
    matmul_precision: str = "full"
    """Precision of matrix products, as in `TrainingPlan`."""
    label_smoothing: float = 0.0
    polish: PolishPlan | None = None
    measure: str | None = None
    """Requested metrics."""

    @property
    def hessian_products(self) -> int:
        """Typical number of Hessian products for the requested metrics."""
        names, num_parameters = split_measure(self.measure), self.network.num_parameters
        of_trace = TRACE_PROBES if num_parameters > EXACT_TRACE_PARAMETERS else num_parameters
        groups = ((EIGENVALUE_NAMES, EIGENVALUE_PRODUCTS), (TRACE_NAMES, of_trace))
        return sum(count for group, count in groups if not {*group}.isdisjoint(names))

    @property
    def has_classes(self) -> bool:
        """Whether each sample has one class, without smoothing, as handwritten kernels require."""
        return not (self.data.has_targets or self.data.labels_tokens or self.label_smoothing)

    @property
    def rows(self) -> int:
        """Rows of one trial in one step: samples x positions."""
        return (self.batch_size or self.data.num_samples) * self.network.rows_per_sample

    @property
    def evaluated_rows(self) -> int:
        """Rows of one trial evaluated at a time."""
        max_rows = evaluation_rows(self.data.num_classes if self.data.labels_tokens else 0)
        return min(self.data.num_held * self.network.rows_per_sample, max_rows)


def max_pack_size(shape: PackShape, device: str) -> int:
    """Choose the number of trials to fuse for speed. On a CPU it is at most 16, with about 4,000 rows per step (measured).

    On a GPU it gives about `GPU_STEP_ROWS` rows per eager step, and memory limits it further.
    """
    return int(max(1, GPU_STEP_ROWS // shape.rows if device == "cuda" else min(16, 4096 // shape.rows)))


def estimate_s(shape: PackShape, engine: Engine = Engine.EAGER) -> float:
    """Estimate a trial's seconds on one core, with polish and measurements."""
    whole_s = step_s(shape, shape.data.num_held, engine)
    evaluations = shape.num_curve_rows  # forward and backward over all samples
    if shape.polish is not None:
        used_share = STATIONARY_SHARE if shape.polish.to_stationary else 1.0
        evaluations += round(POLISH_FACTOR * used_share * shape.polish.num_evaluations)
    geometry_s = sum(
        LAYER_S + LAYER_S_PER_NUMBER * shape.data.num_held * layer.width for layer in shape.network.layers()
    )
    evaluations += round(HESSIAN_FACTOR * shape.hessian_products)
    batch = shape.batch_size or shape.data.num_samples
    read_s = 0.0 if shape.data.stream is None else batch * shape.data.stream.sample_s
    steps_s = shape.num_steps * (step_s(shape, batch, engine) + read_s)
    return steps_s + evaluations * whole_s + shape.num_measured_steps * (whole_s / 2 + geometry_s)


def step_s(shape: PackShape, num_samples: int, engine: Engine) -> float:
    """Estimate the seconds of a step on this many samples: a part per row and, unless the engine is native, a fixed part."""
    if engine is Engine.NATIVE:
        numbers = 2 if shape.dtype == "float64" else 1
        rows = num_samples * shape.network.rows_per_sample
        cost = shape.network.step_cost()  # the fixed part of native steps is negligible
        return cost.native_s * numbers * rows * cost.multiply_adds
    measured_s = shape.network.step_s(num_samples)
    if measured_s is not None:
        return measured_s
    cost = shape.network.step_cost()
    row_s = cost.eager_s * cost.multiply_adds + cost.kept_s * cost.kept
    return cost.products * PRODUCT_S + num_samples * shape.network.rows_per_sample * row_s
