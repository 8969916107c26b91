"""A Markov chain over tokens whose frequencies follow Zipf's law and whose entropy is known: the data set `markov`.

Importable without torch. Shapes: V tokens, N sequences, S tokens of context.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

MARKOV = "markov"
BALANCED = 1e-12
"""How far, as a share, a token's frequency may be off after a step of the chain."""


@dataclass(frozen=True)
class Chain:
    """Tokens of which each follows the one `order` places before it: x_t ~ transition[x_(t - order)].

    The first `order` of a sequence are drawn from `stationary`, so that every token of it has these frequencies.
    """

    stationary_V: np.ndarray
    """Frequencies, falling: that of the i-th token is proportional to i^-zipf."""
    transition_VV: np.ndarray
    """Rows sum to 1."""
    order: int

    def floor(self, context_length: int) -> float:
        """Return the least expected cross-entropy, in nats, of the token after each of so many tokens of context.

        It is the entropy rate sum_i p_i H(P_i) where the context reaches `order` tokens back, the entropy H(p) where it does
        not, averaged over positions.
        """
        rate = float(self.stationary_V @ _entropies(self.transition_VV))
        unseen = min(self.order - 1, context_length)
        return (
            unseen * float(_entropies(self.stationary_V[None])[0]) + (context_length - unseen) * rate
        ) / context_length

    def sequences(self, number: int, length: int, rng: np.random.Generator) -> np.ndarray:
        """Return drawn sequences [number, length]; fewer of them are the first of more."""
        uniform_NS = rng.random((number, length))
        first_V, next_VV = np.cumsum(self.stationary_V), np.cumsum(self.transition_VV, axis=1)
        tokens_NS = np.empty((number, length), np.int64)
        for place in range(length):
            if place < self.order:
                drawn_N = np.searchsorted(first_V, uniform_NS[:, place], side="right")
            else:
                before_N = tokens_NS[:, place - self.order]
                drawn_N = (next_VV[before_N] <= uniform_NS[:, place, None]).sum(1)
            tokens_NS[:, place] = np.minimum(drawn_N, len(first_V) - 1)  # a sum may end short of 1 by rounding
        return tokens_NS


@functools.lru_cache(maxsize=4)
def chain(vocabulary_size: int, *, order: int, zipf: float, sharpness: float, seed: int) -> Chain:
    """Return the chain of these parameters.

    The joint frequencies of a token and the one that follows are exp(sharpness z), z standard normal, scaled by rows and by
    columns until both sums are Zipf's (iterative proportional fitting): so the frequencies are exactly stationary.
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
