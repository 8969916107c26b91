"""How long 10,000 fits with 1,000 resamples each take, beside scipy's curve_fit in a loop.

    python benchmarks/fits.py [--curves 10000] [--resamples 1000] [--models power,power_log,exponential]

Curves: 5 depths, 5 seeds, y = 3 depth^-1/2 with 10 % noise. Ours: point estimates, BCa and profile intervals, tests, AICc.
The loop: scipy.optimize.curve_fit on log y of every resample (no intervals from them, no tests), timed on as many fits as
take a few seconds and scaled up; it says how many.
"""

import argparse
import contextlib
import time
import warnings

import numpy as np
from scipy.optimize import OptimizeWarning, curve_fit

from depthrate.tasks.fits.rates import fit_many

DEPTHS = np.array([2.0, 3, 5, 8, 13])
SHAPES = {
    "power": (lambda x, c, a: c - a * np.log(x), (0.0, 1.0)),
    "power_floor": (lambda x, c, a, f: np.logaddexp(c - a * np.log(x), f), (0.0, 1.0, -3.0)),
    "power_log": (lambda x, c, a, b: c - a * np.log(x) + b * np.log(np.log(x)), (0.0, 1.0, 0.0)),
    "exponential": (lambda x, c, a: c - a * x, (0.0, 0.1)),
    "log_linear": (lambda x, c, a: c + np.log(np.maximum(1 - a * np.log(x), 1e-9)), (0.0, 0.1)),
}
LOOP_SECONDS = 4.0


def main() -> None:
    """Print a row a model."""
    warnings.simplefilter("ignore", OptimizeWarning)  # a resample may leave a parameter open
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=int, default=10_000)
    parser.add_argument("--resamples", type=int, default=1_000)
    parser.add_argument("--models", default=",".join(SHAPES))
    options = parser.parse_args()
    x_N = np.repeat(DEPTHS, 5)
    noise_CN = np.random.default_rng(0).standard_normal((options.curves, len(x_N)))
    y_CN = 3 * x_N**-0.5 * np.exp(0.1 * noise_CN)
    print(f"{options.curves} curves of {len(x_N)} points, {options.resamples} resamples each")
    for model in options.models.split(","):
        started, cpu_started = time.perf_counter(), time.process_time()
        fit_many(x_N, y_CN, models=(model,), num_resamples=options.resamples)
        ours_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
        loop_s, num_fits = time_loop(model, x_N, y_CN)
        loop_h = loop_s * options.curves * (options.resamples + 1) / 3600
        theirs = f"curve_fit {loop_s * 1e6:6.0f} us a fit (over {num_fits}): {loop_h:5.1f} h"
        ratio = f"{loop_h * 3600 / ours_s:,.0f} times as long"
        print(f"{model:12} ours {ours_s:7.1f} s ({cpu_s:.1f} s of processor)   {theirs}, {ratio}")


def time_loop(model: str, x_N: np.ndarray, y_CN: np.ndarray) -> tuple[float, int]:
    """Return curve_fit's seconds a fit, and over how many fits they were measured."""
    shape, start = SHAPES[model]
    rng = np.random.default_rng(1)
    started, num_fits = time.perf_counter(), 0
    while time.perf_counter() - started < LOOP_SECONDS:
        values_N = np.log(y_CN[num_fits % len(y_CN)])
        drawn_N = np.concatenate([rng.choice(values_N[x_N == depth], 5) for depth in DEPTHS])
        with contextlib.suppress(RuntimeError):  # one that does not converge took its time all the same
            curve_fit(shape, x_N, drawn_N, p0=start)
        num_fits += 1
    return (time.perf_counter() - started) / num_fits, num_fits


if __name__ == "__main__":
    main()
