"""The rows that a trial of the task `words` gives: its layers beside their prediction, its curves, and what it keeps of both.

Shapes: V words, D = width, K classes, L places, C concepts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depthrate.tasks.training.layers import defined
from depthrate.tasks.words import geometry
from depthrate.tasks.words.schema import words_per_concept
from depthrate.tasks.words.theory import Prediction, Setting, frequencies, predict
from depthrate.tasks.words.trainer import Evaluation, WordsTrainer

KEPT_BLOCKS = 1500
"""Blocks of the linear layer whose projection is kept: more of them are one spot on top of the other."""


def prediction_of(params: Mapping[str, Any]) -> Prediction | None:
    """Return what theory says of a trial; None where it says nothing: no or uneven weight decay."""
    own = params["weight_decay_embedding"]
    expected = 0.0 if params["layer_norm"] else params["weight_decay"]
    if params["weight_decay"] == 0 or own not in (None, expected):
        return None
    return predict(
        Setting(
            concepts=params["concepts"],
            vocabulary_size=params["vocabulary_size"],
            sentence_length=params["sentence_length"],
            sequences=params["sequences"],
            weight_decay=params["weight_decay"],
            width=params["width"],
            frequencies=frequencies(words_per_concept(params), params["zipf"]),
        ),
        layer_norm=params["layer_norm"],
    )


def layer_rows(
    trainer: WordsTrainer, position: int, concepts: int, prediction: Prediction | None
) -> list[dict[str, Any]]:
    """Return the rows of metrics of one trial, without their step: the words as they are read, before it the embedding."""
    layer_norm = trainer.shape.layer_norm_eps is not None
    linear_KLD, concepts_KL = trainer.linear(position).cpu(), trainer.sentences[position].concepts_KL
    words_VD = trainer.word_features(position).cpu()
    words, blocks = geometry.words_of(words_VD, concepts), geometry.blocks_of(linear_KLD, concepts_KL, concepts)
    found = geometry.scores(words, blocks, concepts, layer_norm=layer_norm)
    row = {"layer": int(layer_norm), "is_last": True, **_of_words(words_VD, words, concepts), **defined(dict(found))}
    if blocks is not None:
        row |= _of_blocks(linear_KLD, words, blocks)
        row["collapse_type"] = geometry.collapse_type(found)
    if prediction is not None:
        row |= {
            "predicted_norm_rms": _root_mean_square(torch.from_numpy(prediction.word_norms)),
            "predicted_linear_norm": prediction.linear_norm,
            "predicted_rank_norms": prediction.word_norms,
            "prediction": int(prediction.source),
        }
    if not layer_norm:
        return [row]
    embedding_VD = trainer.embedding(position).cpu()
    of_embedding = _of_words(embedding_VD, geometry.words_of(embedding_VD, concepts), concepts)
    return [{"layer": 0, "is_last": False, **of_embedding}, row]


def _of_words(words_VD: Tensor, words: geometry.Groups, concepts: int) -> dict[str, Any]:
    numbers = {
        "norm_mean": words.norms.mean().item(),
        "norm_rms": _root_mean_square(words.norms),
        "norm_spread": words.norm_spread,
        "direction_collapse": words.direction_collapse,
        "magnitude_collapse": words.magnitude_collapse,
        "rank_spread": geometry.rank_spread(words.norms, concepts),
        "equiangularity": words.equiangularity,
    }
    vectors = {
        "word_singular_values": geometry.principal_values(words_VD).numpy(),
        "rank_norms": words.norms.view(concepts, -1).mean(0).numpy(),
    }
    return defined(numbers) | vectors


def _of_blocks(linear_KLD: Tensor, words: geometry.Groups, blocks: geometry.Groups) -> dict[str, Any]:
    numbers = {
        "linear_norm_rms": _root_mean_square(blocks.norms),
        "linear_norm_spread": blocks.norm_spread,
        "linear_direction_collapse": blocks.direction_collapse,
        "linear_magnitude_collapse": blocks.magnitude_collapse,
        "linear_equiangularity": blocks.equiangularity,
        "alignment": geometry.alignment(words, blocks),
    }
    values = geometry.principal_values(linear_KLD.flatten(0, 1)).numpy()
    return defined(numbers) | {"linear_singular_values": values}


def curve_rows(
    evaluation: Evaluation, best_test_accuracy: float, lr: float, prediction: Prediction | None
) -> list[dict[str, Any]]:
    """Return the rows of curves of one trial at a step: of the training sentences, and of the test sentences."""
    train = {
        "split": "train",
        "loss": evaluation.loss,
        "objective": evaluation.objective,
        "accuracy": evaluation.accuracy,
        "test_loss": evaluation.test_loss,
        "test_accuracy": evaluation.test_accuracy,
        "best_test_accuracy": best_test_accuracy,
        "predicted_loss": None if prediction is None else prediction.loss,
        "predicted_objective": None if prediction is None else prediction.objective,
        "lr": lr,
    }
    return [train, {"split": "test", "loss": evaluation.test_loss, "accuracy": evaluation.test_accuracy}]


def kept_projection(trainer: WordsTrainer, position: int, concepts: int, step: int) -> dict[str, np.ndarray]:
    """Return the first principal components of words and of blocks as columns of features; labels are concepts."""
    words_VD = trainer.word_features(position).cpu()
    per_concept = len(words_VD) // concepts
    labels_V = torch.arange(concepts).repeat_interleave(per_concept)
    linear_KLD, concepts_KL = trainer.linear(position).cpu(), trainer.sentences[position].concepts_KL
    labels_N = concepts_KL.flatten()
    every = max(1, math.ceil(len(labels_N) / KEPT_BLOCKS))
    shown_NC = geometry.projection(linear_KLD.flatten(0, 1), labels_N)[::every]
    count = len(words_VD) + len(shown_NC)
    return {
        "step": np.full(count, step),
        "layer": np.full(count, int(trainer.shape.layer_norm_eps is not None)),
        "kind": np.repeat(["word", "block"], [len(words_VD), len(shown_NC)]),
        "label": torch.cat([labels_V, labels_N[::every]]).numpy(),
        "sample_index": np.concatenate([np.arange(len(words_VD)), np.arange(len(labels_N))[::every]]),
        "feature": torch.cat([geometry.projection(words_VD, labels_V), shown_NC]).float().numpy(),
    }


def joined(tables: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return tables of columns as one."""
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def _root_mean_square(norms: Tensor) -> float:
    return norms.double().square().mean().sqrt().item()
