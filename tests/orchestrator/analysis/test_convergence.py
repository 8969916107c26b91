"""Convergence of a trial, judged by its curve and by shallower networks."""

import math
from typing import Any

import numpy as np
import pytest

from depthrate.orchestrator.analysis.convergence import CurveEnd, _above_shallower, _curve_end, _failed, _untrained
from depthrate.sweeps.trial import Trial
from depthrate.tasks.supervised.metrics import CLASSES
from depthrate.tasks.training.parameters import judged_steps
from depthrate.tasks.training.training_plan import learning_rate_factor

OBJECTIVE = next(measurement for measurement in CLASSES if measurement.optimum is not None)


def ended(heights: dict[int, float], *, limit: float | None = None, schedule: str = "constant") -> CurveEnd:
    last, gap = max(heights), float("nan") if limit is None else 0.0
    steps, values = np.array([float(step) for step in heights]), np.array(list(heights.values()))
    lr = np.array([learning_rate_factor(schedule, step, last) for step in heights])
    found = _curve_end({"step": steps, "height": values, "gap": values - (limit or 0.0) + gap, "lr": lr})
    assert found is not None
    return found


def test_fall_over_the_last_quarter() -> None:
    moved, start, height, scale = ended({0: 9.0, 50: 2.0, 70: 1.4, 80: 1.2, 100: 1.0})
    assert start == 75 and moved == pytest.approx((1.3 - 1.0) / 1.0) and (height, scale) == (1.0, 1.0)


def test_fall_is_a_share_of_the_gap() -> None:
    assert ended({0: 9.0, 75: 1.02, 100: 1.0}, limit=0.9)[0] == pytest.approx(0.2)
    assert ended({0: 9.0, 75: 0.95, 100: 1.0}, limit=0.9)[0] == pytest.approx(-0.5)


def test_cosine_scales_the_last_quarter() -> None:
    judged = judged_steps("cosine", 1000)
    assert judged == [pytest.approx(438, abs=1), 750], "u + sin(pi u) / pi = 3/4 at u = 0.438"
    still = {0: 9.0, 400: 1.5, 438: 1.4, 600: 1.05, 700: 1.0, 750: 1.0, 1000: 1.0}
    moved, start, *_ = ended(still, schedule="cosine")
    assert moved > 0.3 and start == pytest.approx(438, abs=25), "the last quarter of the steps alone looks converged"
    assert ended(still)[0] == 0


@pytest.mark.parametrize("schedule", ["constant", "step", "cosine", "warmup_cosine", "one_cycle"])
def test_few_rows_judge_from_the_same_step(schedule: str) -> None:
    """The trapezoid rule on the rows of a short run would misplace the last quarter of the rates by up to 22 % of the steps."""
    judged = judged_steps(schedule, 300)
    steps = np.array([0.0, *judged, 300.0])
    lr = np.array([0.2 * learning_rate_factor(schedule, int(step), 300) for step in steps])
    curve = {"step": steps, "height": 9.0 - steps / 100, "gap": steps, "lr": lr}
    found = _curve_end(curve, schedule)
    assert found is not None and found[1] == pytest.approx(judged[0], abs=1)
    other = _curve_end({**curve, "lr": 1 / (1 + steps)}, schedule)
    assert other is not None and other[1] < judged[0], "recorded rates count, whatever the schedule is called"


def test_deeper_above_shallower_is_flagged() -> None:
    def trial(name: str, **params: Any) -> Trial:
        return Trial(name, "collapse", 3, {"arch": "rn1", "weight_decay": 0.005, "lr": 0.1, "seed": 0, **params})

    trials = [trial("a", depth=2), trial("b", depth=3, lr=0.2, seed=1), trial("c", depth=5)]
    trials.append(trial("d", depth=3, weight_decay=0.01))
    ends = {"a": (0.030, 0.01), "b": (0.031, 0.01), "c": (0.028, 0.008), "d": (0.9, 0.5)}
    found = {name: (0.0, 1.0, *end) for name, end in ends.items()}
    assert _above_shallower(found, trials, OBJECTIVE) == {"b": pytest.approx(0.1)}, "another decay is another optimum"


def test_deeper_at_the_shallower_end() -> None:
    trials = [Trial(f"t{depth}", "collapse", 3, {"arch": "rn1", "depth": depth}) for depth in (2, 3, 5)]
    heights = (0.03, 0.03 * (1 + 4e-16), 0.03 * (1 + 1e-6))
    found = {trial.trial_id: (0.0, 1.0, height, 0.01) for trial, height in zip(trials, heights, strict=True)}
    assert set(_above_shallower(found, trials, OBJECTIVE)) == {"t5"}, "rounding does not count"


def test_trial_far_above_siblings_failed() -> None:
    def trial(name: str, **params: Any) -> Trial:
        return Trial(name, "collapse", 3, {"arch": "rn2", "depth": 34, "lr": 0.005, **params})

    heights = {"a": 0.155, "b": 0.006, "c": 0.007, "alone": 0.9, "two": 0.9, "of two": 0.006, "d": 0.018, "e": 0.0061}
    ends = {name: (0.0, 1.0, height, 0.01) for name, height in heights.items()}
    trials = [trial(name, seed=seed) for seed, name in enumerate("abcde")]
    trials += [trial("alone", lr=1.0), trial("two", lr=0.1, seed=0), trial("of two", lr=0.1, seed=1)]
    assert _failed(ends, trials) == {"a"}, "d is below three times the median 0.007, and two trials are too few"
    assert _failed({name: (0.0, 1.0, 0.0, 0.01) for name in heights}, trials) == set()


def untrained(losses: dict[str, float], *, gap: float = 2.38, first: float = 2.6, **params: Any) -> set[str]:
    trials = [Trial(name, "collapse", 3, {"dataset": "digits", "loss": "ce", **params}) for name in losses]
    steps, gaps = np.array([0.0, 100.0]), np.array([3.0, gap if gap else math.nan])
    curves = {
        name: {"step": steps, "height": np.array([first, loss]) + 0.1, "gap": gaps, "loss": np.array([first, loss])}
        for name, loss in losses.items()
    }
    return _untrained(curves, trials, OBJECTIVE)


def test_a_trial_at_chance_is_untrained() -> None:
    losses = {"chance": math.log(10), "near chance": 2.2, "slow": 1.5, "trained": 0.01}
    assert untrained(losses) == {"chance", "near chance"}
    mse = {"chance": 0.45, "trained": 0.004}
    assert untrained(mse, loss="mse", first=1.1) == {"chance"}, "the mean of one-hot labels has the loss .45"


def test_own_data_compare_with_the_first_loss() -> None:
    own = {"dataset": "./data.py:make"}
    assert untrained({"chance": 1.0, "trained": 0.01}, first=1.1, **own) == {"chance"}


def test_a_short_sweep_has_no_untrained_trials() -> None:
    assert untrained({"a": 2.3, "b": 2.2, "c": 1.9}) == set(), "no trial proves that the sweep trains"


def test_strong_decay_explains_the_loss_of_zero_weights() -> None:
    losses = {"decayed": 2.3, "trained": 0.01}
    assert untrained(losses, gap=2.0) == {"decayed"}, "the limit is at .4"
    assert untrained(losses, gap=0.01) == set(), "the limit is at 2.39"
