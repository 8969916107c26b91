"""Training of the task `words`: a pack's networks, metrics with their prediction, and stored projections. Trials differ in
their sentences, and so in the number of steps per epoch. Shapes: T trials, V words, D = width, K classes, L places, C concepts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthrate.tasks.interface import Engine, SharedLibraries
from depthrate.tasks.native.library import Library
from depthrate.tasks.papers.words import word_geometry as geometry
from depthrate.tasks.papers.words.parameters import WordsParameters
from depthrate.tasks.papers.words.sentences import draw_sentences
from depthrate.tasks.papers.words.theory import Prediction, Setting, frequencies, predict
from depthrate.tasks.papers.words.word_trainer import WordsTrainer, words_library
from depthrate.tasks.parameters import OncePerObject
from depthrate.tasks.training.engines.choice import select_engine_on
from depthrate.tasks.training.layers import Rows, null_if_not_finite
from depthrate.tasks.training.parameters import measured_steps
from depthrate.tasks.training.training import RecordTest, Row, Training

CURVES_PER_DECADE = 16


def training(trials: Sequence[WordsParameters]) -> WordsTraining:
    """Build the training of a pack of trials of one shape."""
    prediction = OncePerObject(prediction_of)

    def measure(trainer: WordsTrainer, positions: Sequence[int], step: int) -> list[Rows]:
        return [layer_rows(trainer, position, step, prediction(trainer.trials[position])) for position in positions]

    def extra_curves(index: int, row: Row, earlier: Sequence[Row]) -> dict[str, float | None]:
        predicted, best_before = prediction(trials[index]), [last["best_test_accuracy"] for last in earlier[-2:-1]]
        return {
            "best_test_accuracy": max([row["test_accuracy"], *best_before]),  # the last row belongs to the test split
            "predicted_loss": None if predicted is None else predicted.loss,
            "predicted_objective": None if predicted is None else predicted.objective,
        }

    measured = [measured_steps(trial, trial.num_steps) for trial in trials]
    return WordsTraining(
        trials=trials,
        num_steps=[trial.num_steps for trial in trials],
        measured_steps=measured,
        curve_steps=[{*steps} | curve_steps(max(steps)) for steps in measured],
        measure=measure,
        extra_curves=extra_curves,
    )


@dataclass(frozen=True, kw_only=True)
class WordsTraining(Training):
    """Training of embeddings and linear layers, with separate sentences per trial."""

    trials: Sequence[WordsParameters]

    def engine(self, requested: Engine, device: str) -> Engine:
        return select_engine_on(device, requested)

    def native_library(
        self,
        should_stop: Callable[[], bool],
        shared: SharedLibraries | None = None,
        device: str = "cpu",
        *,
        is_fresh: bool = False,
    ) -> tuple[Library, float]:
        return words_library(self.trials[0], should_stop, shared)

    def begin(self, device: str = "cpu") -> WordsTrainer:
        return WordsTrainer(self.trials, [draw_sentences(trial) for trial in self.trials], device)

    def evaluate(self, trainer: WordsTrainer, positions: Sequence[int]) -> dict[str, Tensor]:
        return trainer.evaluate(positions)

    def test_split(self, device: str) -> RecordTest:
        return record_test_sentences

    def intermediate_features(
        self, trainer: WordsTrainer, position: int, index: int, step: int
    ) -> dict[str, Any] | None:
        """Return the projection of words and blocks, at every measured step or at the last."""
        when = self.trials[index].features
        is_kept = when == "projections" or (when == "projection" and step == self.num_steps[index])
        return kept_projection(trainer, position, step) if is_kept else None


def record_test_sentences(
    trainer: WordsTrainer, step: int, tables: Mapping[int, tuple[Rows, Rows]], measured: Sequence[int]
) -> None:
    """Append curve rows of the test sentences (`RecordTest`), which are evaluated together with the training sentences."""
    for _, curves in tables.values():
        loss, accuracy = curves[-1]["test_loss"], curves[-1]["test_accuracy"]
        curves.append({"step": step, "split": "test", "loss": loss, "accuracy": accuracy})


def curve_steps(last: int) -> set[int]:
    """Return about sixteen steps per decade, with 0 and the last: dense enough to find the peak of a test accuracy."""
    exponents = range(int(CURVES_PER_DECADE * math.log10(last)) + 1) if last > 1 else range(1)
    return {0, last, *(round(10 ** (exponent / CURVES_PER_DECADE)) for exponent in exponents)}


KEPT_BLOCKS = 1500
"""Largest number of linear layer blocks whose projection is stored. More would overlap in a figure."""


def prediction_of(trial: WordsParameters) -> Prediction | None:
    """Return the theory's prediction for a trial, or None if its weight decays do not fit the theory."""
    expected = 0.0 if trial.layer_norm else trial.weight_decay
    if trial.weight_decay == 0 or trial.embedding_decay != expected:
        return None
    return predict(
        Setting(
            concepts=trial.concepts,
            vocabulary_size=trial.vocabulary_size,
            sentence_length=trial.sentence_length,
            sequences=trial.sequences,
            weight_decay=trial.weight_decay,
            width=trial.width,
            frequencies=frequencies(trial.words_per_concept, trial.zipf),
        ),
        layer_norm=trial.layer_norm,
    )


def layer_rows(trainer: WordsTrainer, position: int, step: int, prediction: Prediction | None) -> list[dict[str, Any]]:
    """Return one trial's metric rows: with LayerNorm the embedding first, then the words as the linear layer reads them."""
    trial = trainer.trials[position]
    concepts, layer_norm, place = trial.concepts, trial.layer_norm, {"step": step, "split": "train"}
    linear_KLD, concepts_KL = trainer.linear(position).cpu(), trainer.sentences[position].concepts_KL
    words_VD = trainer.word_features(position).cpu()
    words, blocks = geometry.words_of(words_VD, concepts), geometry.blocks_of(linear_KLD, concepts_KL, concepts)
    scores = geometry.scores(words, blocks, concepts, layer_norm=layer_norm)
    row = {**place, "layer": int(layer_norm), "is_last": True}
    row |= {**_of_words(words_VD, words, concepts), **null_if_not_finite(dict(scores))}
    if blocks is not None:
        row |= _of_blocks(linear_KLD, words, blocks)
        row["collapse_type"] = geometry.collapse_type(scores)
    if prediction is not None:
        row |= {
            "predicted_norm_rms": _root_mean_square(torch.from_numpy(prediction.word_norms)),
            "predicted_linear_norm": prediction.linear_norm,
            "predicted_rank_norms": torch.from_numpy(prediction.word_norms),
            "prediction": int(prediction.source),
        }
    if not layer_norm:
        return [row]
    embedding_VD = trainer.embedding(position).cpu()
    of_embedding = _of_words(embedding_VD, geometry.words_of(embedding_VD, concepts), concepts)
    return [{**place, "layer": 0, "is_last": False, **of_embedding}, row]


def _of_words(words_VD: Tensor, words: geometry.Groups, concepts: int) -> dict[str, Any]:
    numbers = {"norm_mean": words.norms.mean().item()} | _of_groups(words, "")
    numbers["rank_spread"] = geometry.rank_spread(words.norms, concepts)
    vectors = {
        "word_singular_values": geometry.principal_values(words_VD),
        "rank_norms": words.norms.view(concepts, -1).mean(0),
    }
    return null_if_not_finite(numbers) | vectors


def _of_blocks(linear_KLD: Tensor, words: geometry.Groups, blocks: geometry.Groups) -> dict[str, Any]:
    numbers = _of_groups(blocks, "linear_") | {"alignment": geometry.alignment(words, blocks)}
    values = geometry.principal_values(linear_KLD.flatten(0, 1))
    return null_if_not_finite(numbers) | {"linear_singular_values": values}


def _of_groups(groups: geometry.Groups, prefix: str) -> dict[str, float]:
    names = ("norm_spread", "direction_collapse", "magnitude_collapse", "equiangularity")
    return {f"{prefix}norm_rms": _root_mean_square(groups.norms)} | {f"{prefix}{n}": getattr(groups, n) for n in names}


def kept_projection(trainer: WordsTrainer, position: int, step: int) -> dict[str, Any]:
    """Return the first principal components of words and of blocks as columns of features, with concepts as labels."""
    trial, words_VD = trainer.trials[position], trainer.word_features(position).cpu()
    labels_V = torch.arange(trial.concepts).repeat_interleave(trial.words_per_concept)
    linear_KLD, labels_N = trainer.linear(position).cpu(), trainer.sentences[position].concepts_KL.flatten()
    every = max(1, math.ceil(len(labels_N) / KEPT_BLOCKS))
    shown_NC = geometry.projection(linear_KLD.flatten(0, 1), labels_N)[::every]
    count = len(words_VD) + len(shown_NC)
    return {
        "step": torch.full((count,), step),
        "layer": torch.full((count,), int(trial.layer_norm)),
        "kind": ["word"] * len(words_VD) + ["block"] * len(shown_NC),
        "label": torch.cat([labels_V, labels_N[::every]]),
        "sample_index": torch.cat([torch.arange(len(words_VD)), torch.arange(len(labels_N))[::every]]),
        "feature": torch.cat([geometry.projection(words_VD, labels_V), shown_NC]).float(),
    }


def _root_mean_square(norms: Tensor) -> float:
    return norms.double().square().mean().sqrt().item()
