"""Sequences of tokens, each with the token after it as its label: of a chain, of reviews, or the user's.

Importable without torch. Shapes: N sequences, S tokens of context, V tokens in the vocabulary.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from depthrate.tasks.data.dataset import Dataset
from depthrate.tasks.data.published import load_corpus_of
from depthrate.tasks.data.sources import DatasetError, DataSource
from depthrate.tasks.next_token.schema import DEFAULT_SAMPLES, NextTokenParameters, chain_of, reading
from depthrate.tasks.own.arrays import Arrays
from depthrate.tasks.own.data import check_not_empty

NO_SIZE = "does not say how many tokens are told apart; give vocabulary_size beside x and y"


def sequences_of_ours(trial: NextTokenParameters, source: DataSource) -> Dataset:
    """Return a trial's sequences, with as many others as its test split where that is wanted.

    Raises:
        DatasetError: reviews are missing, damaged, or fewer than asked for.
    """
    length, vocabulary_size = reading(trial)
    number = trial.samples or DEFAULT_SAMPLES
    needed = 2 * number if trial.test else number
    rng, chain = np.random.default_rng([trial.data_seed, 1]), chain_of(trial)
    if chain is not None:
        tokens_NS = chain.sequences(needed, length + 1, rng)
    else:
        whole_WS = load_corpus_of(trial.dataset, source).windows(length + 1, vocabulary_size)
        if needed > len(whole_WS):
            raise DatasetError(
                f"{trial.dataset!r} has {len(whole_WS):,} stretches of {length + 1} tokens, and {needed:,} are asked for; "
                "give fewer samples, or a shorter context_length"
            )
        tokens_NS = whole_WS[rng.permutation(len(whole_WS))[:needed]]
    test = labelled(tokens_NS[number:, :-1], tokens_NS[number:, 1:], vocabulary_size) if trial.test else None
    whole = labelled(tokens_NS[:number, :-1], tokens_NS[:number, 1:], vocabulary_size)
    return dataclasses.replace(whole, test=test)


def labelled(x_NS: np.ndarray, y_NS: np.ndarray, vocabulary_size: int) -> Dataset:
    """Return sequences with a label a token, in the order in which they come."""
    x_NS, y_NS = (np.ascontiguousarray(each, np.int64) for each in (x_NS, y_NS))
    counts_V = np.bincount(y_NS.ravel(), minlength=vocabulary_size)
    return Dataset(x_NS, y_NS, counts_V, x_NS.shape[1:], vocabulary_size)


def sequences_of_arrays(arrays: Arrays, name: str) -> Dataset:
    """Return a user's arrays as sequences, all of them.

    Raises:
        DatasetError: they are no tokens below `vocabulary_size`, or not a label a token.
    """
    if (arrays.x_test is None) != (arrays.y_test is None):
        raise DatasetError(f"{name} has one of x_test and y_test; give both, or none")
    size = arrays.vocabulary_size
    if size is None:
        raise DatasetError(f"{name} {NO_SIZE}")

    def split(x: np.ndarray, y: np.ndarray, which: str) -> Dataset:
        check_not_empty(x, name, which)
        for what, each in (("x", x), ("y", y)):
            if each.dtype.kind not in "iu" or each.ndim != 2 or not each.size or each.min() < 0 or each.max() >= size:
                raise DatasetError(
                    f"{name}, {which} split: {what} is {each.dtype} of shape {list(each.shape)}; give whole numbers 0 to "
                    f"{size - 1} as [N, tokens], y the token after each of x: x, y = text[:, :-1], text[:, 1:]"
                )
        if x.shape != y.shape:
            raise DatasetError(
                f"{name}, {which} split: x has shape {list(x.shape)}, y {list(y.shape)}; y is the token after each of x"
            )
        return labelled(x, y, size)

    whole = split(arrays.x, arrays.y, "training")
    if arrays.y.min() == arrays.y.max():
        raise DatasetError(
            f"{name}: the next token is {arrays.y.min()} everywhere, and collapse is measured between the means of next "
            "tokens; give texts of two or more"
        )
    if arrays.x_test is None or arrays.y_test is None:
        return whole
    test = split(arrays.x_test, arrays.y_test, "test")
    if test.sample_shape != whole.sample_shape:
        raise DatasetError(
            f"{name}: sequences have {whole.sample_shape[0]} tokens, those of the test split {test.sample_shape[0]}"
        )
    return dataclasses.replace(whole, test=test)


def drawn(whole: Dataset, samples: int | None, data_seed: int, test: bool) -> Dataset:
    """Return so many of a user's sequences, with the test split where that is wanted."""
    held_out = whole.test if test else None
    if samples is None:
        return dataclasses.replace(whole, test=held_out)
    chosen = np.sort(np.random.default_rng([data_seed, 1]).permutation(len(whole.x_NI))[:samples])
    assert whole.vocabulary_size is not None
    return dataclasses.replace(
        labelled(whole.x_NI[chosen], whole.labels_N[chosen], whole.vocabulary_size), test=held_out
    )
