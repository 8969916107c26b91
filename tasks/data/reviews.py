"""The IMDB reviews as sequences of token numbers; the same archive gives the same numbers everywhere.

A token is a run of ASCII letters and digits, lower case, with what follows an apostrophe. Tokens are numbered by how
often they occur in the whole training set, ties by alphabet: 0 is padding, 1 any token beyond the vocabulary, 2 the most
frequent one. So a smaller vocabulary is a prefix of a larger one, and neither depends on which reviews a trial draws.

Shapes: N reviews, S tokens of context, M tokens of all reviews.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from depthrate.tasks.data.sources import DatasetError, archive_members
from depthrate.tasks.private_cache import private_cache

PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2
REVIEWS_PER_CLASS = 12_500
TOKENIZER_VERSION = 1
"""Part of the cache's key: raise it when `tokenize` or the numbering changes."""
_TOKEN = re.compile(r"[a-z0-9]+(?:'[a-z]+)*")
_TRAINING_REVIEW = re.compile(r"aclImdb/train/(neg|pos)/([^/]+\.txt)")


@dataclass(frozen=True)
class Corpus:
    """All training reviews, each a stretch of `tokens_M`, negative ones first, by file name within a class."""

    tokens_M: np.ndarray
    """Numbers from FIRST_WORD on."""
    ends_N: np.ndarray
    """Where each review ends."""
    labels_N: np.ndarray
    """0 negative, 1 positive."""

    def contexts(self, reviews: np.ndarray, context_length: int, vocabulary_size: int) -> np.ndarray:
        """Return the last tokens of the chosen reviews [N, S], padded in front, so that the last position is a word's.

        The end is taken because a review's verdict stands there, and the network is read out at the last position.
        """
        x_NS = np.full((len(reviews), context_length), PADDING, dtype=np.int64)
        for row, review in enumerate(reviews):
            start = self.ends_N[review - 1] if review > 0 else 0
            words = self.tokens_M[max(start, self.ends_N[review] - context_length) : self.ends_N[review]]
            x_NS[row, context_length - len(words) :] = np.where(words < vocabulary_size, words, UNKNOWN)
        return x_NS

    def windows(self, length: int, vocabulary_size: int) -> np.ndarray:
        """Return stretches of so many tokens [W, length] that do not overlap, each of one review; what is left of it is not
        given."""
        starts = np.concatenate([[0], self.ends_N[:-1]])
        whole_N = (self.ends_N - starts) // length
        first_W = np.repeat(starts, whole_N)
        number_W = np.arange(len(first_W)) - np.repeat(np.cumsum(whole_N) - whole_N, whole_N)
        words = self.tokens_M[(first_W + length * number_W)[:, None] + np.arange(length)]
        return np.where(words < vocabulary_size, words, UNKNOWN).astype(np.int64)


def tokenize(text: str) -> list[str]:
    """Return the tokens of a review; its HTML line breaks separate words."""
    return _TOKEN.findall(text.lower().replace("<br />", " "))


def build_corpus(reviews: Iterable[tuple[int, str]]) -> Corpus:
    """Number the tokens of (label, text) pairs, in the order given."""
    first_seen: dict[str, int] = {}
    labels, texts = [], []
    for label, text in reviews:
        labels.append(label)  # as numbers at once: the words of all reviews as Python texts would take half a gigabyte
        texts.append(
            np.array([first_seen.setdefault(word, len(first_seen)) for word in tokenize(text)], dtype=np.int32)
        )
    seen_M = np.concatenate(texts)
    words, counts = list(first_seen), np.bincount(seen_M, minlength=len(first_seen))
    ranked = sorted(range(len(words)), key=lambda index: (-counts[index], words[index]))
    number = np.empty(len(words), dtype=np.int32)
    number[ranked] = np.arange(FIRST_WORD, FIRST_WORD + len(words))
    ends_N = np.cumsum([len(text) for text in texts], dtype=np.int64)
    return Corpus(number[seen_M], ends_N, np.array(labels, dtype=np.int64))


def load_corpus(opened: IO[bytes], origin: str) -> Corpus:
    """Return the corpus of an archive, from the cache where this very content was read before.

    Raises:
        DatasetError: the archive is damaged or lacks reviews.
    """
    digest = hashlib.sha256()
    while part := opened.read(1 << 20):
        digest.update(part)
    path = private_cache("tokens") / f"imdb-{TOKENIZER_VERSION}-{digest.hexdigest()[:32]}.npz"
    cached = _read_cached(path)
    if cached is not None:
        return cached
    opened.seek(0)
    corpus = build_corpus(read_reviews(opened, origin, per_class=REVIEWS_PER_CLASS))
    _write_cached(path, corpus)
    return corpus


def read_reviews(opened: IO[bytes], origin: str, *, per_class: int) -> list[tuple[int, str]]:
    """Return (label, text) of the training reviews in an aclImdb archive, sorted by label and file name.

    Raises:
        DatasetError: the archive is damaged, or has not exactly `per_class` reviews of each class.
    """
    found: dict[tuple[str, str], str] = {}
    for member, content in archive_members(opened, origin):
        match = _TRAINING_REVIEW.fullmatch(member)
        if match:
            found[match[1], match[2]] = content().decode(errors="replace")
            if len(found) == 2 * per_class:
                break
    for folder in ("neg", "pos"):
        count = sum(key[0] == folder for key in found)
        if count != per_class:
            raise DatasetError(
                f"{origin} holds {count} reviews in aclImdb/train/{folder}; expected {per_class}: "
                "it is cut short or another archive; get it again"
            )
    return [(("neg", "pos").index(folder), text) for (folder, _), text in sorted(found.items())]


def _read_cached(path: Path) -> Corpus | None:
    try:
        content = path.read_bytes()
        digest, payload = content[:32], content[32:]
        if hashlib.sha256(payload).digest() != digest:
            raise ValueError("its checksum is wrong")
        with np.load(io.BytesIO(payload), allow_pickle=False) as arrays:
            return Corpus(arrays["tokens_M"], arrays["ends_N"], arrays["labels_N"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError) as error:
        logging.getLogger(__name__).warning("cache %s cannot be used (%s); the reviews are read anew", path, error)
        return None


def _write_cached(path: Path, corpus: Corpus) -> None:
    """Keep a corpus, seen whole or not at all; a place that cannot be written costs time, nothing else."""
    buffer = io.BytesIO()
    np.savez(buffer, tokens_M=corpus.tokens_M, ends_N=corpus.ends_N, labels_N=corpus.labels_N)
    payload = buffer.getvalue()
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        aside.write_bytes(hashlib.sha256(payload).digest() + payload)
        os.replace(aside, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        logging.getLogger(__name__).warning("tokenised reviews cannot be kept in %s (%s)", path.parent, error)
