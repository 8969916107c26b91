"""The stationary solver: its stationary points of the smooth objective are confirmed by scipy with an independent formula."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from depthrate.tasks.interface import Engine
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.supervised.task import COLLAPSE
from depthrate.tasks.training.polish.newton_cg import NewtonCg
from depthrate.tasks.training.polish.polisher import Polisher, min_subgradient_norm
from tests.support.training_context import Context, assert_same, ids_of, run_resumed


def params_of(**changes):
    base = {"arch": "rn1", "depth": 2, "width": 16, "samples_per_class": 8, "steps": 100, "dtype": "float64"}
    base |= {"train_embedding": False, "polish": 4000, "polish_to": "stationary", "polish_memory": 50}
    base |= {"polish_tolerance": 1e-8, "polish_barrier": 0.0, "polish_smoothing": [0.03, 0.01], "measure_steps": []}
    return COLLAPSE.schema.fill({**base, **changes})


def run(trials):
    return list(COLLAPSE.run(trials, Context(ids_of(trials))))


def training_of(params):
    return COLLAPSE.training([COLLAPSE.read(params)], Context().data)


def polished(params):
    training = training_of(params)
    trainer = training.begin()
    while trainer.step_count < training.plan.num_steps:
        trainer.step()
    trainer = trainer.to_float64()
    polisher = Polisher(training.polish, trainer)
    while polisher.active:
        polisher.step()
    polisher.compare([0])
    return trainer, polisher


class OwnFormula:
    """L-RN1 in numpy, with its gradient by hand: nothing of the project's but the numbers it starts with."""

    def __init__(self, trainer, depth, width, *, decay_biases=0.0):
        self.x, self.y, self.depth, self.w = trainer.x_NI.numpy(), trainer.labels_N.numpy(), depth, width
        self.decays = {"W": 0.005, "b": decay_biases}
        self.start = {name: value[0].numpy() for name, value in trainer.parameters().items()}
        self.free = [name for name in self.start if name not in ("W_0", "b_0")]

    def flat(self):
        return np.concatenate([self.start[name].ravel() for name in self.free])

    def weights(self, flat):
        sizes = np.cumsum([self.start[name].size for name in self.free])[:-1]
        parts = np.split(flat, sizes)
        return self.start | {n: p.reshape(self.start[n].shape) for n, p in zip(self.free, parts, strict=True)}

    @staticmethod
    def norm(h):
        centred = h - h.mean(1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(1, keepdims=True) + 1e-12)
        return centred / deviation, deviation

    def __call__(self, flat):
        theta, n = self.weights(flat), len(self.y)
        h, _ = self.norm(self.x @ theta["W_0"].T + theta["b_0"])
        kept = []
        for block in range(1, self.depth):
            z = h @ theta[f"W_{block}"].T + theta[f"b_{block}"]
            root = np.sqrt(z * z + self.w**2)
            out, deviation = self.norm(h + (z + root) / 2)
            kept.append((h, (1 + z / root) / 2, out, deviation))
            h = out
        logits = h @ theta["W_L"].T + theta["b_L"]
        logits -= logits.max(1, keepdims=True)
        p = np.exp(logits)
        p /= p.sum(1, keepdims=True)
        value = -np.log(p[np.arange(n), self.y]).mean()
        p[np.arange(n), self.y] -= 1
        delta, found = p / n, {}
        found["W_L"], found["b_L"] = delta.T @ h, delta.sum(0)
        delta = delta @ theta["W_L"]
        for block in range(self.depth - 1, 0, -1):
            h, slope, out, deviation = kept[block - 1]
            delta = delta - delta.mean(1, keepdims=True) - out * (delta * out).mean(1, keepdims=True)
            delta = delta / deviation
            through = delta * slope
            found[f"W_{block}"], found[f"b_{block}"] = through.T @ h, through.sum(0)
            delta = delta + through @ theta[f"W_{block}"]
        for name in self.free:
            decay = self.decays[name[0]]
            value += decay / 2 * (theta[name] ** 2).sum()
            found[name] = found[name] + decay * theta[name]
        return value, np.concatenate([found[name].ravel() for name in self.free])


AS_IN_OPTIMUM = {"width": 64, "samples_per_class": 20, "normalize": "per_feature", "polish_smoothing": [0.03]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("depth", "decay_biases", "solver"),
    [(2, None, "lbfgs"), (3, 0.005, "lbfgs"), (3, None, "newton_cg"), (2, 0.005, "newton_cg")],
)
def test_an_independent_solver_finds_the_same_objective(depth, decay_biases, solver):
    """scipy starts close to our point, so that it reaches the same basin, and stops by its own criterion."""
    params = params_of(depth=depth, weight_decay_biases=decay_biases, polish_solver=solver, **AS_IN_OPTIMUM)
    trainer, polisher = polished(params)
    own = OwnFormula(trainer, depth, 0.03, decay_biases=decay_biases or 0.0)
    ours, gradient = own(own.flat())
    assert polisher.final_columns(0)["stationary"] == 1 and np.linalg.norm(gradient) <= 1.01e-8 * ours
    start = own.flat() + 1e-3 * np.random.default_rng(0).standard_normal(own.flat().size)
    options = {"maxcor": 50, "maxiter": 5000, "maxfun": 5000, "ftol": 0.0, "gtol": 1e-9}
    theirs = minimize(own, start, jac=True, method="L-BFGS-B", options=options)
    assert own(start)[0] - ours > 1e-6, "it had something to do"
    assert theirs.fun == pytest.approx(ours, abs=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["lbfgs", "newton_cg"])
def test_stationary_or_reported(solver):
    enough, short = (run([params_of(polish_solver=solver, **budget)])[0] for budget in ({}, {"polish": 40}))
    last, cut = enough.tables["curves"][-1], short.tables["curves"][-1]
    assert last["stationary"] == 1 and last["smoothed_grad_norm"] <= 1e-8 * last["objective"]
    assert last["subgradient_norm"] < 0.1 * last["grad_norm"], "kinks floor the gradient, not its least element"
    assert cut["stationary"] == 0 and cut["step"] == 140 and cut["smoothed_grad_norm"] > 1e-8 * cut["objective"]
    assert enough.num_steps < 100 + 4000


@pytest.mark.slow
def test_with_decayed_biases_thirteen_layers_end_too():
    """Where biases cost nothing they grow there, LayerNorms read ever smaller deviations, and no trial has ended."""
    params = params_of(
        depth=13, weight_decay_biases=0.005, polish_solver="newton_cg", polish_memory=12, **AS_IN_OPTIMUM
    )
    (result,) = COLLAPSE.run([params], Context(ids_of([params]), engine=Engine.NATIVE))
    assert result.tables["curves"][-1]["stationary"] == 1
    assert min(result.tables["metrics"][-1]["deviations"][1:]) > 0.9, "behind the embedding's"


@pytest.mark.slow
def test_double_budget_changes_nothing_stationary():
    (one,), (two,) = run([params_of()]), run([params_of(polish=8000)])
    assert one.tables["metrics"][-1]["nc1"] == two.tables["metrics"][-1]["nc1"]


@pytest.mark.slow
def test_the_least_subgradient_falls_with_the_width():
    """The smoothed objective's stationary points go to the true one's as the width goes to 0."""
    packs = ([params_of(polish_smoothing=[0.03, width])] for width in (0.01, 0.001))
    norms = [run(pack)[0].tables["curves"][-1]["subgradient_norm"] for pack in packs]
    assert norms[1] < 0.3 * norms[0]


def test_subgradient_without_kinks():
    trainer = training_of(params_of()).begin()
    norm = min_subgradient_norm(trainer, 0, trainer.theta_TP[0], 1e-12)
    assert norm == pytest.approx(trainer.evaluate()["grad_norm"].item(), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solver", "budget", "stop_at"), [("lbfgs", 150, 170), ("newton_cg", 700, 795), ("newton_cg", 700, 450)]
)
def test_fused_is_alone_and_resumed(solver, budget, stop_at):
    trials = [params_of(seed=seed, polish=budget, polish_solver=solver) for seed in range(3)]
    together = run(trials)
    assert_same(together, [result for params in trials for result in run([params])])
    assert_same(together, run_resumed(COLLAPSE.run, trials, stop_at)[0])


def test_newton_passes_valleys_and_saddles():
    """A valley with Hessian eigenvalues that differ by a factor of 10^6, and (x^2 - 1)^2 + y^2 started close to its saddle."""
    valley = torch.logspace(-3, 3, 12, dtype=torch.float64)

    def narrow(x):
        return (valley * (x - 1).square()).sum() / 2 + (x - 1).pow(4).sum() + 1

    def saddle(x):
        return (x[0] ** 2 - 1) ** 2 + x[1] ** 2 + 1

    for function, start, end in ((narrow, [0.0] * 12, [1.0] * 12), (saddle, [1e-3, 0.5], [1.0, 0.0])):
        point = torch.tensor(start, dtype=torch.float64)
        search = NewtonCg(point, *value_and_gradient(function, point), rounding=1e-10)
        for _ in range(600):
            search.update(*value_and_gradient(function, search.point_P))
            if search.gradient_norm < 1e-10:
                break
        assert search.gradient_norm < 1e-10 and not search.is_stalled
        np.testing.assert_allclose(search.iterate_P.numpy(), end, atol=1e-6)


def value_and_gradient(function, point):
    point = point.clone().requires_grad_()
    value = function(point)
    return value.item(), torch.autograd.grad(value, point)[0]


def test_newton_needs_a_stationary_point():
    with pytest.raises(ParameterError, match="polish_solver is newton_cg, but polish_to is lowest"):
        COLLAPSE.check(COLLAPSE.read(params_of(polish_to="lowest", polish_solver="newton_cg")))


def test_slopes_agree_with_differences():
    trainer = training_of(params_of()).begin()
    own = OwnFormula(trainer, 2, 0.03)
    flat = own.flat()
    step = np.random.default_rng(0).standard_normal(flat.size)
    step /= np.linalg.norm(step)
    difference = (own(flat + 1e-6 * step)[0] - own(flat - 1e-6 * step)[0]) / 2e-6
    assert math.isclose(difference, own(flat)[1] @ step, rel_tol=1e-7)


@pytest.mark.slow
def test_what_trains_without_polish_needs_no_scipy():
    code = "import sys, depthrate.tasks.training.training_pack; assert 'scipy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
