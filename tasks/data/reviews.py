"""IMDB reviews as sequences of token numbers. The same archive gives the same numbers on every machine.

A token is a lower-case run of ASCII letters and digits, including suffixes after an apostrophe. Tokens are numbered by
falling frequency in the whole training set, ties alphabetically: 0 is padding, 1 any token outside the vocabulary, 2 the
most frequent token. A smaller vocabulary is thus a prefix of a larger one, and independent of a trial's sample.

Shapes: N reviews, S tokens of context, M tokens of all reviews.
"""

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

from depthrate.tasks.code.private_cache import private_cache
from depthrate.tasks.data.sources import DatasetError, archive_members

PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2
REVIEWS_PER_CLASS = 12_500
TOKENIZER_VERSION = 1
"""Version in the cache key, to be raised when `tokenize` or the numbering changes."""
_TOKEN = re.compile(r"[a-z0-9]+(?:'[a-z]+)*")
_TRAINING_REVIEW = re.compile(r"aclImdb/train/(neg|pos)/([^/]+\.txt)")


@dataclass(frozen=True)
class Corpus:
    """All training reviews, one segment of `tokens_M` per review: negative reviews first, by file name within a class."""

    tokens_M: np.ndarray
    """Token numbers of all reviews, from FIRST_WORD on."""
    ends_N: np.ndarray
    """End (exclusive) of each review in `tokens_M`."""
    labels_N: np.ndarray
    """Labels: 0 negative, 1 positive."""

    def contexts(self, reviews: np.ndarray, context_length: int, vocabulary_size: int) -> np.ndarray:
        """Return the last tokens of the selected reviews, [N, S], padded in front so that the last position is a word.

        The end usually holds a review's verdict, and the network's output is taken at the last position.
        """
        x_NS = np.full((len(reviews), context_length), PADDING, dtype=np.int64)
        for row, review in enumerate(reviews):
            start = self.ends_N[review - 1] if review > 0 else 0
            words = self.tokens_M[max(start, self.ends_N[review] - context_length) : self.ends_N[review]]
            x_NS[row, context_length - len(words) :] = np.where(words < vocabulary_size, words, UNKNOWN)
        return x_NS

    def windows(self, length: int, vocabulary_size: int) -> np.ndarray:
        """Split the reviews into windows of `length` tokens, [W, length].

        Windows do not overlap or cross reviews. A review's remaining tokens are omitted.
        """
        starts = np.concatenate([[0], self.ends_N[:-1]])
        whole_N = (self.ends_N - starts) // length
        first_W = np.repeat(starts, whole_N)
        number_W = np.arange(len(first_W)) - np.repeat(np.cumsum(whole_N) - whole_N, whole_N)
        words = self.tokens_M[(first_W + length * number_W)[:, None] + np.arange(length)]
        return np.where(words < vocabulary_size, words, UNKNOWN).astype(np.int64)


def tokenize(text: str) -> list[str]:
    """Split a review into tokens. HTML line breaks separate words."""
    return _TOKEN.findall(text.lower().replace("<br />", " "))


def build_corpus(reviews: Iterable[tuple[int, str]]) -> Corpus:
    """Build a corpus from (label, text) pairs, in their order."""
    first_seen: dict[str, int] = {}
    labels, texts = [], []
    for label, text in reviews:
        labels.append(label)  # convert to numbers immediately: all words as Python strings would take 0.5 GB
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
    """Load the corpus of an archive, from the cache if an archive with the same content was read before.

    Raises:
        DatasetError: The archive is corrupt or lacks reviews.
    """
    digest = hashlib.sha256()
    while part := opened.read(1 << 20):
        digest.update(part)
    path = private_cache("tokens") / f"imdb-{TOKENIZER_VERSION}-{digest.hexdigest()[:32]}.npz"
    cached = _read_cached(path)
    if cached is not None:
        return cached
    opened.seek(0)
    corpus = build_corpus(read_reviews(opened, origin))
    _write_cached(path, corpus)
    return corpus


def read_reviews(opened: IO[bytes], origin: str) -> list[tuple[int, str]]:
    """Read (label, text) of the training reviews in an aclImdb archive, sorted by label and file name.

    Raises:
        DatasetError: The archive is corrupt, or does not have exactly `REVIEWS_PER_CLASS` reviews per class.
    """
    texts: dict[tuple[str, str], str] = {}
    for member, content in archive_members(opened, origin):
        match = _TRAINING_REVIEW.fullmatch(member)
        if match:
            texts[match[1], match[2]] = content().decode(errors="replace")
            if len(texts) == 2 * REVIEWS_PER_CLASS:
                break
    for folder in ("neg", "pos"):
        count = sum(key[0] == folder for key in texts)
        if count != REVIEWS_PER_CLASS:
            raise DatasetError(
                f"{origin} has {count} reviews in aclImdb/train/{folder}, expected {REVIEWS_PER_CLASS}. It is truncated or "
                "another archive. Download it again."
            )
    return [(("neg", "pos").index(folder), text) for (folder, _), text in sorted(texts.items())]


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
        logging.getLogger(__name__).warning("cache %s cannot be used (%s). The reviews are read again.", path, error)
        return None


def _write_cached(path: Path, corpus: Corpus) -> None:
    """Cache a corpus with an atomic write. Log a warning if that fails, since the cache only saves time."""
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
        logging.getLogger(__name__).warning("tokenised reviews cannot be stored in %s (%s)", path.parent, error)
