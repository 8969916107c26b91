"""Fused training: T trials of one shape advance together, each with the results it would have alone.

On the CPU with one thread, a trial's numbers are bitwise independent of its pack, with every engine. This relies on three
rules: matrix products are batched over T (never merged), reductions never cross the trial axis, and the update consists of
single elementwise operations (see `step.py`; `engines/native.py` and `engines/compiled_step.py` for the other engines).

Shapes: T trials, N samples, B batch, I input dimensions, K classes, P parameters of one trial.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

import torch
from torch import Tensor

from depthrate.tasks.data.dataset import SampleStream
from depthrate.tasks.interface import Engine
from depthrate.tasks.native.library import Library
from depthrate.tasks.networks.flat_parameters import (
    decay_groups,
    gradients_of,
    leaves_of,
    split_parameters,
    start_trials,
)
from depthrate.tasks.networks.network import Network, Tensors
from depthrate.tasks.training.divergence import Divergence
from depthrate.tasks.training.engines.choice import EngineError
from depthrate.tasks.training.engines.compiled_step import CompiledStep
from depthrate.tasks.training.engines.native import NativeSteps, StepState
from depthrate.tasks.training.engines.native_evaluation import NativeEvaluation
from depthrate.tasks.training.engines.step_program import StepProgram
from depthrate.tasks.training.learning_rates import Rates
from depthrate.tasks.training.step import (
    Moments,
    StepNumbers,
    clip_factor,
    gradients,
    losses,
    lowered_precision,
    nearly_equal,
    optimise,
)
from depthrate.tasks.training.streamed_batches import StreamedBatches
from depthrate.tasks.training.training_plan import Hyperparameters, TrainingPlan, evaluation_rows, learning_rate_factor

STEP_RTOL = {"full": 1e-3, "tf32": 1e-2}
"""Relative tolerance between another engine's first step and the eager one, by the precision of matrix products. It is far
above rounding and far below a fault."""
MAX_CHECKED_STARTS = 12
"""Maximum number of starts from which another engine's first step is checked before the engine is rejected. Among millions of
values one may be so near to ReLU's kink that rounding decides its side, and with it a sample's part of the gradient. If a start
is an optimum, its gradient is pure rounding. Both happen at single starts, a fault happens at all."""
START_NOISE = 0.01
"""Relative noise on the parameters of all starts but the first."""
MAX_ERROR_RATIO = 30
"""Maximum error of another engine's first step against float64, relative to the eager step's error."""


@dataclass(frozen=True)
class Evaluation:
    """Metrics over the training set, or the measured part of a streamed one, as float64 tensors [T]."""

    loss: Tensor
    objective: Tensor
    accuracy: Tensor
    grad_norm: Tensor


def random_stream(seed: int, purpose: str) -> torch.Generator:
    """Create a CPU random generator for one purpose of one trial, independent of other seeds and purposes."""
    digest = hashlib.sha256(f"depthrate/{purpose}/{seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def _to_float64(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float64, copy=True)


class FusedTrainer:
    """Trains T networks of one shape on one data set. A diverged trial does not affect the others."""

    def __init__(
        self,
        network: Network,
        plan: TrainingPlan,
        hyperparameters: Sequence[Hyperparameters],
        x_NI: Tensor,
        labels_N: Tensor,
    ):
        self.network, self.plan = network, plan
        self._compiled: CompiledStep | None = None
        self._native: NativeSteps | None = None
        self._native_evaluation: NativeEvaluation | None = None
        self._streamed: StreamedBatches | None = None
        self.specs = network.parameter_specs()
        self.hyperparameters = list(hyperparameters)
        self.x_NI, self.labels_N = x_NI, labels_N
        self.device = x_NI.device
        self._check_decay_groups()
        self.untrained: Tensors = self._start()
        self._prepare()

    def draw_from(self, samples: SampleStream) -> None:
        """Draw batches from a stream. The trainer's own samples are then only measured."""
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
        self.moment_TP = torch.zeros_like(self.theta_TP)
        self.square_TP = torch.zeros_like(self.theta_TP) if self.plan.keeps_squares else None
        self._generators = [random_stream(h.seed, "data order") for h in self.hyperparameters]
        self._order_TN: Tensor | None = None
        self._position = 0
        return {name: tensor.to(self.device) for name, tensor in state.items()}

    @property
    def num_trials(self) -> int:
        """Number of trials in the trainer."""
        return len(self.hyperparameters)

    @property
    def shares_batches(self) -> bool:
        """Whether every trial's batch is the whole training set."""
        if self._streamed is not None:
            return False
        return self.plan.batch_size is None or self.plan.batch_size >= len(self.x_NI)

    @property
    def decay_TP(self) -> Tensor:
        """Weight decay lambda of (lambda/2) theta^2 of every parameter, [T, P]."""
        return self._decay_TP

    def parameters(self) -> dict[str, Tensor]:
        """Return views of the parameters by name, [T, *shape] each."""
        return split_parameters(self.theta_TP, self.specs)

    def program(self) -> StepProgram:
        """Describe this trainer's step for compilation."""
        samples = len(self.x_NI) if self.shares_batches else self.plan.batch_size
        assert samples is not None
        return StepProgram(
            network=self.network,
            plan=self.plan,
            batch_shape=(samples, *self.x_NI.shape[1:]),
            input_dtype=self.x_NI.dtype,
            shares_batches=self.shares_batches,
            device=self.device.type,
        )

    def use(self, compiled: CompiledStep) -> None:
        """Switch from eager to compiled steps.

        Raises:
            EngineError: The first trial's first step differs from the eager one by more than rounding.
        """
        self._check_first_step(Engine.COMPILED, _compiled=compiled)
        self._compiled = compiled

    def use_native(self, library: Library) -> None:
        """Switch from eager to native steps.

        Raises:
            EngineError: As `use`.
        """
        steps = NativeSteps(library)
        self._check_first_step(Engine.NATIVE, _native=steps)
        self._native = steps
        kernels = self.network.kernels()
        if kernels is not None and kernels.gives_layers:
            self._native_evaluation = NativeEvaluation(library, self.network, self.plan, self.x_NI, self.labels_N)

    def _check_first_step(self, engine: Engine, **steps: CompiledStep | NativeSteps) -> None:
        rtol = STEP_RTOL[self.plan.matmul_precision]
        for start in range(MAX_CHECKED_STARTS):
            eager, other = (self._restart_first(start) for _ in range(2))
            vars(other).update(steps)
            losses_T = torch.stack([eager.step(), other.step()])
            for engine_steps in steps.values():
                engine_steps.release()
            gradients = eager.first_gradient(), other.first_gradient()
            if nearly_equal(*gradients, rtol) and torch.allclose(losses_T[0], losses_T[1], rtol=rtol, equal_nan=True):
                return
            if self._is_as_exact(start, losses_T, *gradients):
                return
        raise EngineError(
            f"the {engine} step of {type(self.network).__name__} has loss {losses_T[1].item():.6g} and the eager step "
            f"{losses_T[0].item():.6g}, or their gradients differ. Train with --engine eager, and report this."
        )

    def _restart_first(self, start: int) -> Self:
        """Return a trainer of the first trial before its first step, with noise on its parameters if `start` > 0."""
        other = self._restart(1, self.plan, torch.Tensor.clone)
        if start:
            noise = torch.randn(other.theta_TP.shape, generator=torch.Generator().manual_seed(start))
            other.theta_TP *= 1 + START_NOISE * noise.to(other.theta_TP)
        return other

    def _restart(self, num_trials: int, plan: TrainingPlan, copied: Callable[[Tensor], Tensor]) -> Self:
        """Return a trainer of the first trials before their first step, with another plan and a copy of the untrained state."""
        other = copy.copy(self)
        other._compiled = other._native = other._native_evaluation = None
        other.plan, other.hyperparameters = plan, self.hyperparameters[:num_trials]
        other.x_NI = self.x_NI.to(plan.dtype) if self.x_NI.is_floating_point() else self.x_NI
        other._start()
        other.untrained = {name: copied(tensor[:num_trials]) for name, tensor in self.untrained.items()}
        other._prepare()
        return other

    def first_gradient(self) -> Tensor:
        """Return the gradient [T, P] of the first step, up to a factor. Call after that step."""
        return self.moment_TP

    def _is_as_exact(self, start: int, losses: Tensor, eager_TP: Tensor, other_TP: Tensor) -> bool:
        """Return whether another engine's first step is about as close to float64 as the eager one, in loss and gradient.

        In a network of hundreds of layers, rounding alone changes both by more than a fault might.
        """
        exact = self._restart_first(start).to_float64()
        loss = exact.step()
        eager_error, other_error = (
            (gradient_TP - exact.first_gradient()).norm() for gradient_TP in (eager_TP.double(), other_TP.double())
        )
        eager_loss_error, other_loss_error = (losses.double().squeeze(1) - loss).abs()
        return bool(
            other_error <= MAX_ERROR_RATIO * eager_error
            and other_loss_error <= MAX_ERROR_RATIO * eager_loss_error + STEP_RTOL["full"]
        )

    def step(self) -> Tensor:
        """Advance every trial by one step. Return the batch loss before the step, [T]."""
        if self._native is not None:
            return self._take_native_steps(self._native, 1, None)
        loss_T = self._eager_step() if self._compiled is None else self._compiled_step(self._compiled)
        self.step_count += 1
        return loss_T

    def advance(self, until: int, divergence: Divergence) -> bool:
        """Take one step, or native steps for a fraction of a second, at most up to step `until`.

        Returns:
            Whether divergence was checked.
        """
        step = self.step_count
        if self._native is not None:
            self._take_native_steps(self._native, until - step, divergence)
            return True
        return divergence.check_if_due(self.step(), step)

    def _eager_step(self) -> Tensor:
        x_TBI, labels_TB = self._next_batch()
        if self.shares_batches:
            x_TBI, labels_TB = self._expand(x_TBI, labels_TB)
        loss_T, pieces, self.untrained = gradients(
            self.network, self.plan, self.parameters(), x_TBI, labels_TB, self.untrained
        )
        with torch.no_grad():
            gradient_TP, scratch_TP = self._gradient_TP, self._scratch_TP
            torch.cat([piece.flatten(1) for piece in pieces], dim=1, out=gradient_TP)
            if self.plan.decays_by_gradient:
                gradient_TP += torch.mul(self._decay_TP, self.theta_TP, out=scratch_TP)
            if self.plan.clip_norm is not None:
                squares_T1 = torch.mul(gradient_TP, gradient_TP, out=scratch_TP).sum(1, keepdim=True)
                gradient_TP *= clip_factor(self.plan.clip_norm, squares_T1)
            if not self.plan.decays_by_gradient:
                shrunk_TP = torch.mul(self._decay_TP, self.theta_TP, out=scratch_TP)
                self.theta_TP -= shrunk_TP.mul_(self._schedule.learning_rates(self.step_count))
            moments = Moments(self.moment_TP, self.square_TP)
            optimise(self.plan, self.theta_TP, moments, gradient_TP, self._step_numbers(), scratch_TP)
        return loss_T

    def _compiled_step(self, compiled: CompiledStep) -> Tensor:
        if not compiled.is_bound:
            tensors = [t for t in (self.theta_TP, self.moment_TP, self.square_TP) if t is not None]
            pieces = [list(split_parameters(tensor, self.specs).values()) for tensor in tensors]
            untrained = [self.untrained[spec.name] for spec in self.network.state_specs()]
            compiled.bind([*chain.from_iterable(pieces), *untrained, *self._decays.values(), self._momentum_T1])
        numbers = self._step_numbers()
        with lowered_precision(self.plan.matmul_precision, self.device.type):
            return compiled(numbers.rate, numbers.correction, *self._next_batch())

    def _take_native_steps(self, native: NativeSteps, max_steps: int, divergence: Divergence | None) -> Tensor:
        """Take between 1 and `max_steps` steps within one epoch. Return the losses [T] of the last."""
        batch = len(self.x_NI) if self.shares_batches else self.plan.batch_size or 0
        if not native.is_bound:
            state = StepState(self.theta_TP, self.moment_TP, self.square_TP)
            native.bind(
                self.network,
                self.plan,
                batch,
                state,
                self._native_inputs(),
                self.labels_N,
                self._momentum_T1,
                self._native_decays(),
            )
        order_TN, max_steps = None, min(max_steps, native.pace.steps_per_call)
        if not self.shares_batches:
            order_TN = self._order()[:, self._position :]
            max_steps = min(max_steps, order_TN.shape[1] // batch)
        rate_ST1, correction_S = self._schedule.block(self.step_count, max_steps)
        loss_T = native(self.step_count, rate_ST1, correction_S, order_TN, divergence)
        self.step_count += len(rate_ST1)
        self._position += 0 if order_TN is None else batch * len(rate_ST1)
        return loss_T

    def _native_inputs(self) -> Tensor:
        """Return the samples in the kernels' layout."""
        return self.x_NI

    def _native_decays(self) -> Tensor:
        """Return the weight decay of each of the kernels' groups, [G, T]."""
        kernels = self.network.kernels()
        assert kernels is not None
        decays = [h.weight_decays for h in self.hyperparameters]
        return torch.stack(
            [self._column([trial.get(group, 0.0) for trial in decays]) for group in kernels.decay_groups]
        ).squeeze(2)

    def evaluate(self) -> Evaluation:
        """Compute loss, objective, accuracy and the objective's gradient norm over the whole training set."""
        native = self._native_evaluation
        loss_T, correct_T, gradient_TP = self._losses_and_gradients() if native is None else native(self.theta_TP)
        theta_TP, decay_TP = self.theta_TP.double(), self._decay_TP.double()
        gradient_TP += decay_TP * theta_TP
        objective_T = loss_T + (decay_TP * theta_TP.square()).sum(1) / 2
        accuracy_T = correct_T / len(self.x_NI)
        return Evaluation(loss_T, objective_T, accuracy_T, gradient_TP.square().sum(1).sqrt())

    def _losses_and_gradients(self) -> tuple[Tensor, Tensor, Tensor]:
        """Compute loss [T], correct samples [T] and the loss's gradient [T, P] over the whole training set."""
        leaves = leaves_of(self.parameters(), self.network.fixed_parameters)
        num_samples = len(self.x_NI)
        chunk_size = self.samples_per_evaluation()
        loss_T = torch.zeros(self.num_trials, dtype=torch.float64, device=self.device)
        correct_T = torch.zeros_like(loss_T)
        gradient_TP = torch.zeros_like(self.theta_TP, dtype=torch.float64)
        for start in range(0, num_samples, chunk_size):
            rows = slice(start, start + chunk_size)
            x_TBI, labels_TB = self._expand(self.x_NI[rows], self.labels_N[rows])
            logits_TBK = self.network.logits(leaves, x_TBI, self.untrained)
            weight = x_TBI.shape[1] / num_samples
            chunk_loss_T = self._losses(logits_TBK, labels_TB) * weight
            pieces = gradients_of(chunk_loss_T.sum(), leaves)
            gradient_TP += torch.cat([piece.flatten(1) for piece in pieces], dim=1)
            loss_T += chunk_loss_T.detach().double()
            correct_T += self.num_correct(logits_TBK.detach(), labels_TB)
        return loss_T, correct_T, gradient_TP

    def _losses(self, logits_TBK: Tensor, labels_TB: Tensor) -> Tensor:
        return losses(self.plan.loss, logits_TBK, labels_TB, self.plan.label_smoothing)

    def num_correct(self, logits_TBK: Tensor, labels_TB: Tensor) -> Tensor:
        """Count the correctly classified samples, [T] in float64."""
        return (logits_TBK.argmax(-1) == labels_TB).double().sum(1)

    def on_samples(self, x_NI: Tensor, labels_N: Tensor) -> FusedTrainer:
        """Return a copy of this trainer over other samples, for evaluation and measurement, not for training."""
        other = copy.copy(self)
        other.x_NI, other.labels_N, other._native_evaluation = x_NI, labels_N, None
        return other

    def scores(self) -> dict[str, Tensor]:
        """Compute loss and accuracy over all samples without gradients, [T] in float64 each."""
        parameters, chunk_size = self.parameters(), self.samples_per_evaluation()
        loss_T = torch.zeros(self.num_trials, dtype=torch.float64, device=self.device)
        correct_T = torch.zeros_like(loss_T)
        with torch.no_grad():
            for start in range(0, len(self.x_NI), chunk_size):
                rows = slice(start, start + chunk_size)
                x_TBI, labels_TB = self._expand(self.x_NI[rows], self.labels_N[rows])
                logits_TBK = self.network.logits(parameters, x_TBI, self.untrained)
                loss_T += self._losses(logits_TBK, labels_TB).double() * x_TBI.shape[1]
                correct_T += self.num_correct(logits_TBK, labels_TB)
        return {"loss": loss_T / len(self.x_NI), "accuracy": correct_T / len(self.x_NI)}

    def features(self, trial: int) -> Iterator[Tensor]:
        """Yield the features [1, N, *shape] of one trial layer by layer, in the training dtype.

        A network with several rows per sample runs in chunks of samples, because its activations are larger than its features.
        """
        if self._native_evaluation is not None and self._native_evaluation.can_hold_layers:
            yield from self._native_evaluation.layers(self.theta_TP[trial : trial + 1])
            return
        parameters, untrained = self._state_of_trial(trial)
        x_1NI = self.x_NI.unsqueeze(0)
        with torch.no_grad():
            if self.network.rows_per_sample == 1:
                yield from self.network.features(parameters, x_1NI, untrained)
                return
            chunk_size = self.samples_per_evaluation()
            inputs = [x_1NI[:, start : start + chunk_size] for start in range(0, x_1NI.shape[1], chunk_size)]
            parts: list[Iterable[Tensor]] = [self.network.features(parameters, part, untrained) for part in inputs]
            if not self.network.holds_only_features:
                parts = [list(part) for part in parts]
            yield from (torch.cat(layer, dim=1) for layer in zip(*parts, strict=True))

    def outputs(self, trial: int) -> Tensor:
        """Compute the outputs [1, N, ...] of one trial for all samples at once, without gradients."""
        parameters, untrained = self._state_of_trial(trial)
        with torch.no_grad():
            return self.network.logits(parameters, self.x_NI.unsqueeze(0), untrained)

    def _state_of_trial(self, trial: int) -> tuple[Tensors, Tensors]:
        """Return one trial's parameters and untrained state, [1, ...] each."""
        rows = slice(trial, trial + 1)
        untrained = {name: tensor[rows] for name, tensor in self.untrained.items()}
        return {name: p[rows] for name, p in self.parameters().items()}, untrained

    def smallest_variance(self, trial: int) -> float | None:
        """Return the smallest variance of a LayerNorm's input row in one trial, or None if kernels cannot compute it."""
        return (
            None
            if self._native_evaluation is None
            else self._native_evaluation.smallest_variance(self.theta_TP[trial : trial + 1])
        )

    def lr_at(self, step: int) -> list[float]:
        """Return the learning rate of each trial at a step."""
        factor = learning_rate_factor(self.plan.schedule, step, self.plan.num_steps, self.plan.milestones)
        return [h.lr * factor for h in self.hyperparameters]

    def to_float64(self) -> Self:
        """Return an eager float64 trainer of the same trials with the same parameters."""
        plan = dataclasses.replace(self.plan, dtype=torch.float64, matmul_precision="full")
        other = self._restart(self.num_trials, plan, _to_float64)
        other.step_count, other.theta_TP = self.step_count, _to_float64(self.theta_TP)
        return other

    def select(self, trials: Sequence[int]) -> None:
        """Continue with these trials only. Their state is unchanged to the bit."""
        index = torch.tensor(list(trials), dtype=torch.int64)
        self.theta_TP = self.theta_TP[index]
        self.moment_TP = self.moment_TP[index]
        self.square_TP = None if self.square_TP is None else self.square_TP[index]
        self._order_TN = None if self._order_TN is None else self._order_TN[index]
        self.untrained = {name: tensor[index] for name, tensor in self.untrained.items()}
        self._generators = [self._generators[trial] for trial in trials]
        if self._streamed is not None:
            self._streamed.select(trials)
        self.hyperparameters = [self.hyperparameters[trial] for trial in trials]
        self._prepare()

    def state(self) -> dict[str, Any]:
        """Return the state for `load_state`, as tensors and numbers."""
        return {
            "step_count": self.step_count,
            "position": self._position,
            "theta_TP": self.theta_TP,
            "moment_TP": self.moment_TP,
            "square_TP": self.square_TP,
            "order_TN": self._order_TN,
            "untrained": dict(self.untrained),
            "generators": [generator.get_state() for generator in self._generators],
            "streamed": None if self._streamed is None else self._streamed.state(),
        }

    def load_state(self, state: Mapping[str, Any], trials: Sequence[int] | None = None) -> None:
        """Resume from the `state` of these trials, in this order, by default of all trials."""
        generators = state["generators"]
        index = torch.tensor(range(len(generators)) if trials is None else list(trials), dtype=torch.int64)

        def rows_of(name: str) -> Tensor | None:
            return None if state[name] is None else state[name][index].to(self.device)

        theta_TP, moment_TP = rows_of("theta_TP"), rows_of("moment_TP")
        assert theta_TP is not None and moment_TP is not None and theta_TP.shape == self.theta_TP.shape
        self.step_count, self._position = state["step_count"], state["position"]
        self.theta_TP, self.moment_TP = theta_TP, moment_TP
        self.square_TP, self._order_TN = rows_of("square_TP"), rows_of("order_TN")
        saved = state.get("untrained", {})  # checkpoints of older versions have none
        self.untrained = {name: saved[name][index].to(self.device) for name in self.untrained}
        self._prepare()
        for generator, row in zip(self._generators, index.tolist(), strict=True):
            generator.set_state(generators[row])
        if self._streamed is not None:
            self._streamed.load_state(state["streamed"])

    def _prepare(self) -> None:
        """Build the per-trial hyper-parameters as tensors that broadcast over [T, P], and release bound engines."""
        decays = [h.weight_decays for h in self.hyperparameters]
        self._decays = {group: self._column([trial[group] for trial in decays]) for group in decay_groups(self.specs)}
        zero_T1 = self._column([0.0] * self.num_trials)
        pieces = [(zero_T1 if s.decay is None else self._decays[s.decay]).expand(-1, s.size) for s in self.specs]
        self._decay_TP = torch.cat(pieces, dim=1)
        self._momentum_T1 = self._column([h.momentum for h in self.hyperparameters])
        self._schedule = Rates(self.plan, self.hyperparameters, self.device)
        # Reused between steps: fresh buffers of this size cost more in page faults than the arithmetic.
        self._gradient_TP, self._scratch_TP = torch.empty_like(self.theta_TP), torch.empty_like(self.theta_TP)
        for steps in (self._compiled, self._native):
            if steps is not None:
                steps.release()

    def _step_numbers(self) -> StepNumbers:
        return StepNumbers(self._momentum_T1, *self._schedule.at(self.step_count))

    def _check_decay_groups(self) -> None:
        groups = decay_groups(self.specs)
        for h in self.hyperparameters:
            if missing := set(groups) - h.weight_decays.keys():
                raise ValueError(
                    f"{type(self.network).__name__} has the decay groups {groups}, but a trial has weight decays only for "
                    f"{sorted(h.weight_decays)}. Add {sorted(missing)}."
                )

    def samples_per_evaluation(self) -> int:
        """Return the number of samples evaluated at a time. It is the same for every pack so that sums round alike."""
        return max(1, evaluation_rows() // self.network.rows_per_sample)

    def _column(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).to(self.plan.dtype).unsqueeze(1).to(self.device)

    def _expand(self, x_NI: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
        """Expand samples shared by all trials to [T, N, ...]."""
        return x_NI.expand(self.num_trials, *x_NI.shape), labels_N.expand(self.num_trials, *labels_N.shape)

    def _next_batch(self) -> tuple[Tensor, Tensor]:
        """Return the next batch of every trial. A full batch is the training set itself, without a trial axis.

        Every trial follows its own permutation, all at the same position in the epoch. An incomplete last batch is skipped.
        """
        batch = self.plan.batch_size
        if self._streamed is not None:
            x_TBI, labels_TB = self._streamed.next()
            return x_TBI.to(self.device), labels_TB.to(self.device)
        if batch is None or self.shares_batches:
            return self.x_NI, self.labels_N
        index_TB = self._order()[:, self._position : self._position + batch]
        self._position += batch
        index = index_TB.reshape(-1)
        return self.x_NI.index_select(0, index).view(*index_TB.shape, *self.x_NI.shape[1:]), self.labels_N[index_TB]

    def _order(self) -> Tensor:
        """Return the sample indices [T, N] of the current epoch, drawing new ones if no complete batch is left."""
        assert self.plan.batch_size is not None
        num_samples = len(self.x_NI)
        if self._order_TN is None or self._position + self.plan.batch_size > num_samples:
            orders = [torch.randperm(num_samples, generator=g) for g in self._generators]
            self._order_TN = torch.stack(orders).to(self.device)
            self._position = 0
        return self._order_TN
