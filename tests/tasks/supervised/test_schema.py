"""The parameters of `collapse`: what their nulls mean, and which combinations are refused."""

import pytest

from depthrate.tasks.networks.builtin import has_last_bias
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.supervised.parameters import weight_decays
from depthrate.tasks.supervised.targets.collapse import objective_limit
from depthrate.tasks.supervised.task import COLLAPSE
from depthrate.tasks.training.parameters import learning_rate, log_spaced_steps, measured_steps, num_steps


def params_of(**changes):
    return COLLAPSE.schema.fill({"arch": "rn1", "depth": 3, **changes})


def trial_of(**changes):
    return COLLAPSE.read(params_of(**changes))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 12_000),
        ({"steps": 7}, 7),
        ({"epochs": 3}, 3),
        ({"epochs": 3, "batch_size": 100}, 3 * 17),  # 1797 digits: the incomplete batch is left out
        ({"epochs": 3, "batch_size": 64, "samples_per_class": 20}, 3 * 3),
    ],
)
def test_the_number_of_steps(changes, expected):
    trial = trial_of(**changes)
    assert num_steps(trial, COLLAPSE.data_shape(trial).num_samples) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 0.2),
        ({"loss": "mse"}, 0.02),
        ({"optimizer": "adam"}, 0.005),
        ({"optimizer": "adamw"}, 0.005),
        ({"optimizer": "rmsprop"}, 0.001),
        ({"lr": 0.3, "optimizer": "adam"}, 0.3),
    ],
)
def test_the_learning_rate(changes, expected):
    assert learning_rate(trial_of(**changes)) == expected


@pytest.mark.parametrize(
    ("changes", "expected"), [({}, 0.005), ({"weight_decay": 0.1}, 0.1), ({"weight_decay_last": 0}, 0.0)]
)
def test_last_decay_defaults_to_hidden(changes, expected):
    assert weight_decays(trial_of(**changes)) == {
        "hidden": pytest.approx(changes.get("weight_decay", 0.005)),
        "last": expected,
    }


@pytest.mark.parametrize(
    ("changes", "expected"), [({}, True), ({"loss": "mse"}, False), ({"loss": "mse", "last_bias": True}, True)]
)
def test_the_last_bias_follows_the_loss_unless_said(changes, expected):
    assert has_last_bias(trial_of(**changes)) == expected


def test_the_training_set_is_all_or_drawn():
    for changes, num_samples in (({}, 1797), ({"samples_per_class": 5}, 50), ({"dataset": "mnist"}, 60_000)):
        assert COLLAPSE.data_shape(trial_of(**changes)).num_samples == num_samples


@pytest.mark.parametrize(("last", "steps"), [(1, [0, 1]), (5, [0, 1, 2, 5]), (30, [0, 1, 2, 5, 10, 20, 30])])
def test_log_spaced_steps_end_with_the_last(last, steps):
    assert log_spaced_steps(last) == steps


def test_steps_are_sorted_and_unique():
    assert measured_steps(trial_of(steps=9, measure_steps=[9, 4, 0, 4]), 9) == [0, 4, 9]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 5, "epochs": 2}, "steps is 5 and epochs is 2"),
        ({"batch_size": 1798}, "batch_size is 1798, but the training set has 1797 samples"),
        ({"batch_size": 51, "samples_per_class": 5}, "batch_size is 51, but the training set has 50"),
        ({"samples_per_class": 175}, "samples_per_class is 175, but the smallest class of 'digits' has 174"),
        ({"dataset": "mnist", "samples_per_class": 5422}, "smallest class of 'mnist' has 5421"),
        ({"steps": 9, "measure_steps": [3, 10]}, "measure_steps has 10, but training ends at step 9"),
        ({"dataset": "imdb"}, "arch is 'rn1', but 'imdb' is text. Set arch to t11, t12, t21, t22"),
        ({"context_length": 8}, "context_length is 8, but 'digits' is not text"),
        ({"arch": "t11", "vocabulary_size": 8}, "vocabulary_size is 8, but 'digits' is not text"),
        ({"patch_size": 4}, "patch_size is 4, but 'rn1' on 'digits' reads no patches"),
        ({"arch": "t11", "dataset": "imdb", "patch_size": 4}, "'t11' on 'imdb' reads no patches"),
        (
            {"arch": "t11", "patch_size": 3},
            "patch_size is 3, but images of 'digits' have 8 pixels per side, expected one of 1, 2, 4, 8",
        ),
    ],
)
def test_impossible_combinations_are_refused(changes, message):
    COLLAPSE.check_trial(params_of(batch_size=1740, samples_per_class=174, steps=9, measure_steps=[0, 9]))
    with pytest.raises(ParameterError, match=message):
        COLLAPSE.check_trial(params_of(**changes))


@pytest.mark.parametrize(
    ("changes", "positions"),
    [
        ({}, 1),
        ({"arch": "t11"}, 16),
        ({"arch": "t22", "patch_size": 4}, 4),
        ({"arch": "t11", "dataset": "mnist"}, 16),
        ({"arch": "t11", "dataset": "stl10"}, 16),
        ({"arch": "t11", "dataset": "imdb"}, 64),
        ({"arch": "t11", "dataset": "imdb", "context_length": 9}, 9),
    ],
)
def test_the_positions_of_a_sample(changes, positions):
    params = params_of(**changes)
    trial = COLLAPSE.read(params)
    assert COLLAPSE.network(trial, COLLAPSE.data_shape(trial)).rows_per_sample == positions
    COLLAPSE.check_trial(params)


def test_limit_is_for_the_class_count():
    limits = [objective_limit(trial_of(arch="t11"), num_classes) for num_classes in (2, 10, 100)]
    assert limits[2] is None  # 100 classes do not fit into 63 dimensions
    assert limits[1] == pytest.approx(0.02275937, rel=1e-6) and 0 < limits[0] < limits[1]


def test_fusible_parameters_keep_shapes_and_data():
    decays = {"weight_decay", "weight_decay_last"}
    assert COLLAPSE.schema.fusible == {"seed", "seed_scope", "embedding_seed", "lr", "momentum", *decays}


def test_deeper_trials_are_expected_to_take_longer():
    seconds = [COLLAPSE.estimate_s(params_of(depth=depth)) for depth in (2, 5, 13)]
    assert seconds == sorted(set(seconds)) and seconds[0] > 0
