"""Coverage of the intervals of rates in several variables, and how often the right form is named, on simulated grids.

    python -m benchmarks.surfaces [--cases 500] [--fits 10000]

Each case is a grid of depths and widths with five seeds, 10 % noise per value and a shift of 5 % per seed. Printed are, for
each true form, the share of cases in which the 95 % interval of each exponent covers it, in which the right form is the only
preferred one or among them, and in which the wrong form is adequate; the coverage of a sum with a floor on grids of 5 depths
and 4 widths with three seeds, without shifts, and the number of intervals that end at their estimate; the share of confounded
grids that are flagged; and the seconds and peak memory of many fits of both forms with 1,000 resamples of 20 seeds.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import time

import numpy as np
import pandas as pd

from depthrate.orchestrator.analysis.table_fit import fit_table
from depthrate.tasks.fits.several_variables import MAX_INFLATION, fit_surfaces

DEPTHS, WIDTHS, SEEDS = (2, 3, 5, 8, 13, 21), (16, 32, 64, 128, 256), 5
NOISE, SHIFT = 0.1, 0.05
TRUE = {"power": (0.5, 0.3), "power_floor": (0.9, 0.7)}
FLOORS = 0.05, 0.2
"""Floors of the grids with three seeds."""


def values(
    form: str, rng: np.random.Generator, depth_N: np.ndarray, width_N: np.ndarray, seed_N: np.ndarray
) -> np.ndarray:
    """Return simulated values of a form."""
    a, b = TRUE[form]
    plane_N, sum_N = 2 * depth_N**-a * width_N**-b, 0.05 + depth_N**-a + 4 * width_N**-b
    clean_N = plane_N if form == "power" else sum_N
    shift_S = rng.normal(0, SHIFT, int(seed_N.max()) + 1)
    return np.asarray(clean_N * np.exp(rng.normal(0, NOISE, len(depth_N)) + shift_S[seed_N]))


def grid(confounded: bool = False, seeds: int = SEEDS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return depth, width and seed of each value. In a confounded grid, width grows with depth."""
    if confounded:
        pairs = [(depth, width) for depth in DEPTHS for width in (16 * depth, 20 * depth)]
    else:
        pairs = [(depth, width) for depth in DEPTHS for width in WIDTHS]
    rows = np.array([(depth, width, seed) for depth, width in pairs for seed in range(seeds)])
    return rows[:, 0].astype(float), rows[:, 1].astype(float), rows[:, 2]


def few_units(cases: int, floor: float) -> str:
    """Return the coverage of a sum's exponents on small grids with three seeds, by the profile likelihood."""
    rows = np.array(list(itertools.product(DEPTHS[:5], WIDTHS[:4], range(3))))
    depth_N, width_N, seed_N = rows[:, 0].astype(float), rows[:, 1].astype(float), rows[:, 2]
    rng, (a, b) = np.random.default_rng(0), TRUE["power_floor"]
    covered, num_at_estimate, num_open = np.zeros(2), 0, 0
    for _ in range(cases):
        y_N = (floor + depth_N**-a + 4 * width_N**-b) * np.exp(rng.normal(0, NOISE, len(rows)))
        found = fit_surfaces([depth_N, width_N], y_N, ["depth", "width"], units=seed_N.tolist(), forms=["power_floor"])
        fit = found.fits[0]
        ends_KE = np.array([interval or (np.inf, -np.inf) for interval in fit.intervals])
        covered += (ends_KE[:, 0] <= (a, b)) & ((a, b) <= ends_KE[:, 1])
        num_at_estimate += int((np.abs(ends_KE - np.array(fit.exponents)[:, None]) < 1e-6).sum())
        num_open += int((~np.isfinite(ends_KE)).any(1).sum())
    shares = ", ".join(f"{share:.3f}" for share in covered / cases)
    return f"covered {shares}; {num_at_estimate} ends at the estimate, {num_open} of {2 * cases} intervals open"


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--fits", type=int, default=0, help="number of fits to time")
    given = parser.parse_args()
    depth_N, width_N, seed_N = grid()
    for form, exponents in TRUE.items():
        rng = np.random.default_rng(0)
        covered, only, among, wrong_adequate = np.zeros(2), 0, 0, 0
        for _ in range(given.cases):
            y_N = values(form, rng, depth_N, width_N, seed_N)
            found = fit_table(
                pd.DataFrame({"depth": depth_N, "width": width_N, "y": y_N, "seed": seed_N}),
                "y",
                ["depth", "width"],
                "seed",
            )
            fit = next(fit for fit in found.surfaces.fits if fit.form == form)
            ends = [interval or (np.inf, -np.inf) for interval in fit.intervals]
            covered += [low <= a <= high for a, (low, high) in zip(exponents, ends, strict=True)]
            names = [fit.form for fit in found.preferred]
            only, among = only + (names == [form]), among + (form in names)
            wrong_adequate += any(not reason for other, reason in found.inadequacy.items() if other != form)
        shares = ", ".join(f"{share:.3f}" for share in covered / given.cases)
        print(
            f"{form:8} covered {shares}; right form alone {only / given.cases:.3f}, among {among / given.cases:.3f}; "
            f"wrong form adequate {wrong_adequate / given.cases:.3f}",
            flush=True,
        )
    for floor in FLOORS:
        print(f"three seeds, floor {floor}: {few_units(given.cases, floor)}", flush=True)
    depth_N, width_N, seed_N = grid(confounded=True)
    rng, flagged = np.random.default_rng(0), 0
    for _ in range(given.cases):
        y_N = values("power", rng, depth_N, width_N, seed_N)
        confounded = fit_surfaces([depth_N, width_N], y_N, ["depth", "width"], units=seed_N.tolist())
        flagged += confounded.inflation > MAX_INFLATION
    print(f"confounded grids flagged {flagged / given.cases:.3f}")
    if given.fits:
        depth_N, width_N, seed_N = grid(seeds=20)
        began = time.process_time()
        for _ in range(given.fits):
            y_N = values("power", rng, depth_N, width_N, seed_N)
            fit_surfaces([depth_N, width_N], y_N, ["depth", "width"], units=seed_N.tolist(), num_resamples=1000)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        print(f"{given.fits} fits: {time.process_time() - began:.1f} processor seconds, peak {peak:.0f} MB")


if __name__ == "__main__":
    main()
