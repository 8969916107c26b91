"""Fused training: T trials of one shape advance together, each exactly as if it were alone.

On the CPU with one thread every number of a trial is bitwise independent of the pack it runs in. That rests on three
habits: matrix products are batched over T (never merged), reductions never cross the trial axis, and the update is made of
single elementwise operations (a fused multiply-add would round differently in a vector loop and in its remainder).

Shapes: T trials, N samples, B batch, I input dimensions, K classes, P parameters of one trial.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthrate.tasks.networks.flat_parameters import initial_parameters, initial_state, split_parameters
from depthrate.tasks.networks.network import Network
from depthrate.tasks.training.objective import data_term
from depthrate.tasks.training.plan import EVALUATION_ROWS, Hyperparameters, TrainingPlan, learning_rate_factor


@dataclass(frozen=True)
class Evaluation:
    """Numbers over the whole training set, each a float64 tensor [T]."""

    loss: Tensor
    objective: Tensor
    accuracy: Tensor
    grad_norm: Tensor


def stream(seed: int, purpose: str) -> torch.Generator:
    """Return a CPU generator for one purpose of one trial; streams of other seeds and purposes are unrelated."""
    digest = hashlib.sha256(f"depthrate/{purpose}/{seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


class FusedTrainer:
    """Trains T networks of one shape on one data set; diverged trials leave the pack and disturb nobody."""

    def __init__(
        self,
        network: Network,
        plan: TrainingPlan,
        hyperparameters: Sequence[Hyperparameters],
        x_NI: Tensor,
        labels_N: Tensor,
    ):
        self.network, self.plan = network, plan
        self.specs = network.parameter_specs()
        self.hyperparameters = list(hyperparameters)
        self.x_NI, self.labels_N = x_NI, labels_N
        self.device = x_NI.device
        self._check_decay_groups()
        self.step_count = 0
        self.theta_TP = torch.stack(
            [initial_parameters(self.specs, plan.init, stream(h.seed, "init"), plan.dtype) for h in hyperparameters]
        ).to(self.device)
        self.moment_TP = torch.zeros_like(self.theta_TP)
        self.square_TP = torch.zeros_like(self.theta_TP) if plan.optimizer == "adam" else None
        self.untrained = initial_state(network.state_specs(), len(self.hyperparameters), plan.dtype, self.device)
        self._generators = [stream(h.seed, "data order") for h in hyperparameters]
        self._order_TN: Tensor | None = None
        self._position = 0
        self._prepare()

    @property
    def num_trials(self) -> int:
        """Trials still training."""
        return len(self.hyperparameters)

    @property
    def decay_TP(self) -> Tensor:
        """Each parameter's lambda of (lambda/2) theta^2."""
        return self._decay_TP

    def parameters(self) -> dict[str, Tensor]:
        """Return the parameters by name, each [T, *shape], as views."""
        return split_parameters(self.theta_TP, self.specs)

    def step(self) -> Tensor:
        """Advance every trial by one step and return the loss of its batch before the step, [T]."""
        x_TBI, labels_TB = self._next_batch()
        leaves = {name: p.detach().requires_grad_() for name, p in self.parameters().items()}
        logits_TBK, untrained = self.network.training_logits(leaves, x_TBI, self.untrained)
        loss_T = self._losses(logits_TBK, labels_TB)
        gradients = torch.autograd.grad(loss_T.sum(), list(leaves.values()))
        with torch.no_grad():
            torch.cat([g.flatten(1) for g in gradients], dim=1, out=self._gradient_TP)
            self._update(self._gradient_TP)
        self.untrained = {name: tensor.detach() for name, tensor in untrained.items()}
        self.step_count += 1
        return loss_T.detach()

    def evaluate(self) -> Evaluation:
        """Return loss, objective, accuracy and the objective's gradient norm over the whole training set."""
        leaves = {name: p.detach().requires_grad_() for name, p in self.parameters().items()}
        num_samples = len(self.x_NI)
        chunk = self._samples_at_once()
        loss_T = torch.zeros(self.num_trials, dtype=torch.float64, device=self.device)
        correct_T = torch.zeros_like(loss_T)
        gradient_TP = torch.zeros_like(self.theta_TP, dtype=torch.float64)
        for start in range(0, num_samples, chunk):
            x_TBI, labels_TB = self._shared(slice(start, start + chunk))
            logits_TBK = self.network.logits(leaves, x_TBI, self.untrained)
            weight = x_TBI.shape[1] / num_samples
            chunk_loss_T = self._losses(logits_TBK, labels_TB) * weight
            gradients = torch.autograd.grad(chunk_loss_T.sum(), list(leaves.values()))
            gradient_TP += torch.cat([g.flatten(1) for g in gradients], dim=1)
            loss_T += chunk_loss_T.detach().double()
            correct_T += (logits_TBK.detach().argmax(-1) == labels_TB).double().sum(1)
        theta_TP = self.theta_TP.double()
        decay_TP = self._decay_TP.double()
        gradient_TP += decay_TP * theta_TP
        objective_T = loss_T + (decay_TP * theta_TP.square()).sum(1) / 2
        return Evaluation(loss_T, objective_T, correct_T / num_samples, gradient_TP.square().sum(1).sqrt())

    def features(self, trial: int) -> Iterator[Tensor]:
        """Yield the features [1, N, *shape] of one trial layer by layer, in the training dtype.

        A network with several rows a sample is asked in parts: what it holds of a sample is larger than what it yields.
        """
        rows = slice(trial, trial + 1)
        parameters = {name: p[rows] for name, p in self.parameters().items()}
        untrained = {name: tensor[rows] for name, tensor in self.untrained.items()}
        x_1NI = self.x_NI.unsqueeze(0)
        with torch.no_grad():
            if self.network.rows_per_sample == 1:
                yield from self.network.features(parameters, x_1NI, untrained)
                return
            chunk = self._samples_at_once()
            inputs = [x_1NI[:, start : start + chunk] for start in range(0, x_1NI.shape[1], chunk)]
            parts = [list(self.network.features(parameters, part, untrained)) for part in inputs]
            yield from (torch.cat(layer, dim=1) for layer in zip(*parts, strict=True))

    def lr_at(self, step: int) -> list[float]:
        """Return the learning rate of each trial at a step."""
        factor = learning_rate_factor(self.plan.schedule, step, self.plan.num_steps)
        return [h.lr * factor for h in self.hyperparameters]

    def in_float64(self) -> FusedTrainer:
        """Return a trainer of the same trials with the same parameters, which evaluates in float64."""
        x_NI = self.x_NI.double() if self.x_NI.is_floating_point() else self.x_NI
        plan = dataclasses.replace(self.plan, dtype=torch.float64)
        other = FusedTrainer(self.network, plan, self.hyperparameters, x_NI, self.labels_N)
        other.step_count, other.theta_TP = self.step_count, self.theta_TP.double()
        other.untrained = {name: tensor.double() for name, tensor in self.untrained.items()}
        return other

    def keep(self, trials: Sequence[int]) -> None:
        """Go on with these trials only; those that stay are not changed by a bit."""
        index = torch.tensor(list(trials), dtype=torch.int64)
        self.theta_TP = self.theta_TP[index]
        self.moment_TP = self.moment_TP[index]
        self.square_TP = None if self.square_TP is None else self.square_TP[index]
        self._order_TN = None if self._order_TN is None else self._order_TN[index]
        self.untrained = {name: tensor[index] for name, tensor in self.untrained.items()}
        self._generators = [self._generators[trial] for trial in trials]
        self.hyperparameters = [self.hyperparameters[trial] for trial in trials]
        self._prepare()

    def state(self) -> dict[str, Any]:
        """Return all that training needs to go on, as tensors and numbers."""
        return {
            "step_count": self.step_count,
            "position": self._position,
            "theta_TP": self.theta_TP,
            "moment_TP": self.moment_TP,
            "square_TP": self.square_TP,
            "order_TN": self._order_TN,
            "untrained": dict(self.untrained),
            "generators": [generator.get_state() for generator in self._generators],
        }

    def load_state(self, state: Mapping[str, Any], trials: Sequence[int] | None = None) -> None:
        """Go on from what `state` gave: of these trials of it, in this order; by default of all of them."""
        generators = state["generators"]
        index = torch.tensor(range(len(generators)) if trials is None else list(trials), dtype=torch.int64)

        def chosen(name: str) -> Tensor | None:
            return None if state[name] is None else state[name][index].to(self.device)

        theta_TP, moment_TP = chosen("theta_TP"), chosen("moment_TP")
        assert theta_TP is not None and moment_TP is not None and theta_TP.shape == self.theta_TP.shape
        self.step_count, self._position = state["step_count"], state["position"]
        self.theta_TP, self.moment_TP = theta_TP, moment_TP
        self.square_TP, self._order_TN = chosen("square_TP"), chosen("order_TN")
        saved = state.get("untrained", {})  # checkpoints of older versions have none
        self.untrained = {name: saved[name][index].to(self.device) for name in self.untrained}
        for generator, row in zip(self._generators, index.tolist(), strict=True):
            generator.set_state(generators[row])

    def _prepare(self) -> None:
        """Lay out the per-trial hyper-parameters as tensors that broadcast over [T, P]."""
        pieces = []
        for spec in self.specs:
            decays = [0.0 if spec.decay is None else h.weight_decays[spec.decay] for h in self.hyperparameters]
            decay_T = torch.tensor(decays, dtype=torch.float64).to(self.plan.dtype)
            pieces.append(decay_T.unsqueeze(1).expand(-1, spec.size))
        self._decay_TP = torch.cat(pieces, dim=1).to(self.device)
        self._momentum_T1 = self._column([h.momentum for h in self.hyperparameters])
        # Two buffers kept between steps: fresh ones of this size cost more in page faults than the arithmetic.
        self._gradient_TP, self._scratch_TP = torch.empty_like(self.theta_TP), torch.empty_like(self.theta_TP)

    def _check_decay_groups(self) -> None:
        groups = {spec.decay for spec in self.specs if spec.decay is not None}
        for h in self.hyperparameters:
            if missing := groups - h.weight_decays.keys():
                raise ValueError(
                    f"{type(self.network).__name__} has the decay groups {sorted(groups)}, a trial gives a weight decay "
                    f"for {sorted(h.weight_decays)}; give one for {sorted(missing)} too"
                )

    def _samples_at_once(self) -> int:
        return max(1, EVALUATION_ROWS // self.network.rows_per_sample)

    def _column(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).to(self.plan.dtype).unsqueeze(1).to(self.device)

    def _shared(self, rows: slice) -> tuple[Tensor, Tensor]:
        x_NI, labels_N = self.x_NI[rows], self.labels_N[rows]
        return x_NI.expand(self.num_trials, *x_NI.shape), labels_N.expand(self.num_trials, len(labels_N))

    def _next_batch(self) -> tuple[Tensor, Tensor]:
        """Every trial walks its own permutation, all at the same place of the epoch; an incomplete last batch is left out."""
        num_samples, batch = len(self.x_NI), self.plan.batch_size
        if batch is None or batch >= num_samples:
            return self._shared(slice(None))
        if self._order_TN is None or self._position + batch > num_samples:
            orders = [torch.randperm(num_samples, generator=g) for g in self._generators]
            self._order_TN = torch.stack(orders).to(self.device)
            self._position = 0
        chosen_TB = self._order_TN[:, self._position : self._position + batch]
        self._position += batch
        chosen = chosen_TB.reshape(-1)
        return self.x_NI.index_select(0, chosen).view(*chosen_TB.shape, *self.x_NI.shape[1:]), self.labels_N[chosen_TB]

    def _losses(self, logits_TBK: Tensor, labels_TB: Tensor) -> Tensor:
        return data_term(self.plan.loss, logits_TBK, labels_TB)

    def _update(self, gradient_TP: Tensor) -> None:
        scratch_TP = self._scratch_TP
        gradient_TP += torch.mul(self._decay_TP, self.theta_TP, out=scratch_TP)
        if self.plan.clip_norm is not None:
            norm_T1 = torch.mul(gradient_TP, gradient_TP, out=scratch_TP).sum(1, keepdim=True).sqrt()
            gradient_TP *= (self.plan.clip_norm / (norm_T1 + 1e-6)).clamp(max=1.0)
        rates = self.lr_at(self.step_count)
        if self.plan.optimizer == "sgd":
            self.moment_TP.mul_(self._momentum_T1).add_(gradient_TP)
            self.theta_TP -= torch.mul(self.moment_TP, self._column(rates), out=scratch_TP)
            return
        assert self.square_TP is not None
        beta1, beta2 = self.plan.adam_betas
        # The bias corrections are formed in float64 and rounded once: in float32 they drift by 1e-4 in 100 steps.
        step_size_T1 = self._column([rate / (1 - beta1 ** (self.step_count + 1)) for rate in rates])
        correction = math.sqrt(1 - beta2 ** (self.step_count + 1))
        self.moment_TP.mul_(beta1).add_(torch.mul(gradient_TP, 1 - beta1, out=scratch_TP))
        gradient_TP *= gradient_TP
        self.square_TP.mul_(beta2).add_(gradient_TP.mul_(1 - beta2))
        torch.sqrt(self.square_TP, out=scratch_TP).div_(correction).add_(self.plan.adam_eps)
        torch.div(self.moment_TP, scratch_TP, out=scratch_TP)
        self.theta_TP -= scratch_TP.mul_(step_size_T1)
