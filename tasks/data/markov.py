"""Data set `markov`: a Markov chain over tokens with Zipf frequencies and known entropy.

Importable without torch. Shapes: V tokens, N sequences, S tokens of context.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

MARKOV = "markov"
BALANCED = 1e-12
"""Maximum relative error of a token's frequency after a step of the chain."""


@dataclass(frozen=True)
class Chain:
    """Markov chain whose tokens depend on the token `order` places before: x_t ~ transition[x_(t - order)].

    The first `order` tokens are sampled from `stationary_V`, so these frequencies hold at every position.
    """

    stationary_V: np.ndarray
    """Token frequencies in falling order: the i-th is proportional to i^-zipf."""
    transition_VV: np.ndarray
    """Transition probabilities. Each row sums to 1."""
    order: int

    def floor(self, context_length: int) -> float:
        """Return the minimum expected cross-entropy in nats, averaged over the positions of a context of this length.

        At positions where the context reaches `order` tokens back it is the entropy rate sum_i p_i H(P_i), elsewhere the
        entropy H(p).
        """
        rate = float(self.stationary_V @ _entropies(self.transition_VV))
        unseen = min(self.order - 1, context_length)
        total = unseen * float(_entropies(self.stationary_V[None])[0]) + (context_length - unseen) * rate
        return total / context_length

    def sequences(self, number: int, length: int, rng: np.random.Generator) -> np.ndarray:
        """Sample sequences [number, length]. A smaller sample is a prefix of a larger one."""
        uniform_NS = rng.random((number, length))
        first_V, next_VV = np.cumsum(self.stationary_V), np.cumsum(self.transition_VV, axis=1)
        tokens_NS = np.empty((number, length), np.int64)
        for place in range(length):
            if place < self.order:
                drawn_N = np.searchsorted(first_V, uniform_NS[:, place], side="right")
            else:
                before_N = tokens_NS[:, place - self.order]
                drawn_N = (next_VV[before_N] <= uniform_NS[:, place, None]).sum(1)
            tokens_NS[:, place] = np.minimum(drawn_N, len(first_V) - 1)  # rounding can leave a sum below 1
        return tokens_NS


@functools.lru_cache(maxsize=4)
def chain(vocabulary_size: int, *, order: int, zipf: float, sharpness: float, seed: int) -> Chain:
    """Build the chain with these parameters.

    The joint frequencies of a token and its successor are exp(sharpness z), z standard normal. Rows and columns are
    scaled until both sums follow Zipf's law (iterative proportional fitting), so the frequencies are stationary.
    """
    frequency_V = np.arange(1, vocabulary_size + 1) ** -float(zipf)
    frequency_V /= frequency_V.sum()
    joint_VV = np.exp(sharpness * np.random.default_rng([seed, 0]).normal(size=(vocabulary_size, vocabulary_size)))
    while np.abs(joint_VV.sum(1) / frequency_V - 1).max() > BALANCED:
        joint_VV *= (frequency_V / joint_VV.sum(1))[:, None]
        joint_VV *= frequency_V / joint_VV.sum(0)
    return Chain(frequency_V, joint_VV / joint_VV.sum(1, keepdims=True), order)


def _entropies(rows_RV: np.ndarray) -> np.ndarray:
    """Return the entropy of each row, in nats."""
    return -(rows_RV * np.log(np.where(rows_RV > 0, rows_RV, 1))).sum(1)
