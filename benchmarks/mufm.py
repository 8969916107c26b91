"""Gradient descent on the multilayer unconstrained features model, fused eagerly and natively, beside plain PyTorch.

    python benchmarks/mufm.py

K = 5, n = 100, d = 20, float64, MSE, as in Figures 4 and 5 of P3, one thread. Trial-steps a processor second; the plain side is
one trial by autograd and torch.optim.SGD. Rounds alternate, medians are reported.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from depthrate.tasks.papers.unconstrained.task import MUFM
from depthrate.tasks.papers.unconstrained.training import training
from depthrate.tasks.training.engines.native import native_library
from depthrate.tasks.training.pack_state import Divergence
from depthrate.tasks.training.training import NetworkTraining

CLASSES, SAMPLES, DIMENSION = 5, 100, 20
Advance = Callable[[], int]
"""Takes some steps and returns how many, of all trials together."""


def main() -> None:
    """Print for each depth the trial-steps a processor second of each side, and their ratios to plain PyTorch."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--depths", type=int, nargs="+", default=[1, 5])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for depth in arguments.depths:
        made = _training(depth, arguments.trials)
        sides = {"plain": _plain(depth), "eager": _fused(made, native=False), "native": _fused(made, native=True)}
        found: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(arguments.rounds):
            for side, advance in sides.items():
                found[side].append(_per_second(advance))
        for side, rates in found.items():
            ratios = sorted(rate / plain for rate, plain in zip(rates, found["plain"], strict=True))
            ratio = f"{statistics.median(ratios):6.2f} ({ratios[0]:.2f}..{ratios[-1]:.2f})"
            print(f"depth {depth}  {side:8} {statistics.median(rates):10.0f}  {ratio}", flush=True)


def _per_second(advance: Advance) -> float:
    steps, begun = 0, time.process_time()
    while time.process_time() - begun < 0.5:
        steps += advance()
    return steps / (time.process_time() - begun)


def _training(depth: int, trials: int) -> NetworkTraining:
    shape = {"depth": depth, "num_classes": CLASSES, "samples_per_class": SAMPLES, "dimension": DIMENSION}
    given = {**shape, "solver": "gradient", "steps": 10**8, "lr": 0.2}
    read = [MUFM.read(MUFM.schema.fill({**given, "seed": seed})) for seed in range(trials)]
    generator = torch.Generator().manual_seed(0)
    inputs_ND = torch.randn(CLASSES * SAMPLES, DIMENSION, generator=generator, dtype=torch.float64).numpy()
    return training(read, MUFM.network(read[0], MUFM.data_shape(read[0])), [inputs_ND] * trials)


def _fused(made: NetworkTraining, *, native: bool) -> Advance:
    trainer = made.begin()
    if native:
        trainer.use_native(native_library(trainer.network, trainer.plan, lambda: False)[0])
    divergence = Divergence(trainer.num_trials, trainer.device)

    def advance() -> int:
        before = trainer.step_count
        trainer.advance(before + 1000, divergence)
        return (trainer.step_count - before) * trainer.num_trials

    advance()
    return advance


def _plain(depth: int) -> Advance:
    samples = CLASSES * SAMPLES
    x_ND = torch.randn(samples, DIMENSION, dtype=torch.float64)
    features = [torch.nn.Parameter(x_ND.clone()) for _ in range(depth)]
    weight_KD = torch.nn.Parameter(torch.randn(CLASSES, DIMENSION, dtype=torch.float64) / DIMENSION**0.5)
    targets_NK = torch.eye(CLASSES, dtype=torch.float64).repeat_interleave(SAMPLES, 0)
    groups = [
        {"params": features, "lr": 0.2 * samples},
        {"params": [weight_KD], "lr": 0.2 * CLASSES, "weight_decay": 0.005 / CLASSES},
    ]
    optimizer = torch.optim.SGD(groups)

    def advance() -> int:
        optimizer.zero_grad()
        error_NK = features[-1] @ weight_KD.T - targets_NK
        ways = zip([x_ND, *features[:-1]], features, strict=True)
        pull = sum(((after - before).square().sum() for before, after in ways), torch.zeros(()))
        objective = error_NK.square().sum() / (2 * samples) + 0.001 / (2 * samples) * pull
        objective.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return 1

    return advance


if __name__ == "__main__":
    main()
