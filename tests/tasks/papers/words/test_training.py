"""A pack of the task: resumed, cut apart, pruned, diverged, and what its tables hold."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from depthrate.tasks.interface import Interrupted
from depthrate.tasks.papers.words.sentences import draw_sentences
from depthrate.tasks.papers.words.task import WORDS
from depthrate.tasks.papers.words.training import curve_steps
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.training import checkpoint
from tests.support.training_context import Context, assert_same, ids_of, run_resumed

SMALL = {"vocabulary_size": 30, "sentence_length": 4, "sequences": 12, "width": 7, "batch_size": 20}


def filled(**params):
    params = WORDS.schema.fill({**SMALL, "epochs": 8, "lr": 0.5, "init_scale": 0.5} | params)
    WORDS.check_trial(params)
    return params


TRIALS = [
    filled(seed=1, features="projections"),
    filled(seed=2, zipf=1.0, samples_per_sequence=10),  # twice as many steps
    filled(seed=3, weight_decay=0.01, zipf=0.5, features="projection"),
]


def sentences_of(params):
    return draw_sentences(WORDS.read(params))


def run(trials, **context):
    return list(WORDS.run(trials, Context(ids_of(trials), **context)))


@pytest.mark.slow
def test_part_of_a_pack_resumes():
    resumed, _ = run_resumed(WORDS.run, TRIALS, 13, resumed=TRIALS[1:])
    assert_same(resumed, run(TRIALS)[1:])


def test_a_damaged_checkpoint_costs_time_and_no_results(caplog):
    damaged = run(TRIALS[:1], checkpoint=b"0" * 50)
    assert_same(damaged, run(TRIALS[:1]))
    assert "cannot read the checkpoint" in caplog.text


@dataclass
class Pruning(Context):
    def report(self, step, values):
        assert all({"loss", "accuracy", "test_accuracy"} <= set(row) for row in values.values())
        return {0} & values.keys() if step >= 5 else set()


@pytest.mark.slow
def test_a_pruned_trial_disturbs_no_other():
    results = list(WORDS.run(TRIALS, Pruning(ids_of(TRIALS))))
    assert results[0].status == "pruned" and results[0].num_steps < 24 and not results[0].tables
    assert_same(results[1:], run(TRIALS)[1:])


def test_tables_of_a_trial():
    (result,) = run([filled(layer_norm=True, zipf=1.0, epochs=40, lr=0.3, init_scale=0.01, features="projection")])
    first, *_, embedding, words = result.tables["metrics"]
    assert (first["step"], embedding["layer"], words["layer"], words["is_last"]) == (0, 0, 1, True)
    assert words["norm_rms"] == pytest.approx(7**0.5, rel=0.05) and words["predicted_norm_rms"] == pytest.approx(7**0.5)
    assert words["prediction"] == 3 and "collapse_2" in words and "collapse_1" not in words
    assert len(words["rank_norms"]) == len(words["predicted_rank_norms"]) == 10
    train, test = result.tables["curves"][-2:]
    assert (train["split"], test["split"], train["step"]) == ("train", "test", 120)
    assert test["accuracy"] == train["test_accuracy"] <= train["best_test_accuracy"]
    assert train["best_test_accuracy"] == max(row["accuracy"] for row in result.tables["curves"][1::2])
    features = result.tables["features"]
    assert features["feature"].shape == (30 + 48, 3) and set(features["kind"]) == {"word", "block"}
    declared = {measurement.name for measurement in WORDS.measurements}
    assert set(words) - {"step", "split", "layer", "is_last"} <= declared and set(train) - {"step", "split"} <= declared


def test_no_prediction_where_no_theorem_speaks():
    (result,) = run([filled(weight_decay=0.0)])
    assert "prediction" not in result.tables["metrics"][-1] and result.tables["curves"][0]["predicted_loss"] is None


def test_curves_are_dense_enough_to_find_a_peak():
    steps = sorted(curve_steps(50_000))
    late = [high / low for low, high in itertools.pairwise(steps) if low > 30]
    assert max(late) < 1.17 and steps[0] == 0 and steps[-1] == 50_000


def test_sentences_have_sequences_and_frequencies():
    given = filled(concepts=2, zipf=1.0, sequences=9, samples_per_sequence=2000, vocabulary_size=8)
    drawn = sentences_of(given)
    assert len({tuple(row) for row in drawn.concepts_KL.tolist()}) == 9
    concepts = drawn.train_NL.view(9, 2000, 4) // 4
    assert (concepts == drawn.concepts_KL.unsqueeze(1)).all()
    shares = np.bincount((drawn.train_NL % 4).flatten().numpy()) / drawn.train_NL.numel()
    assert shares == pytest.approx(np.array([12, 6, 4, 3]) / 25, abs=0.01)
    fewer = sentences_of({**given, "samples_per_sequence": 3, "zipf": 0.0})
    assert (fewer.concepts_KL == drawn.concepts_KL).all() and len(fewer.train_NL) == 27
    again = sentences_of({**given, "seed": 5, "data_seed": 0})
    assert (again.train_NL == drawn.train_NL).all()
    assert (sentences_of({**given, "seed": 5}).test_NL != drawn.test_NL).any()


def test_all_sequences_can_be_classes():
    drawn = sentences_of(filled(concepts=2, sequences=16, vocabulary_size=8))
    assert len({tuple(row) for row in drawn.concepts_KL.tolist()}) == 16


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"vocabulary_size": 31}, "vocabulary_size is 31, expected a multiple of 3"),
        ({"sequences": 82}, "sequences is 82, expected at most 81"),
        ({"width": 1}, "width is 1, expected at least 2"),
        ({"width": 2, "layer_norm": True}, "width is 2, expected at least 3"),
        ({"weight_decay": 2.0}, "lr is 0.5 and weight_decay is 2.0, but their product must be below 1"),
        ({"batch_size": 61}, "batch_size is 61, but the training set has 60 samples"),
        ({"steps": 5}, "steps is 5 and epochs is 8"),
    ],
)
def test_what_cannot_run_is_refused(params, message):
    with pytest.raises(ParameterError, match=message):
        filled(**params)


@pytest.mark.slow
def test_former_checkpoint_only_costs_time(monkeypatch):
    interrupted = Context(ids_of(TRIALS), stop_at=13)
    with monkeypatch.context() as former, pytest.raises(Interrupted):
        former.setattr(checkpoint, "CHECKPOINT_FORMAT", 2)
        list(WORDS.run(TRIALS, interrupted))
    context = Context(ids_of(TRIALS), checkpoint=interrupted.checkpoint)
    assert_same(list(WORDS.run(TRIALS, context)), run(TRIALS))
    assert context.steps_seen[0] == 1
