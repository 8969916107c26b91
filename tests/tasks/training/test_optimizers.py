"""Optimisers of torch by name: eager for every network, and refused where native or compiled steps are asked for."""

import pytest
from training_context import Context, ids_of

from depthrate.tasks.collapse.task import COLLAPSE
from depthrate.tasks.task import Engine
from depthrate.tasks.training.engine import EngineError

PARAMS = {"dataset": "digits", "samples_per_class": 4, "width": 8, "depth": 2, "steps": 60, "weight_decay": 0.01}


def completed(**changes):
    return COLLAPSE.schema.fill({**PARAMS, **changes})


@pytest.mark.parametrize("optimizer", ["adamw", "rmsprop"])
@pytest.mark.parametrize("arch", ["rn1", "t11"])
def test_it_trains_eagerly_and_its_loss_falls(optimizer, arch):
    trials = [completed(optimizer=optimizer, arch=arch, seed=seed, schedule="one_cycle") for seed in range(2)]
    assert COLLAPSE.engine(trials[0], Engine.AUTO, "cpu") is Engine.EAGER
    results = list(COLLAPSE.run(trials, Context(ids_of(trials))))
    for result in results:
        losses = [row["loss"] for row in result.tables["curves"]]
        assert losses[-1] < 0.8 * losses[0]
    (alone,) = COLLAPSE.run(trials[1:], Context(ids_of(trials[1:])))
    assert [row["loss"] for row in alone.tables["curves"]] == [row["loss"] for row in results[1].tables["curves"]]


@pytest.mark.parametrize("engine", [Engine.NATIVE, Engine.COMPILED])
def test_engines_that_have_no_such_step_refuse_it(engine):
    with pytest.raises(EngineError, match=r"optimizer is adamw, .*train with --engine auto"):
        COLLAPSE.engine(completed(optimizer="adamw", arch="rn1"), engine, "cpu")
