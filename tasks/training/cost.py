"""The size and the time of a pack, predicted from what its network reports. Importable without torch."""

from __future__ import annotations

from dataclasses import dataclass

from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.interface import Engine
from depthrate.tasks.networks.network import Network
from depthrate.tasks.training.polish.polish_parameters import curve_steps
from depthrate.tasks.training.training_plan import PolishPlan, TrainingPlan, evaluation_rows

PRODUCT_S = 1.4e-5
"""Of one matrix product of an eager step, however small."""
SPEED_UP = 2.0
"""Of a compiled step over an eager one: 1.4 to 3 measured."""

POLISH_FACTOR = 2.5
"""An evaluation of polish, in float64, over a step of training with as many rows."""
STATIONARY_SHARE = 0.3
"""Of the evaluations that a trial may take, those it does take until it is stationary (measured, depth 2 to 34)."""


LAYER_S, LAYER_S_PER_NUMBER = 4e-4, 1.2e-8
"""Of the geometry of one layer's features, in float64, and of each number of them (measured)."""


@dataclass(frozen=True, kw_only=True)
class PackShape:
    """All that the memory and the time of a pack depend on, but the number of its trials."""

    network: Network
    data: DataShape
    batch_size: int | None
    num_steps: int
    num_measured_steps: int
    optimizer: str
    dtype: str
    matmul_precision: str = "full"
    """As `TrainingPlan` has it."""
    label_smoothing: float = 0.0
    polish: PolishPlan | None = None

    @classmethod
    def from_plan(cls, plan: TrainingPlan, network: Network, data: DataShape, num_measured_steps: int) -> PackShape:
        """Return the shape of a pack that trains as planned; polish is left out."""
        return cls(
            network=network,
            data=data,
            batch_size=plan.batch_size,
            num_steps=plan.num_steps,
            num_measured_steps=num_measured_steps,
            optimizer=plan.optimizer,
            label_smoothing=plan.label_smoothing,
            dtype=str(plan.dtype).removeprefix("torch."),
            matmul_precision=plan.matmul_precision,
        )

    @property
    def rows(self) -> int:
        """Rows of one step of one trial: samples x positions."""
        return (self.batch_size or self.data.num_samples) * self.network.rows_per_sample

    @property
    def evaluated_rows(self) -> int:
        """Rows of one trial that are evaluated at once."""
        at_once = evaluation_rows(self.data.num_classes if self.data.labels_tokens else 0)
        return min(self.data.num_held * self.network.rows_per_sample, at_once)


def max_pack_size(shape: PackShape, device: str) -> int:
    """Return how many trials of a shape to fuse for speed: on a CPU up to 16 while a step has some 4,000 rows (measured)."""
    most, step_rows = (128, 2_000_000) if device == "cuda" else (16, 4096)
    return int(max(1, min(most, step_rows // shape.rows)))


def estimate_s(shape: PackShape, engine: Engine = Engine.EAGER) -> float:
    """Return the rough seconds of a trial on one core: its steps, its polish, and what is measured on the way."""
    native = engine is Engine.NATIVE  # nothing but steps is compiled
    whole_s = step_s(shape, shape.data.num_held, Engine.NATIVE if native else Engine.EAGER)
    evaluations = len(curve_steps("constant", shape.num_steps, 0))  # forward and backward over all samples
    if shape.polish is not None:
        taken = STATIONARY_SHARE if shape.polish.to_stationary else 1.0
        evaluations += round(POLISH_FACTOR * taken * shape.polish.num_evaluations)
    geometry_s = sum(
        LAYER_S + LAYER_S_PER_NUMBER * shape.data.num_held * layer.width for layer in shape.network.layers()
    )
    return steps_s(shape, engine) + evaluations * whole_s + shape.num_measured_steps * (whole_s / 2 + geometry_s)


def steps_s(shape: PackShape, engine: Engine = Engine.EAGER) -> float:
    """Return the rough seconds of a trial's steps of training alone, on one core, reading what is streamed included."""
    batch = shape.batch_size or shape.data.num_samples
    read_s = 0.0 if shape.data.stream is None else batch * shape.data.stream.sample_s
    return shape.num_steps * (step_s(shape, batch, engine) + read_s)


def step_s(shape: PackShape, num_samples: int, engine: Engine) -> float:
    """Return the rough seconds of a step on so many samples: what grows with the rows, and but for native ones a fixed part."""
    if engine is Engine.NATIVE:
        numbers = 2 if shape.dtype == "float64" else 1
        rows = num_samples * shape.network.rows_per_sample
        cost = shape.network.step_cost()  # native steps have no fixed part worth a word
        return cost.native_s * numbers * rows * cost.multiply_adds
    eager_s = _eager_step_s(shape.network, num_samples)
    return eager_s / SPEED_UP if engine is Engine.COMPILED else eager_s


def _eager_step_s(network: Network, num_samples: int) -> float:
    measured_s = network.step_s(num_samples)
    if measured_s is not None:
        return measured_s
    cost = network.step_cost()
    row_s = cost.eager_s * cost.multiply_adds + cost.kept_s * cost.kept
    return cost.products * PRODUCT_S + num_samples * network.rows_per_sample * row_s
