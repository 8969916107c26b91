"""torch's optimisers by name run eagerly for every network, and raise if native steps are requested."""

import math

import pytest
import torch

from depthrate.tasks.interface import Engine
from depthrate.tasks.native.compiler import EngineError
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.supervised.task import COLLAPSE
from depthrate.tasks.supervised.theory import bound_of_gap
from depthrate.tasks.training.step import losses
from tests.support.training_context import Context, ids_of

PARAMS = {"dataset": "digits", "samples_per_class": 4, "width": 8, "depth": 2, "steps": 60, "weight_decay": 0.01}


def completed(**changes):
    return COLLAPSE.schema.fill({**PARAMS, **changes})


@pytest.mark.slow
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


def test_native_steps_refuse_it():
    with pytest.raises(EngineError, match=r"optimizer is adamw, .*Train with --engine auto"):
        COLLAPSE.engine(completed(optimizer="adamw", arch="rn1"), Engine.NATIVE, "cpu")


def test_label_smoothing_equals_torch():
    torch.manual_seed(0)
    logits_TBK, labels_TB = torch.randn(2, 9, 4, dtype=torch.float64), torch.randint(4, (2, 9))
    found = losses("ce", logits_TBK, labels_TB, 0.3)
    for trial in range(2):
        expected = torch.nn.functional.cross_entropy(logits_TBK[trial], labels_TB[trial], label_smoothing=0.3)
        torch.testing.assert_close(found[trial], expected)
    trial = completed(label_smoothing=0.3, arch="rn1")
    (result,) = COLLAPSE.run([trial], Context(ids_of([trial])))
    assert all(row["objective_gap"] is None and row["objective_bound"] is None for row in result.tables["curves"])
    entropy = -(0.73 * math.log(0.73) + 9 * 0.03 * math.log(0.03))
    assert result.tables["curves"][-1]["loss"] > entropy
    for wrong in ({"loss": "mse"}, {"polish": 5}):
        with pytest.raises(ParameterError, match=r"label_smoothing is 0\.3 and .*use loss ce"):
            COLLAPSE.check_trial(completed(label_smoothing=0.3, arch="rn1", **wrong))
    assert bound_of_gap([trial]) is None and bound_of_gap([completed(arch="rn1")]) is not None
