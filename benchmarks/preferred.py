"""What the words of a fit are worth: simulated curves, the test for a bend, and the models that the rule prefers.

    python benchmarks/preferred.py [--simulations 400] [--seeds 3,5]

Noise of log y as in benchmarks/coverage.py (independent, shift, slope, smooth), and two more of 10 %: `rising`, whose
standard deviation grows from 5 to 20 % over ln depth, and `skewed`, exponentially distributed. Seven depths, 2 to 34.
"""

import argparse
import time
from collections import Counter

import numpy as np

from benchmarks.coverage import Array, noise
from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.analysis.preferred_model import LEVEL, preferred_models
from depthrate.tasks.fits.lack_of_fit import lack_of_fit
from depthrate.tasks.fits.rates import fit_many

DEPTHS = np.array([2.0, 3, 5, 8, 13, 21, 34])
NOISES = ("independent", "shift", "slope", "smooth", "rising", "skewed")
LOG = np.log(DEPTHS)
TRUTHS: dict[str, Array] = {
    "power": 3 * DEPTHS**-0.5,
    "power_floor": 3 * DEPTHS**-1.0 + 0.15,
    "power_correction": 3 * DEPTHS**-0.5 * (1 + 1 / DEPTHS),
    "power_log": 3 * DEPTHS**-1.0 * LOG**0.7,
    "log_linear": 3 * (1 - 0.2 * LOG),
    "exponential": 3 * np.exp(-0.05 * DEPTHS),
    "log^2 L / L": LOG**2 / DEPTHS,
    "bump": 3 * DEPTHS**-0.5 * np.exp(0.3 * np.exp(-((LOG - LOG[3]) ** 2))),
}
"""Curves by name. The last two are not among the models."""


def noise_of(kind: str, num_seeds: int, num_curves: int) -> Array:
    """Return the noise added to log y, [C, S, G]."""
    rng = np.random.default_rng(5)
    shape = (num_curves, num_seeds, len(DEPTHS))
    if kind == "rising":
        share_G = (LOG - LOG[0]) / (LOG[-1] - LOG[0])
        return 0.05 * 4**share_G * rng.standard_normal(shape)
    if kind == "skewed":
        return 0.1 * (rng.exponential(size=shape) - 1)
    return noise(kind, DEPTHS, num_seeds, num_curves, seed=5)


def judged(truth: str, kind: str, num_seeds: int, num_curves: int) -> tuple[float, Counter[str]]:
    """Return the share of rejected power laws, and the number of curves per outcome.

    `right`: the true model alone. `among`: several models, the true one among them. `power`: the power law alone, and
    `power first`: first of several, where it is wrong. `none`: no model. `other`: all else.
    """
    y_CN = (TRUTHS[truth] * np.exp(noise_of(kind, num_seeds, num_curves))).reshape(num_curves, -1)
    x, seeds = np.tile(DEPTHS, num_seeds), np.repeat(np.arange(num_seeds), len(DEPTHS)).tolist()
    rejected, outcomes = 0, Counter[str]()
    for y_N, fits in zip(y_CN, fit_many(x, y_CN, seeds=seeds), strict=True):
        p = lack_of_fit(x, y_N, seeds=seeds)
        rejected += p is not None and p < LEVEL
        rows = [{"x": a, "y": b} for a, b in zip(x.tolist(), y_N.tolist(), strict=True)]
        names = preferred_models(FittedCurve("nc1", "depth", {}, rows, fits, {}, p_lack_of_fit=p)).names
        if not names:
            outcomes["none"] += 1
        elif truth in names:
            outcomes["right" if len(names) == 1 else "among"] += 1
        elif names[0] == "power":
            outcomes["power" if len(names) == 1 else "power first"] += 1
        else:
            outcomes["other"] += 1
    return rejected / num_curves, outcomes


def main() -> None:
    """Print one row per truth, noise and number of seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=400)
    parser.add_argument("--seeds", default="3,5")
    options = parser.parse_args()
    started = time.perf_counter()
    columns = ("right", "among", "power", "power first", "other", "none")
    print(f"{'truth':17} {'noise':12} seeds rejected  " + "  ".join(columns))
    for num_seeds in map(int, options.seeds.split(",")):
        for truth in TRUTHS:
            for kind in NOISES:
                rejected, outcomes = judged(truth, kind, num_seeds, options.simulations)
                shares = (f"{outcomes[name] / options.simulations:{len(name)}.2f}" for name in columns)
                print(f"{truth:17} {kind:12} {num_seeds:5} {rejected:8.3f}  " + "  ".join(shares), flush=True)
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
