"""Recorded steps: as many as cost a sixth of the whole, the same on every machine and however the pack runs."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthrate.tasks.interface import Engine
from depthrate.tasks.supervised.task import COLLAPSE
from depthrate.tasks.training.parameters import judged_steps, measured_steps
from depthrate.tasks.training.recording import MEASUREMENT_ROWS, RecordedSteps, recorded_steps, taken_steps
from tests.support.collapse_packs import params_of, run
from tests.support.training_context import assert_same

NUM_DIGITS = 1797


def recorded(num_samples: int = NUM_DIGITS, **changes: object) -> RecordedSteps:
    params = COLLAPSE.schema.fill({"arch": "rn1", "depth": 8, "width": 64, "dataset": "digits", **changes})
    trial = COLLAPSE.read(params)
    return recorded_steps(trial, dataclasses.replace(COLLAPSE.data_shape(trial), num_samples=num_samples))


def cost(steps: RecordedSteps) -> int:
    """Return the cost of recording in curve rows."""
    return len(steps.curves) + MEASUREMENT_ROWS * len(steps.measured)


def test_a_short_run_of_small_batches_keeps_the_necessary_rows() -> None:
    short = recorded(steps=300, batch_size=128)
    assert short == RecordedSteps(measured=[300], curves=[0, *judged_steps("cosine", 300), 300])


def test_longer_runs_gain_rows_until_all_are_there() -> None:
    sizes = [recorded(steps=steps, batch_size=128) for steps in (300, 1000, 3000, 6000, 12_000)]
    assert [cost(one) for one in sizes] == sorted(cost(one) for one in sizes)
    assert sizes[-1] == recorded(steps=12_000, batch_size=128, record="all")
    middle = sizes[2].curves
    gaps = [(late + 1) / (early + 1) for early, late in itertools.pairwise(middle)]
    assert len(middle) > 15 and max(gaps) < 5, "rows stay spread over all decades"


def test_full_batch_runs_keep_their_rows() -> None:
    assert recorded(steps=400) == recorded(steps=400, record="all")
    assert set(recorded(steps=200).curves) >= {0, 1, 2, 5, 10, 100, 150, 200}


@given(
    steps=st.integers(1, 20_000),
    batch_size=st.none() | st.integers(1, 500),
    num_samples=st.integers(500, 60_000),
    schedule=st.sampled_from(["constant", "step", "cosine", "warmup_cosine", "one_cycle"]),
)
def test_recording_is_bounded(steps: int, batch_size: int | None, num_samples: int, schedule: str) -> None:
    found = recorded(num_samples, steps=steps, batch_size=batch_size, schedule=schedule)
    everything = recorded(num_samples, steps=steps, batch_size=batch_size, schedule=schedule, record="all")
    necessary = {0, steps, *judged_steps(schedule, steps)}
    assert necessary <= set(found.curves) <= set(everything.curves)
    assert {steps} <= set(found.measured) <= set(everything.measured) & set(found.curves)
    for chosen in (found.curves, found.measured):
        assert list(chosen) == sorted(set(chosen))
    training = steps * (batch_size or num_samples) / num_samples
    assert cost(found) <= max(training / 5, len(necessary) + MEASUREMENT_ROWS), "a sixth of training and recording"
    assert cost(found) == cost(everything) or cost(everything) > training / 5 - 1


@given(steps=st.integers(1, 20_000), requested=st.lists(st.integers(0, 20_000), max_size=20))
def test_requested_measurements_stay(steps: int, requested: list[int]) -> None:
    requested = [step for step in requested if step <= steps]
    found = recorded(steps=steps, batch_size=16, measure_steps=requested)
    assert set(found.measured) == {*requested, steps} <= set(found.curves)
    assert {0, *judged_steps("cosine", steps)} <= set(found.curves)


def test_polish_and_measured_epochs_stay() -> None:
    polished = {"steps": 50, "polish": 40}
    assert recorded(**polished) == recorded(**polished, record="all")
    per_epochs = recorded(epochs=4, batch_size=128, measure_epochs=1)
    assert list(per_epochs.measured) == [14 * epoch for epoch in range(5)]


def test_streams_are_evaluated_on_their_measured_samples() -> None:
    params = COLLAPSE.schema.fill({"arch": "rn1", "depth": 2, "width": 8, "dataset": "digits", "steps": 300})
    trial = COLLAPSE.read({**params, "batch_size": 128})
    shape = COLLAPSE.data_shape(trial)
    few = dataclasses.replace(shape, num_samples=100, stream=None)
    assert len(recorded_steps(trial, few).curves) > len(recorded_steps(trial, shape).curves)


@pytest.mark.parametrize("engine", [Engine.EAGER, Engine.NATIVE])
def test_rows_are_those_of_the_plan_in_any_pack(engine: Engine) -> None:
    trials = [params_of(steps=30, batch_size=8, measure_steps=None, seed=seed) for seed in range(3)]
    together = run(trials, engine=engine)
    assert_same(together, [result for params in trials for result in run([params], engine=engine)])
    trial = COLLAPSE.read(trials[0])
    expected = recorded_steps(trial, COLLAPSE.data_shape(trial))
    assert len(expected.curves) < len(measured_steps(trial, 30))
    assert [row["step"] for row in together[0].tables["curves"]] == list(expected.curves)
    steps, _ = COLLAPSE.measured(trials[0], 30) or ((), ())
    assert sorted({row["step"] for row in together[0].tables["metrics"]}) == list(steps)
    shape = COLLAPSE.pack_shape(trial)
    assert (shape.num_curve_rows, shape.num_measured_steps) == (len(expected.curves), len(expected.measured))


def test_estimate_counts_the_recorded_steps() -> None:
    params = COLLAPSE.schema.fill({"arch": "rn1", "depth": 8, "dataset": "digits", "steps": 300, "batch_size": 128})
    bounded, everything = (COLLAPSE.estimate_s({**params, "record": record}) for record in ("auto", "all"))
    assert bounded is not None and everything is not None and bounded < 0.7 * everything


def test_costly_requests_are_remarked() -> None:
    params = {"arch": "rn1", "depth": 8, "dataset": "digits", "steps": 300, "batch_size": 128}
    assert not COLLAPSE.remarks([COLLAPSE.schema.fill(params)])
    requested = COLLAPSE.schema.fill({**params, "measure_steps": [0, 100, 200]})
    (remark,) = COLLAPSE.remarks([requested])
    assert "requested measurements cost up to 0.94 times" in remark
    assert not COLLAPSE.remarks([{**requested, "steps": 3000}])


def test_a_trial_that_ends_early_measured_its_last_step() -> None:
    assert taken_steps([0, 10, 100], 50) == [0, 10, 50]
