"""The shipped sweeps of the paper have its settings."""

import pytest

from depthrate.sweeps.expand import expand
from depthrate.sweeps.load import load_sweep

FIGURES = {
    "figure3": {"zipf": 0.0, "samples_per_sequence": 5, "epochs": 1200, "layer_norm": False},
    "figure4a": {"zipf": 1.0, "samples_per_sequence": 500, "epochs": 10, "layer_norm": False},
    "figure4b": {"zipf": 1.0, "samples_per_sequence": 5, "epochs": 3000, "layer_norm": False},
    "figure4c": {"zipf": 1.0, "samples_per_sequence": 5, "epochs": 500, "layer_norm": True},
    "theorem1": {"zipf": 0.0, "sequences": 50, "layer_norm": False},
    "theorem2": {"zipf": 1.0, "sequences": 3**6, "sentence_length": 6, "layer_norm": False},
    "theorem3": {"zipf": 0.0, "samples_per_sequence": 5, "epochs": 200, "layer_norm": True},
}
SHARED = {
    "concepts": 3,
    "vocabulary_size": 1200,
    "sentence_length": 15,
    "sequences": 1000,
    "width": 100,
    "lr": 0.1,
    "batch_size": 100,
    "weight_decay": 0.001,
    "init_scale": 0.001,
    "layer_norm_eps": 1e-5,
}


@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_has_the_papers_settings(figure):
    trials = expand(load_sweep(f"papers/words/words-{figure}"))
    assert [trial.params["seed"] for trial in trials] == [0, 1, 2]
    expected = SHARED | FIGURES[figure]
    assert all({name: trial.params[name] for name in expected} == expected for trial in trials)
