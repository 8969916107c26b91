"""Results show the value that a trial used where its parameter is null."""

import pytest

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact
from depthrate.tasks.registry import registered_task
from depthrate.tasks.supervised.parameters import weight_decays
from depthrate.tasks.training.parameters import TrainingParameters, learning_rate
from tests.support.tests_rows import commit

CASES = [(optimizer, loss) for optimizer in ("sgd", "adam", "adamw", "rmsprop") for loss in ("ce", "mse")]


@pytest.mark.parametrize("is_compacted", [False, True])
def test_null_parameters_show_the_value_used(tmp_path, is_compacted):
    store, expected = Store(str(tmp_path)), {}
    task = registered_task("collapse")
    for number, (optimizer, loss) in enumerate(CASES):
        given = {"arch": "rn1", "depth": 2, "optimizer": optimizer, "loss": loss, "weight_decay": 0.001 * (number + 1)}
        params = task.schema.fill(given)
        name = f"t{number}"
        commit(store, f"20260101T000000_00000000000{number}", [name], params=params, task="collapse")
        trial = task.read(params)
        expected[name] = learning_rate(trial), weight_decays(trial)["last"], loss == "ce"
    if is_compacted:
        compact(store, grace_s=0)
    rows = results_of(store).sql("select trial_id, lr, weight_decay_last, last_bias from results").fetchall()
    assert {name: tuple(values) for name, *values in rows} == expected
    assert results_of(store).sql("select count(*) from trials where lr = 0.02").fetchall() == [(1,)]


def test_fixed_loss_enters_the_learning_rate():
    for name, loss in (("regression", "mse"), ("next_token", "ce")):
        text = registered_task(name).schema["lr"].null
        assert f"'{loss}' = 'ce'" in text
        assert TrainingParameters.loss == "ce"
