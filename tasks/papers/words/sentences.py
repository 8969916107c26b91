"""The data of the task `words`: latent sequences of concepts, and sentences that express them in words.

Word b of concept a has the number a s + b, with s words per concept, the most frequent first.

Shapes: K sequences (classes), L words of a sentence, N sentences sorted by class.
Source: Feature Collapse (Laurent, von Brecht and Bresson 2023), section 2.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from depthrate.tasks.papers.words.parameters import WordsParameters
from depthrate.tasks.papers.words.theory import frequencies
from depthrate.tasks.training.pack_state import random_stream

LARGEST_SHUFFLED = 1 << 20
"""Largest number of possible sequences that is shuffled as a whole. Above it, sequences are sampled until enough differ."""


@dataclass(frozen=True)
class Sentences:
    """Training and test sentences of one trial."""

    concepts_KL: Tensor
    """Latent sequences, int64."""
    train_NL: Tensor
    """Word numbers of the training sentences, int32, sorted by class, with equally many sentences per class."""
    test_NL: Tensor
    """Word numbers of the test sentences, in the same layout."""

    @property
    def num_train(self) -> int:
        return len(self.train_NL)


def draw_sentences(trial: WordsParameters) -> Sentences:
    """Sample the sentences of a trial.

    A larger sample starts with the smaller one. Word frequencies do not affect the latent sequences."""
    seed = trial.seed if trial.data_seed is None else trial.data_seed
    concepts_KL = latent_sequences(
        random_stream(seed, "latent sequences"), trial.concepts, trial.sentence_length, trial.sequences
    )
    words = trial.words_per_concept
    cumulative_S = torch.from_numpy(frequencies(words, trial.zipf)).cumsum(0)

    def sampled(purpose: str, per_sequence: int) -> Tensor:
        generator = random_stream(seed, purpose)
        uniform = torch.rand(per_sequence, *concepts_KL.shape, generator=generator, dtype=torch.float64)
        ranks = torch.searchsorted(cumulative_S, uniform, right=True).clamp_(max=words - 1)
        numbers = (ranks + words * concepts_KL).transpose(0, 1)
        return numbers.reshape(-1, concepts_KL.shape[1]).to(torch.int32)

    return Sentences(
        concepts_KL,
        sampled("training sentences", trial.samples_per_sequence),
        sampled("test sentences", trial.test_samples_per_sequence),
    )


def latent_sequences(generator: torch.Generator, concepts: int, length: int, num_sequences: int) -> Tensor:
    """Sample distinct sequences of concepts uniformly, [K, L]."""
    possible = concepts**length
    if possible <= LARGEST_SHUFFLED:
        numbers = torch.randperm(possible, generator=generator)[:num_sequences]
        digits = [numbers // concepts**place % concepts for place in range(length)]
        return torch.stack(digits, dim=1)
    chosen: dict[tuple[int, ...], None] = {}
    while len(chosen) < num_sequences:
        proposed = torch.randint(concepts, (num_sequences, length), generator=generator)
        chosen |= dict.fromkeys(map(tuple, proposed.tolist()))
    return torch.tensor(list(chosen)[:num_sequences])
