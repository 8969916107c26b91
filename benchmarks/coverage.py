"""How often 95 % intervals over whole seeds hold the true exponent, beside those that take every value as a draw of its own.

    python benchmarks/coverage.py [--simulations 1000] [--models power,power_floor] [--missing 0.2]

Noise of log y: `independent` (10 %); `shift`, a seed's values all lie above or below (20 %); `slope`, a seed falls faster or
slower (standard deviation of its exponent .05); `smooth`, a seed bends (a random curve of 10 % over ln depth). The last three
with 3 % of independent noise on top, which real measurements have. Designs: 5 depths (2 to 13) with 3 or 5 seeds, 9 depths
(2 to 512) with 5 seeds. --missing leaves out that share of the values, as diverged trials would be.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from depthrate.tasks.fits.rates import fit_many

Array = npt.NDArray[np.float64]
SHORT = np.array([2.0, 3, 5, 8, 13])
LONG = 2.0 ** np.arange(1, 10)
DESIGNS = {"5 depths, 3 seeds": (SHORT, 3), "5 depths, 5 seeds": (SHORT, 5), "9 depths, 5 seeds": (LONG, 5)}
NOISES = ("independent", "shift", "slope", "smooth")
CURVES: dict[str, tuple[Callable[[Array], Array], float]] = {
    "power": (lambda x: 3 * x**-0.5, 0.5),
    "power_floor": (lambda x: 3 * x**-1.0 + 0.15, 1.0),
    "power_correction": (lambda x: 3 * x**-0.5 * (1 + 1 / x), 0.5),
    "power_log": (lambda x: 3 * x**-1.0 * np.log(x) ** 0.7, 1.0),
    "exponential": (lambda x: 3 * np.exp(-0.05 * x), 0.05),
    "log_linear": (lambda x: 3 * (1 - 0.15 * np.log(x)), 0.15),
}


def noise(kind: str, x: Array, num_seeds: int, num_curves: int, seed: int = 1) -> Array:
    """Return what is added to log y, [C, S, G]."""
    rng = np.random.default_rng(seed)
    log_x, one = np.log(x), (num_curves, num_seeds, 1)
    if kind == "independent":
        return 0.1 * rng.standard_normal((num_curves, num_seeds, len(x)))
    own = 0.03 * rng.standard_normal((num_curves, num_seeds, len(x)))
    if kind == "shift":
        return own + 0.2 * rng.standard_normal(one)
    if kind == "slope":
        return own + 0.05 * rng.standard_normal(one) * (log_x - log_x.mean())
    # a Gaussian process over ln depth, correlated over a factor of e^(2/3) in depth
    distance = np.subtract.outer(log_x, log_x) / (2 / 3)
    values, vectors = np.linalg.eigh(np.exp(-(distance**2) / 2))
    root = vectors * np.sqrt(np.maximum(values, 0))
    return own + 0.1 * rng.standard_normal(own.shape) @ root.T


def coverage(model: str, kind: str, x: Array, num_seeds: int, num_curves: int, missing: float = 0.0) -> list[float]:
    """Return the shares of whole-seed and of independent intervals that hold the exponent, and the median width of both."""
    curve, truth = CURVES[model]
    y = curve(x) * np.exp(noise(kind, x, num_seeds, num_curves))
    kept = np.random.default_rng(2).random((num_seeds, len(x))) >= missing
    seeds, at = np.nonzero(kept)
    row = []
    for whole in (seeds.tolist(), None):
        fits = [fits[0] for fits in fit_many(x[at], y[:, seeds, at], models=(model,), seeds=whole, num_resamples=200)]
        low = np.array([-np.inf if fit.ci_low is None else fit.ci_low for fit in fits])
        high = np.array([np.inf if fit.ci_high is None else fit.ci_high for fit in fits])
        row += [float(np.mean((low <= truth) & (truth <= high))), float(np.median(high - low))]
    return row


def main() -> None:
    """Print a row a model, noise and design."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=1000)
    parser.add_argument("--models", default="power")
    parser.add_argument("--missing", type=float, default=0.0)
    options = parser.parse_args()
    started = time.perf_counter()
    print(
        f"{options.simulations} simulations each; whole seeds | every value a draw of its own: coverage, median width"
    )
    for model in options.models.split(","):
        for kind in NOISES:
            for design, (x, num_seeds) in DESIGNS.items():
                row = coverage(model, kind, x, num_seeds, options.simulations, options.missing)
                print(
                    f"{model:12} {kind:12} {design:18} {row[0]:.3f} {row[1]:7.3f} | {row[2]:.3f} {row[3]:7.3f}",
                    flush=True,
                )
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
