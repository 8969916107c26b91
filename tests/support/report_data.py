"""A report's data made up: a sweep whose metrics fall as powers of depth, with noise."""

import functools
from typing import Any

import numpy as np
import pandas as pd

from depthrate.orchestrator.analysis.columns import known_measurements
from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.monitor.cost import Hours, SweepCost
from depthrate.orchestrator.report.report_data import ReportData
from depthrate.tasks.fits.rates import fit_rates
from depthrate.tasks.supervised.task import COLLAPSE

DEPTHS = (2, 3, 5, 8, 13)
STEPS = (0, 1, 3, 10, 30, 100, 300, 1000, 3000, 12000)
MEASUREMENTS = known_measurements(COLLAPSE)
EXPONENTS = {"nc1": 0.58, "nc2a": 0.45, "nc3": 0.9, "objective_gap": 0.75}


def make_data(
    *,
    depths: tuple[int, ...] = DEPTHS,
    seeds: int = 3,
    by: dict[str, list[Any]] | None = None,
    name: str = "quickstart",
) -> ReportData:
    """A sweep of depths x seeds whose metrics fall as 0.4 depth^-exponent, with noise."""
    rng = np.random.default_rng(0)
    by = by or {}
    groups = [dict(zip(by, values, strict=True)) for values in zip(*by.values(), strict=True)] or [{}]
    trials, metrics, curves = [], [], []
    for group_index, group in enumerate(groups):
        for depth in depths:
            for seed in range(seeds):
                params = {"arch": "rn1", "width": 64, "depth": depth, **group, "seed": seed}
                trial_id = f"{group_index:04x}{depth:08x}{seed:04x}"
                trials.append(_trial(trial_id, rng) | params)
                final = {
                    m: (1 + group_index) * 0.4 * depth**-a * np.exp(0.08 * rng.normal()) for m, a in EXPONENTS.items()
                }
                for step in STEPS:
                    left = np.exp(-step / (400 * depth**0.5))
                    row = {"trial_id": trial_id, "step": step, "split": "train"}
                    curves.append(row | _curve_row(left, final["objective_gap"], rng) | params)
                    layers = range(depth + 1) if step == STEPS[-1] else [depth]
                    for layer in layers:
                        scale = np.exp(3 * (1 - layer / depth) + 2 * left)
                        values = {
                            "nc1": final["nc1"] * scale,
                            "nc2a": final["nc2a"] * (1 + left),
                            "nc3": final["nc3"] * scale,
                        }
                        metrics.append(row | {"layer": layer, "is_last": layer == depth} | values | params)
    metrics_frame, curves_frame = pd.DataFrame(metrics), pd.DataFrame(curves)
    results = _results(metrics_frame, curves_frame)
    return ReportData(
        name=name,
        spec={
            "name": name,
            "task": "collapse",
            "grid": {"depth": list(depths)} | by,
            "seeds": seeds,
            "fit": [{"metric": "nc1"}],
        },
        trials=pd.DataFrame(trials),
        results=results,
        metrics=metrics_frame,
        curves=curves_frame,
        fits=[_fitted(results, metric, group) for metric in EXPONENTS for group in groups],
        store="./results",
        commands=["depthrate run quickstart.yaml", "depthrate report quickstart -o report.html"],
        versions={"depthrate": "0.1.0", "python": "3.11.7", "torch": "2.13.0"},
        git="0123abc",
        created_at="2025-11-20T23:50:00Z",
        problems=[],
        measurements=MEASUREMENTS,
        lists=pd.DataFrame([_geometry(trial) for trial in trials]),
        cost=SweepCost(devices={"cpu": Hours(used=0.25, committed=0.2, idle=0.06)}),
    )


def _geometry(trial: dict[str, Any]) -> dict[str, Any]:
    """Four classes that lie almost as a simplex does, the nearer the deeper the network."""
    means = np.eye(4) + 0.5 + np.diag([0.3, 0, 0, 0]) / trial["depth"]
    values = np.linalg.svd(means, compute_uv=False)
    return {"trial_id": trial["trial_id"], "singular_values": values, "class_gram": (means.T @ means).ravel()}


@functools.cache
def plain_data() -> ReportData:
    return make_data()


def _trial(trial_id: str, rng: np.random.Generator) -> dict[str, Any]:
    return {
        "trial_id": trial_id,
        "state": "ok",
        "wall_s": 60 + 40 * rng.random(),
        "steps_done": STEPS[-1],
        "device": "cpu",
        "host": "laptop",
        "committed_at": f"2025-11-20T23:{rng.integers(10, 50)}:00Z",
        "error": None,
    }


def _curve_row(left: float, gap: float, rng: np.random.Generator) -> dict[str, float]:
    loss = (0.05 + 2.3 * left) * np.exp(0.05 * rng.normal())
    row = {"loss": loss, "objective": loss + gap, "objective_gap": gap + 2.3 * left, "accuracy": 1 - 0.9 * left}
    return row | {"grad_norm": 0.001 + left * np.exp(0.2 * rng.normal()), "lr": 0.2}


def _results(metrics: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    last = metrics[(metrics["step"] == STEPS[-1]) & metrics["is_last"]]
    ends = curves.loc[
        curves["step"] == STEPS[-1], ["trial_id", "loss", "objective", "objective_gap", "accuracy", "grad_norm"]
    ]
    return last.merge(ends, on="trial_id").assign(status="ok")


def _fitted(results: pd.DataFrame, metric: str, by: dict[str, Any]) -> FittedGroup:
    for column, value in by.items():
        results = results[results[column] == value]
    points = results[["depth", metric, "seed", "trial_id"]].rename(columns={"depth": "x", metric: "y"})
    fits = fit_rates(points["x"], points["y"], num_resamples=50)
    return FittedGroup(metric, "depth", by, points.to_dict("records"), fits, {}, measurement=MEASUREMENTS[metric])


def bare_data(**given: Any) -> ReportData:
    """Return a report without rows, apart from what is given."""
    nothing: dict[str, Any] = dict.fromkeys(("trials", "results", "metrics", "curves"), pd.DataFrame())
    nothing |= {"name": "s", "spec": {}, "fits": [], "store": "", "commands": [], "versions": {}, "git": None}
    return ReportData(**(nothing | {"created_at": "", "problems": []} | given))
