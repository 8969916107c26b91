"""Next-token prediction: the task `next_token`. Importable without torch.

Shapes: N sequences, M measured sequences, B sequences per batch, S tokens of context, V tokens in the vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from depthrate.tasks.data.dataset import Dataset, DataShape
from depthrate.tasks.data.markov import MARKOV, Chain, chain
from depthrate.tasks.data.published import READING_TEXT_BYTES, load_corpus_of
from depthrate.tasks.data.sources import DatasetError, DataSource
from depthrate.tasks.networks.builtin import ARCHITECTURES
from depthrate.tasks.networks.network import Layer, Network
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.supervised import metrics
from depthrate.tasks.supervised.items import check_not_empty
from depthrate.tasks.supervised.parameters import DEFAULT_SEQUENCES, SupervisedParameters
from depthrate.tasks.supervised.streaming import Streamed
from depthrate.tasks.supervised.targets.target import Fields, Target, check_drawn

if TYPE_CHECKING:
    from depthrate.tasks.training.layers import Measure

TEXT_SIZES = {MARKOV: (16, 32), "imdb": (32, 1000)}
"""Data set -> default context length and vocabulary size."""
_NO_SIZE = "does not declare its number of distinct tokens. Add vocabulary_size next to x and y."
_CHAIN_PARAMETERS = ("order", "zipf", "sharpness")
_CLASS_PARAMETERS = (
    *("dataset", "dataset_hash", "stream", "measure_samples", "samples", "data_seed", "test", "context_length"),
    *("vocabulary_size", *_CHAIN_PARAMETERS, "positions", "min_class_count"),
)
"""Parameters that determine which tokens are classes."""


class StreamedTokens(Streamed):
    """Streamed sequences with the next token as the label of each token."""

    labels_tokens = True
    min_measured = 1

    @property
    def num_outputs(self) -> int:
        assert self.splits.vocabulary_size is not None
        return self.splits.vocabulary_size

    def _learn_labels(self, y_B: np.ndarray) -> None:
        if self.splits.vocabulary_size is None:
            raise DatasetError(f"{self.name} {_NO_SIZE}")

    def _convert_labels(self, y_B: np.ndarray, indices_B: np.ndarray) -> np.ndarray:
        shape = (len(indices_B), *self.sample_shape)
        if y_B.dtype.kind not in "iu" or y_B.shape != shape or y_B.min() < 0 or y_B.max() >= self.num_outputs:
            raise DatasetError(
                f"{self.name}: labels of items from {indices_B[0]} on are {y_B.dtype} of shape {list(y_B.shape)}, expected the "
                f"next tokens, int 0 to {self.num_outputs - 1} of shape {list(shape)}"
            )
        return y_B.astype(np.int64)

    def _dataset(self, x_MS: np.ndarray, labels_MS: np.ndarray) -> Dataset:
        return _token_dataset(x_MS, labels_MS, self.num_outputs)


class NextToken(Target):
    """One class per token: the next token."""

    name = "next_token"
    doc = "Train causal networks on the next token, and measure the collapse of language models layer by layer."
    metrics = metrics.NEXT_TOKENS
    declares: ClassVar[Mapping[str, Fields]] = {
        "arch": {
            "choices": tuple(name for name, architecture in ARCHITECTURES.items() if architecture.reads_tokens),
            "doc": "causal transformer L-Txy (x matrices for scores and for values, y linear layers in the MLP), with outputs "
            "at each position",
        },
        "depth": {"doc": "number of blocks of attention and MLP"},
        "width": {"doc": "feature dimension d"},
        "dataset": {
            "default": MARKOV,
            "choices": tuple(TEXT_SIZES),
            "doc": "markov: sequences drawn from a chain of known entropy, or imdb: sections of reviews, read from "
            "DEPTHRATE_DATA",
        },
        "samples": {"doc": f"sequences, drawn by data_seed (null: {DEFAULT_SEQUENCES:,}, or all custom data)"},
        "data_seed": {"doc": "seed of the sequences and of the chain, shared by all trials unless varied"},
        "context_length": {
            "doc": "tokens per sequence, each trained on the next one (null: "
            + ", ".join(f"{length} for {name}" for name, (length, _) in TEXT_SIZES.items())
            + ")"
        },
        "vocabulary_size": {
            "doc": "number of tokens, for imdb the most frequent ones and one for all others (null: "
            + ", ".join(f"{size:,} for {name}" for name, (_, size) in TEXT_SIZES.items())
            + ")"
        },
        "test": {"added_later": False},
    }
    fixed: ClassVar[Mapping[str, Any]] = {"loss": "ce", "maps": "flatten", "flat_inputs": False, "signal_inputs": False}
    published_only = (*_CHAIN_PARAMETERS, "context_length", "vocabulary_size")
    has_test_files = False
    measurable_by = _CLASS_PARAMETERS
    streamed = StreamedTokens

    def split(
        self, x: np.ndarray, y: np.ndarray, vocabulary_size: int | None, name: str, split: str
    ) -> tuple[Dataset, None]:
        """Build a data set of sequences with one label per token, in their order."""
        size = vocabulary_size
        if size is None:
            raise DatasetError(f"{name} {_NO_SIZE}")
        check_not_empty(x, name, split)
        for array, tokens in (("x", x), ("y", y)):
            is_number = tokens.dtype.kind in "iu" and tokens.ndim == 2 and tokens.size > 0
            if not is_number or tokens.min() < 0 or tokens.max() >= size:
                raise DatasetError(
                    f"{name}, {split} split: {array} is {tokens.dtype} of shape {list(tokens.shape)}, expected int 0 to "
                    f"{size - 1} as [N, tokens], with y the next tokens of x: x, y = text[:, :-1], text[:, 1:]"
                )
        if x.shape != y.shape:
            raise DatasetError(
                f"{name}, {split} split: x has shape {list(x.shape)}, y {list(y.shape)}, but y must be the next tokens of x"
            )
        if split == "training" and y.min() == y.max():
            raise DatasetError(
                f"{name}: the next token is {y.min()} everywhere, but collapse is measured between the means of next "
                "tokens. Use texts with two or more tokens."
            )
        return _token_dataset(x, y, size), None

    def prepare(self, whole: Dataset, trial: SupervisedParameters) -> Dataset:
        test = whole.test if trial.test else None
        if trial.samples is None:
            return dataclasses.replace(whole, test=test)
        order = np.random.default_rng([trial.data_seed, 1]).permutation(len(whole.x_NI))
        chosen = np.sort(order[: trial.samples])
        assert whole.vocabulary_size is not None
        return _token_dataset(whole.x_NI[chosen], whole.labels_N[chosen], whole.vocabulary_size, test)

    def published_shape(self, trial: SupervisedParameters) -> DataShape:
        length, size = _text_sizes(trial)
        number = trial.samples or DEFAULT_SEQUENCES
        # A chain needs memory for a row of transitions per sequence, and reviews for all their sections.
        reading_bytes = 8 * 3 * number * size if trial.dataset == MARKOV else 2 * READING_TEXT_BYTES
        return DataShape(
            num_samples=number,
            sample_shape=(length,),
            num_classes=size,
            vocabulary_size=size,
            labels_tokens=True,
            reading_bytes=reading_bytes,
        )

    def load(self, trial: SupervisedParameters, source: DataSource) -> Dataset:
        """Load sequences of a chain or of reviews and, if a test split is requested, equally many for it."""
        length, size = _text_sizes(trial)
        number = trial.samples or DEFAULT_SEQUENCES
        needed = 2 * number if trial.test else number
        rng, markov_chain = np.random.default_rng([trial.data_seed, 1]), _chain(trial)
        if markov_chain is not None:
            tokens_NS = markov_chain.sequences(needed, length + 1, rng)
        else:
            whole_WS = load_corpus_of(trial.dataset, source).windows(length + 1, size)
            if needed > len(whole_WS):
                raise DatasetError(
                    f"{trial.dataset!r} has {len(whole_WS):,} sections of {length + 1} tokens, but {needed:,} are needed. "
                    "Set fewer samples, or a shorter context_length."
                )
            tokens_NS = whole_WS[rng.permutation(len(whole_WS))[:needed]]
        test = _token_dataset(tokens_NS[number:, :-1], tokens_NS[number:, 1:], size) if trial.test else None
        return _token_dataset(tokens_NS[:number, :-1], tokens_NS[:number, 1:], size, test)

    def check(self, trial: SupervisedParameters, whole: Dataset | Streamed | None) -> None:
        if whole is not None:
            check_drawn(trial, whole.num_samples)
        elif trial.dataset != MARKOV:
            for name in _CHAIN_PARAMETERS:
                default = trial.schema[name].default
                if getattr(trial, name) != default:
                    raise ParameterError(
                        f"{name} is {getattr(trial, name)}, but {trial.dataset!r} is not a chain. Leave it at {default}."
                    )

    def check_measurable(self, dataset: Dataset, trial: SupervisedParameters) -> None:
        count_classes(dataset, trial, "train")
        if dataset.test is not None:
            count_classes(dataset.test, trial, "test")

    def check_network(self, trial: SupervisedParameters, network: Network, data: DataShape) -> None:
        """Reject layers without one feature per position. This builds a user's module and runs it once."""
        for layer in network.layers():
            if len(layer.shape) != 2 or layer.shape[0] != data.num_inputs:
                raise ParameterError(
                    f"layer {layer.name} of {trial.arch} returns {list(layer.shape)} for a sequence, but next tokens are "
                    f"measured per position. Select modules in layers that return [N, {data.num_inputs}, numbers]."
                )

    def measured_width(self, layer: Layer) -> int:
        return layer.shape[-1]

    def measure(self, dataset: Dataset, trial: SupervisedParameters, split: str) -> Measure:
        from depthrate.tasks.supervised.targets.next_token_training import TokenMeasurements

        counts_V, classes_K = count_classes(dataset, trial, split)
        return TokenMeasurements(counts_V, classes_K, last_only=trial.positions == "last", split=split)

    def training_options(self, trials: Sequence[SupervisedParameters], dataset: Dataset) -> dict[str, Any]:
        from depthrate.tasks.supervised.targets.next_token_training import NextTokenTrainer

        markov_chain = _chain(trials[0])
        floor = float("nan") if markov_chain is None else markov_chain.floor(dataset.x_NI.shape[1])
        vocabulary_size = len(dataset.class_counts_K)
        return {"trainer": functools.partial(NextTokenTrainer, vocabulary_size=vocabulary_size, floor=floor)}


def count_classes(dataset: Dataset, trial: SupervisedParameters, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the count of each next token at the measured positions [V], and the tokens that are classes [K].

    Raises:
        DatasetError: Fewer than two tokens occur as next token often enough to be measured.
    """
    measured = dataset.labels_N if trial.positions == "all" else dataset.labels_N[:, -1:]
    counts_V = np.bincount(measured.ravel(), minlength=len(dataset.class_counts_K))
    classes_K = np.flatnonzero(counts_V >= trial.min_class_count)
    if len(classes_K) < 2:
        raise DatasetError(
            f"{len(classes_K)} tokens come next at {trial.min_class_count} or more of {measured.size} measured positions of "
            f"the split {split!r}, but collapse is measured between two or more. Set a smaller min_class_count, more "
            "samples, or positions: all."
        )
    return counts_V, classes_K


def _token_dataset(x_NS: np.ndarray, y_NS: np.ndarray, size: int, test: Dataset | None = None) -> Dataset:
    x_NS, y_NS = np.ascontiguousarray(x_NS, np.int64), np.ascontiguousarray(y_NS, np.int64)
    return Dataset(x_NS, y_NS, np.bincount(y_NS.ravel(), minlength=size), x_NS.shape[1:], size, test)


def _text_sizes(trial: SupervisedParameters) -> tuple[int, int]:
    """Return the context length and the vocabulary size of built-in data."""
    length, size = TEXT_SIZES[trial.dataset]
    return trial.context_length or length, trial.vocabulary_size or size


def _chain(trial: SupervisedParameters) -> Chain | None:
    """Build the chain of a trial's sequences, or return None for other data."""
    if trial.dataset != MARKOV:
        return None
    size = _text_sizes(trial)[1]
    return chain(size, order=trial.order, zipf=trial.zipf, sharpness=trial.sharpness, seed=trial.data_seed)
