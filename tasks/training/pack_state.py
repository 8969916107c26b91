"""State of a pack in training: T trials of one shape, with their batches and the numbers of their next step.

Shapes: T trials, N samples, B batch, I input dimensions, P parameters of one trial.
"""

from __future__ import annotations

import dataclasses
import hashlib
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from depthrate.tasks.data.dataset import SampleStream
from depthrate.tasks.interface import Engine
from depthrate.tasks.networks.flat_parameters import as_numbers, join_rows, split_parameters, start_trials
from depthrate.tasks.networks.network import Kernels, Network, Tensors, decay_groups
from depthrate.tasks.training.training_plan import Hyperparameters, TrainingPlan, learning_rate_factor, order_bytes

NEVER = -1
CHECK_STEPS = 10
"""Steps between two checks for non-finite losses. The number is fixed, so that a trial's record does not depend on its pack."""


class Divergence:
    """The first checked step at which each trial's loss was not finite."""

    def __init__(self, num_trials: int, device: torch.device):
        self.step_T = torch.full((num_trials,), NEVER, device=device)
        """First step with a non-finite loss, or `NEVER`."""

    def check(self, loss_T: Tensor, step: int) -> None:
        """Record the trials whose loss [T] is not finite for the first time at this step. Losses may be on the CPU."""
        is_finite_T = torch.isfinite(loss_T).to(self.step_T.device)
        self.step_T.masked_fill_(~is_finite_T & (self.step_T == NEVER), step)

    def check_if_due(self, loss_T: Tensor, step: int) -> bool:
        """Check the losses if the step is a multiple of `CHECK_STEPS`. Return whether they were checked."""
        is_due = (step + 1) % CHECK_STEPS == 0
        if is_due:
            self.check(loss_T, step)
        return is_due

    def diverged_steps(self) -> dict[int, int]:
        """Return position -> step of the diverged trials. This waits for the device."""
        return {position: step for position, step in enumerate(self.step_T.tolist()) if step != NEVER}

    def select(self, positions: Sequence[int]) -> None:
        """Continue with only the trials at these positions."""
        self.step_T = self.step_T[list(positions)]


class StreamedBatches:
    """Draws the batches of a pack's trials. Trials with equal seeds share their batches, which are read once."""

    def __init__(
        self, samples: SampleStream, batch_size: int, seeds: Sequence[int], generators: Mapping[int, torch.Generator]
    ):
        """Start before the first batch.

        Args:
            samples: The stream to read.
            batch_size: Samples per batch.
            seeds: Seed of each trial.
            generators: Generator of the order, by seed.
        """
        self._samples, self._batch_size, self._seeds, self._generators = samples, batch_size, list(seeds), generators
        self._orders: dict[int, Tensor] = {}
        """Sample indices [N] in the order of the current epoch, by seed."""
        self._begun: dict[int, Tensor] = {}
        """Generator state before drawing the order, by seed: checkpoints store it, and resuming draws the order again."""
        self._position = 0

    def next(self) -> tuple[Tensor, Tensor]:
        """Read the next batch of each trial, [T, B, I], and its labels [T, B]. An incomplete last batch is skipped.

        Raises:
            DatasetError: A sample cannot be read, or differs in form from the other samples.
        """
        if not self._orders or self._position + self._batch_size > self._samples.num_samples:
            self._draw_orders()
        rows = slice(self._position, self._position + self._batch_size)
        self._position += self._batch_size
        read = {seed: self._samples.read(order[rows].long().numpy()) for seed, order in self._orders.items()}
        x_TBI, labels_TB = (torch.stack([torch.from_numpy(read[s][part]) for s in self._seeds]) for part in (0, 1))
        return x_TBI, labels_TB

    def select(self, trials: Sequence[int]) -> None:
        """Continue with these trials only."""
        self._seeds = [self._seeds[trial] for trial in trials]
        self._orders = {seed: order for seed, order in self._orders.items() if seed in self._seeds}

    def state(self) -> dict[str, Any]:
        return {"position": self._position, "begun": dict(self._begun)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state`, which may belong to a pack with additional seeds."""
        if not state["begun"]:
            return
        for seed in set(self._seeds):
            self._generators[seed].set_state(state["begun"][seed])
        self._draw_orders()
        self._position = state["position"]

    def _draw_orders(self) -> None:
        count = self._samples.num_samples
        dtype = torch.int32 if order_bytes(count) < 8 * count else torch.int64
        self._begun, self._orders, self._position = {}, {}, 0
        for seed in dict.fromkeys(self._seeds):
            self._begun[seed] = self._generators[seed].get_state()
            self._orders[seed] = torch.randperm(count, generator=self._generators[seed]).to(dtype)


STEPS_PER_BLOCK = 1024
"""Number of steps whose rates are computed at a time."""


class Rates:
    """Learning rates and bias corrections of a pack's trials at each step."""

    def __init__(self, plan: TrainingPlan, hyperparameters: Sequence[Hyperparameters], device: torch.device):
        self._plan, self._device = plan, device
        self._lr_T = torch.tensor([h.lr for h in hyperparameters], dtype=torch.float64)
        self._start, self._stop = 0, 0
        self._lr_ST1 = self._rate_ST1 = self._correction_S = torch.empty(0)

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """Return each trial's rate [T, 1] at a step, and the square root of Adam's second bias correction.

        For Adam the rate is already divided by the first bias correction.
        """
        if not self._start <= step < self._stop:
            self._compute_block(step)
        position = step - self._start
        return self._rate_ST1[position], self._correction_S[position]

    def learning_rates(self, step: int) -> Tensor:
        """Return each trial's learning rate [T, 1] at a step."""
        self.at(step)
        return self._lr_ST1[step - self._start]

    def block(self, start: int, max_steps: int) -> tuple[Tensor, Tensor]:
        """Return rates [S, T, 1] and corrections [S] of between 1 and `max_steps` steps from `start` on."""
        self.at(start)
        steps = slice(start - self._start, min(start + max_steps, self._stop) - self._start)
        return self._rate_ST1[steps], self._correction_S[steps]

    def _compute_block(self, start: int) -> None:
        plan, stop = self._plan, max(start + 1, min(start + STEPS_PER_BLOCK, self._plan.num_steps))
        steps = range(start, stop)
        factor_S1 = _column([learning_rate_factor(plan.schedule, s, plan.num_steps, plan.milestones) for s in steps])
        rate_ST, correction_S = self._lr_T * factor_S1, torch.ones(len(steps), dtype=torch.float64)
        self._lr_ST1 = rate_ST.to(plan.dtype).unsqueeze(2).to(self._device)
        if plan.corrects_bias:
            # in float32 the bias corrections drift by 1e-4 in 100 steps
            beta1, beta2 = plan.adam_betas
            rate_ST = rate_ST / _column([1 - beta1 ** (step + 1) for step in steps])
            correction_S = _column([1 - beta2 ** (step + 1) for step in steps]).squeeze(1).sqrt()
        self._rate_ST1 = rate_ST.to(plan.dtype).unsqueeze(2).to(self._device)
        self._correction_S = correction_S.to(plan.dtype).to(self._device)
        self._start, self._stop = start, stop


def _column(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


_TENSORS = ("theta_TP", "moment_TP", "square_TP", "_order_TN")
"""State with one row per trial."""


def random_stream(seed: int, purpose: str) -> torch.Generator:
    """Create a CPU random generator for one purpose of one trial, independent of other seeds and purposes."""
    digest = hashlib.sha256(f"depthrate/{purpose}/{seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def permutations(seed_T: Tensor, count: int) -> Tensor:
    """Return a random permutation of 0 to count - 1 per seed, [T, count], by sorting SplitMix64's numbers on its device."""
    number_TN = seed_T.unsqueeze(1) + torch.arange(count, device=seed_T.device) * -0x61C8864680B583EB
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15), (31, 1)):
        shifted_TN = (number_TN >> shift) & (2 ** (64 - shift) - 1)  # a logical shift, but torch's copies the sign
        number_TN = (number_TN ^ shifted_TN) * factor
    return number_TN.argsort(dim=1, stable=True)


def _to_float64(tensor: Tensor) -> Tensor:
    return as_numbers(tensor, torch.float64).clone()


class Steps(ABC):
    """Takes the steps of a trainer's trials with one engine, in place."""

    engine: ClassVar[Engine]
    records_divergence: ClassVar[bool] = False
    """Whether `step` records divergence itself, at the steps at which it is due."""

    def __init__(self, trainer: PackState):
        # The trainer refers to its steps. A reference cycle would keep its tensors in memory until a garbage collection.
        self._trainer = weakref.ref(trainer)
        self._is_prepared = False

    @property
    def trainer(self) -> PackState:
        """Trainer to which these steps belong. It outlives them."""
        trainer = self._trainer()
        assert trainer is not None
        return trainer

    def advance(self, max_steps: int, divergence: Divergence | None) -> Tensor:
        """Take between 1 and `max_steps` steps, preparing them if necessary. Return the losses [T] of the last."""
        if not self._is_prepared:
            self.prepare()
            self._is_prepared = True
        return self.step(max_steps, divergence)

    @abstractmethod
    def prepare(self) -> None:
        """Bind the trainer's tensors and allocate buffers. Called before the first step, and after `release`."""

    @abstractmethod
    def step(self, max_steps: int, divergence: Divergence | None) -> Tensor:
        """Take between 1 and `max_steps` steps. Return the batch losses [T] before the last of them."""

    def gradient(self) -> Tensor:
        """Return the gradient [T, P] of the first step, up to a factor. Call after that step."""
        return self.trainer.first_gradient()

    def release(self) -> None:
        """Release the bound tensors, because the trainer has replaced them."""
        self._is_prepared = False


MakeSteps = Callable[["PackState"], Steps]
"""Creates an engine's steps for a trainer."""


class PackState(ABC):
    """T networks of one shape in training on one data set. A diverged trial does not affect the others."""

    def __init__(
        self,
        network: Network,
        plan: TrainingPlan,
        hyperparameters: Sequence[Hyperparameters],
        x_NI: Tensor,
        labels_N: Tensor,
    ):
        self.network, self.plan = network, plan
        self._steps = self.eager_steps()
        self._streamed: StreamedBatches | None = None
        self.specs = network.parameter_specs()
        self.hyperparameters = list(hyperparameters)
        self.x_NI, self.labels_N = x_NI, labels_N
        self.device = x_NI.device
        self._check_decay_groups()
        self.untrained: Tensors = self._start()
        self._prepare()

    def draw_from(self, samples: SampleStream) -> None:
        """Draw batches from a stream. The trainer's samples are then used only for measurement."""
        assert self.plan.batch_size is not None and self.step_count == 0
        seeds = [h.seed for h in self.hyperparameters]
        self._streamed = StreamedBatches(
            samples, self.plan.batch_size, seeds, {seed: random_stream(seed, "data order") for seed in seeds}
        )

    def _start(self) -> Tensors:
        """Initialise the trials, and return the networks' untrained state."""
        self.step_count = 0
        streams, fixed = [random_stream(h.seed, "init") for h in self.hyperparameters], None
        if self.network.fixed_parameters:
            fixed = [random_stream(h.fixed_seed, "init") for h in self.hyperparameters]
        theta_TP, state = start_trials(self.network, self.plan.init, streams, self.plan.dtype, fixed)
        self.theta_TP = theta_TP.to(self.device)
        self.rate_factor_P: Tensor | None = None
        """Factor on the learning rate of each parameter, or None for equal rates."""
        self.eps: float | Tensor = self.plan.adam_eps
        """Epsilon of Adam and RMSprop, or one per parameter [P]."""
        if self.network.has_factors(self.plan.optimizer):
            self.theta_TP *= self._parameter_factors("init")
            self.rate_factor_P, self.eps = (
                self._parameter_factors("rate"),
                self.plan.adam_eps * self._parameter_factors("eps"),
            )
        self.moment_TP = torch.zeros_like(self.theta_TP)
        self.square_TP = torch.zeros_like(self.theta_TP) if self.plan.keeps_squares else None
        self._generators = [random_stream(h.seed, "data order") for h in self.hyperparameters]
        self._order_TN: Tensor | None = None
        self.position = 0
        return {name: tensor.to(self.device) for name, tensor in state.items()}

    def _parameter_factors(self, kind: str) -> Tensor:
        """Return one of the networks' factors for each parameter, [P]."""
        factors = [(getattr(self.network.factors(s, self.plan.optimizer), kind), s.size) for s in self.specs]
        return torch.cat([torch.full((size,), factor, dtype=self.plan.dtype) for factor, size in factors]).to(
            self.device
        )

    @property
    def num_trials(self) -> int:
        return len(self.hyperparameters)

    @property
    def samples_per_step(self) -> int:
        """Number of samples in one trial's batch."""
        batch = self.plan.batch_size
        return len(self.x_NI) if batch is None or self.shares_batches else batch

    @property
    def shares_batches(self) -> bool:
        """Whether every trial's batch is the whole training set."""
        if self._streamed is not None:
            return False
        return self.plan.batch_size is None or self.plan.batch_size >= len(self.x_NI)

    @property
    def kernels(self) -> Kernels:
        """Kernels of the trials' native steps."""
        has_classes = (
            self.labels_N.ndim == 1 and not self.labels_N.is_floating_point() and not self.plan.label_smoothing
        )
        return self.network.native_kernels(has_classes and self.device.type == "cpu")

    def parameters(self) -> dict[str, Tensor]:
        """Return views of the parameters by name, [T, *shape] each."""
        return split_parameters(self.theta_TP, self.specs)

    def options(self, trials: slice) -> dict[str, Any]:
        """Return the constructor's arguments, for these trials, that subclasses add to this class's arguments."""
        return {}

    def restart(self, num_trials: int, plan: TrainingPlan, copied: Callable[[Tensor], Tensor]) -> Self:
        """Return a trainer of the first trials before their first step, with another plan and a copy of the untrained state."""
        trials = slice(num_trials)
        x_NI = self.x_NI.to(plan.dtype) if self.x_NI.is_floating_point() else self.x_NI
        other = type(self)(
            self.network, plan, self.hyperparameters[trials], x_NI, self.labels_N, **self.options(trials)
        )
        other.untrained = {name: copied(tensor[trials]) for name, tensor in self.untrained.items()}
        return other

    def first_gradient(self) -> Tensor:
        """Return the gradient [T, P] of the first step, up to a factor. Call after that step."""
        return self.moment_TP

    def step(self) -> Tensor:
        """Advance every trial by one step. Return the batch loss before the step, [T]."""
        return self._steps.advance(1, None)

    def advance(self, until: int, divergence: Divergence) -> bool:
        """Take one step, or native steps for a fraction of a second, at most up to step `until`.

        Returns:
            Whether divergence was checked.
        """
        step = self.step_count
        loss_T = self._steps.advance(until - step, divergence)
        return self._steps.records_divergence or divergence.check_if_due(loss_T, step)

    def native_inputs(self) -> Tensor:
        """Return the samples in the kernels' layout."""
        return self.x_NI

    def native_decays(self) -> Tensor:
        """Return the weight decay of each of the kernels' groups, [G, T]."""
        decays, groups = [h.weight_decays for h in self.hyperparameters], self.kernels.decay_groups
        columns = [self._column([trial.get(group, 0.0) for trial in decays]) for group in groups]
        return torch.stack(columns or [self._column([0.0] * self.num_trials)]).squeeze(2)

    def native_state(self) -> Tensor:
        """Return the floating-point tensors that steps read and do not change, flat, [T, S]. There is at least one number."""
        parts = [tensor for tensor in self.untrained.values() if tensor.is_floating_point()]
        return join_rows([*parts, self.momentum_T1]).contiguous()

    def lr_at(self, step: int) -> list[float]:
        """Return the learning rate of each trial at a step."""
        factor = learning_rate_factor(self.plan.schedule, step, self.plan.num_steps, self.plan.milestones)
        return [h.lr * factor for h in self.hyperparameters]

    def to_float64(self) -> Self:
        """Return an eager float64 trainer of the same trials with the same parameters."""
        plan = dataclasses.replace(self.plan, dtype=torch.float64, matmul_precision="full")
        other = self.restart(self.num_trials, plan, _to_float64)
        other.step_count, other.theta_TP = self.step_count, _to_float64(self.theta_TP)
        return other

    def select(self, trials: Sequence[int]) -> None:
        """Continue with only these trials. Their state is unchanged to the bit."""
        index = torch.tensor(list(trials), dtype=torch.int64)
        for name in _TENSORS:
            setattr(self, name, None if (tensor := getattr(self, name)) is None else tensor[index])
        self.untrained = {name: tensor[index] for name, tensor in self.untrained.items()}
        self._generators = [self._generators[trial] for trial in trials]
        if self._streamed is not None:
            self._streamed.select(trials)
        self.hyperparameters = [self.hyperparameters[trial] for trial in trials]
        self._prepare()

    def state(self) -> dict[str, Any]:
        """Return the state for `load_state`, as tensors and numbers."""
        return {name: getattr(self, name) for name in (*_TENSORS, "step_count", "position")} | {
            "untrained": dict(self.untrained),
            "generators": [generator.get_state() for generator in self._generators],
            "streamed": None if self._streamed is None else self._streamed.state(),
        }

    def load_state(self, state: Mapping[str, Any], trials: Sequence[int] | None = None) -> None:
        """Resume from the `state` of these trials, in this order. Default: all trials."""
        generators = state["generators"]
        index = torch.tensor(range(len(generators)) if trials is None else list(trials), dtype=torch.int64)
        assert len(index) == self.num_trials and state["theta_TP"].shape[1] == self.theta_TP.shape[1]
        self.step_count, self.position = state["step_count"], state["position"]
        for name in _TENSORS:
            setattr(self, name, None if state[name] is None else state[name][index].to(self.device))
        self.untrained = {name: state["untrained"][name][index].to(self.device) for name in self.untrained}
        self._prepare()
        for generator, row in zip(self._generators, index.tolist(), strict=True):
            generator.set_state(generators[row])
        if self._streamed is not None:
            self._streamed.load_state(state["streamed"])

    def _prepare(self) -> None:
        """Build the per-trial hyper-parameters as tensors that broadcast over [T, P], and release the engine's tensors."""
        decays = [h.weight_decays for h in self.hyperparameters]
        self.decays = {group: self._column([trial[group] for trial in decays]) for group in decay_groups(self.specs)}
        zero_T1 = self._column([0.0] * self.num_trials)
        pieces = [(zero_T1 if s.decay is None else self.decays[s.decay]).expand(-1, s.size) for s in self.specs]
        self.decay_TP = torch.cat(pieces, dim=1)
        """Weight decay lambda of (lambda/2) theta^2 of every parameter."""
        self.momentum_T1 = self._column([h.momentum for h in self.hyperparameters])
        self.rates = Rates(self.plan, self.hyperparameters, self.device)
        self._steps.release()

    def _check_decay_groups(self) -> None:
        groups = decay_groups(self.specs)
        for h in self.hyperparameters:
            if missing := set(groups) - h.weight_decays.keys():
                raise ValueError(
                    f"{type(self.network).__name__} has the decay groups {groups}, but a trial has weight decays only for "
                    f"{sorted(h.weight_decays)}. Add {sorted(missing)}."
                )

    def _column(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).to(self.plan.dtype).unsqueeze(1).to(self.device)

    def expand(self, x_NI: Tensor, labels_N: Tensor, num_trials: int | None = None) -> tuple[Tensor, Tensor]:
        """Expand samples shared by trials to [T, N, ...]. Default: all trials."""
        count = self.num_trials if num_trials is None else num_trials
        return x_NI.expand(count, *x_NI.shape), labels_N.expand(count, *labels_N.shape)

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Return the next batch of every trial. A full batch is the training set itself, without a trial axis.

        Every trial follows its own permutation, all at the same position in the epoch. An incomplete last batch is skipped.
        """
        if self._streamed is not None:
            x_TBI, labels_TB = self._streamed.next()
            return x_TBI.to(self.device), labels_TB.to(self.device)
        if self.shares_batches:
            return self.x_NI, self.labels_N
        batch = self.samples_per_step
        index_TB = self.next_order()[:, self.position : self.position + batch]
        self.position += batch
        index = index_TB.reshape(-1)
        return self.x_NI.index_select(0, index).view(*index_TB.shape, *self.x_NI.shape[1:]), self.labels_N[index_TB]

    def next_order(self) -> Tensor:
        """Return the sample indices [T, N] of the current epoch, drawing new ones if no complete batch is left."""
        num_samples = len(self.x_NI)
        if self._order_TN is None or self.position + self.samples_per_step > num_samples:
            self._order_TN, self.position = self._draw_orders(num_samples), 0
        return self._order_TN

    def _draw_orders(self, num_samples: int) -> Tensor:
        """Draw the sample indices [T, N] of the next epoch. A GPU draws its own, because it would wait for a copy."""
        if self.device.type == "cpu":
            return torch.stack([torch.randperm(num_samples, generator=g) for g in self._generators])
        epoch = self.step_count // (num_samples // self.samples_per_step)
        seeds = [random_stream(h.seed, f"data order of epoch {epoch}").initial_seed() for h in self.hyperparameters]
        return permutations(torch.tensor(seeds).to(self.device, non_blocking=True), num_samples)

    @abstractmethod
    def eager_steps(self) -> Steps:
        """Create the trials' eager steps."""
