"""What the words of a fit are worth: on simulated curves, how often the rule names the true form, a false one, or none.

    python -m benchmarks.preferred [--simulations 300] [--depths 5,6,7,8] [--seeds 3,5] [--noise independent]

Each row is a true curve over the first depths of 2, 3, 5, 8, 13, 21, 34, 55. Noise of log y as in benchmarks/coverage.py
(independent, 10 %; shift, slope, smooth), and two more of 10 %: `rising`, whose standard deviation grows from 5 to 20 % over
ln depth, and `skewed`, exponentially distributed.

`rejected`: the test against one mean per depth rejects the power law at 5 %. `alone`: the true form is named alone. `among`:
it is named among others, or another curve is not ruled out. `false alone`: a false form is named alone. `none`: no form is
named. `flat`: the values are called flat. The other curves get several forms, all of them false.
"""

import argparse
import time
from collections import Counter

import numpy as np

from benchmarks.coverage import Array, noise
from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.analysis.preference import LEVEL, GroupState
from depthrate.tasks.fits.rates import fit_many

DEPTHS = np.array([2.0, 3, 5, 8, 13, 21, 34, 55])
COLUMNS = ("alone", "among", "false alone", "none", "flat")


def _broken(x: Array, before: float, after: float, sharpness: float = np.inf) -> Array:
    """Return x^-before up to 8 and x^-after beyond, with a sharp or a smooth break."""
    share = x / 8
    if np.isinf(sharpness):
        return np.where(share < 1, share**-before, share**-after)
    return np.asarray(share**-before * ((1 + share**sharpness) / 2) ** ((before - after) / sharpness))


def truths(x: Array) -> dict[str, Array]:
    """Return the curves by name. Those whose name is not a model's are none of the forms."""
    log_x = np.log(x)
    return {
        "power": 3 * x**-0.5,
        "power_floor": 3 * x**-1.0 + 0.15,
        "power_correction": 3 * x**-0.5 * (1 + 1 / x),
        "power_log": 3 * x**-1.0 * log_x**0.7,
        "log_linear": 3 * (1 - 0.2 * log_x),
        "exponential": 3 * np.exp(-0.05 * x),
        "broken .3 to 1": _broken(x, 0.3, 1.0),
        "broken .3 to 1, smooth": _broken(x, 0.3, 1.0, 2.0),
        "broken .9 to .3": _broken(x, 0.9, 0.3),
        "bump of 65 %": 3 * x**-0.5 * np.exp(0.5 * np.exp(-(((log_x - np.log(8)) / 0.5) ** 2))),
        "bump, wide": 3 * x**-0.5 * np.exp(0.5 * np.exp(-(((log_x - np.log(8)) / 1.0) ** 2))),
        "step": 3 * (1 - 0.6 / (1 + (8 / x) ** 6)),
        "constant": np.full_like(x, 3.0),
    }


def noise_of(kind: str, x: Array, num_seeds: int, num_curves: int) -> Array:
    """Return the noise added to log y, [C, S, G]."""
    rng = np.random.default_rng(5)
    shape, log_x = (num_curves, num_seeds, len(x)), np.log(x)
    if kind == "rising":
        share_G = (log_x - log_x[0]) / (log_x[-1] - log_x[0])
        return 0.05 * 4**share_G * rng.standard_normal(shape)
    if kind == "skewed":
        return 0.1 * (rng.exponential(size=shape) - 1)
    return noise(kind, x, num_seeds, num_curves, seed=5)


def judged(truth: str, kind: str, num_depths: int, num_seeds: int, num_curves: int) -> tuple[float, Counter[str]]:
    """Return the share of rejected power laws, and the number of curves per outcome of `COLUMNS`."""
    depths = DEPTHS[:num_depths]
    y_CN = (truths(depths)[truth] * np.exp(noise_of(kind, depths, num_seeds, num_curves))).reshape(num_curves, -1)
    x, seeds = np.tile(depths, num_seeds), np.repeat(np.arange(num_seeds), num_depths).tolist()
    rejected, outcomes = 0, Counter[str]()
    for y_N, fits in zip(y_CN, fit_many(x, y_CN, seeds=seeds), strict=True):
        rows = [{"x": a, "y": b} for a, b in zip(x.tolist(), y_N.tolist(), strict=True)]
        curve = FittedGroup("nc1", "depth", {}, rows, fits, {})
        preference = curve.preference
        rejected += (fits[0].p_lack_of_fit or 1.0) < LEVEL
        if preference.state is GroupState.FLAT:
            outcomes["flat"] += 1
        elif not preference.models:
            outcomes["none"] += 1
        elif truth in preference.names:
            outcomes["alone" if preference.is_decided else "among"] += 1
        elif preference.is_decided:
            outcomes["false alone"] += 1
    return rejected / num_curves, outcomes


def main() -> None:
    """Print one row per number of depths, number of seeds and truth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=300)
    parser.add_argument("--depths", default="5,6,7,8")
    parser.add_argument("--seeds", default="3,5")
    parser.add_argument("--noise", default="independent")
    options = parser.parse_args()
    started = time.perf_counter()
    print(f"{'truth':23} {'noise':12} depths seeds rejected  " + "  ".join(COLUMNS))
    for truth in truths(DEPTHS):
        for kind in options.noise.split(","):
            for num_seeds in map(int, options.seeds.split(",")):
                for num_depths in map(int, options.depths.split(",")):
                    rejected, outcomes = judged(truth, kind, num_depths, num_seeds, options.simulations)
                    shares = (f"{outcomes[name] / options.simulations:{len(name)}.2f}" for name in COLUMNS)
                    row = f"{truth:23} {kind:12} {num_depths:6} {num_seeds:5} {rejected:8.3f}  " + "  ".join(shares)
                    print(row, flush=True)
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
