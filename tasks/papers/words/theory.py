"""Predictions of the paper's theorems for a trial: word norms, block norms of the linear layer, loss. Torch-free.

Sentences of L words, n_c concepts of s words each, K of the n_c^L sequences of concepts as classes, word b of a concept drawn
with frequency mu_b. At a collapsed solution the words of concept alpha are r_b f_alpha and the blocks of the linear layer
c f_alpha, with equiangular f (cosines -1/(n_c - 1)).

Source: Feature Collapse (Laurent, von Brecht and Bresson 2023), Theorems 1, 2 and 3. They are exact for K = n_c^L; with fewer
classes their symmetry assumption holds on average over the draw of the sequences.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import optimize

Floats = npt.NDArray[np.float64]

GRID = 1 << 14
"""Grid points on which the mean field sums L - 1 words. Four times as many change no norm by more than 2e-4."""


class PredictionSource(IntEnum):
    """Source of a prediction."""

    MEAN_FIELD = 0
    THEOREM_1 = 1
    THEOREM_2 = 2
    THEOREM_3 = 3


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Inputs of the theorems."""

    concepts: int
    vocabulary_size: int
    sentence_length: int
    sequences: int
    weight_decay: float
    width: int
    frequencies: Floats
    """Word frequencies of a concept, [s], descending, with sum 1."""

    @property
    def share(self) -> float:
        """Share of sequences that are classes, K / n_c^L."""
        return self.sequences / self.concepts**self.sentence_length

    @property
    def steepness(self) -> float:
        """Cost in the logit of one wrong concept per unit of (word norm x block norm): n_c / (n_c - 1)."""
        return self.concepts / (self.concepts - 1)

    @property
    def is_uniform(self) -> bool:
        """Whether all words are equally frequent."""
        return bool(np.ptp(self.frequencies) <= 1e-12 * self.frequencies[0])


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The collapsed minimiser of the risk with weight decay."""

    source: PredictionSource
    word_norms: Floats
    """Norms by frequency rank, [s]: of embeddings, or with LayerNorm of the words as the linear layer reads them."""
    linear_norm: float
    """Norm of a block of the linear layer."""
    loss: float
    """Cross-entropy on fresh sentences."""
    objective: float
    """Loss plus the weight decay penalty."""


def frequencies(words: int, zipf: float) -> Floats:
    """Return the frequencies [s] of the words of a concept, proportional to 1 / b^zipf."""
    weights = np.arange(1, words + 1, dtype=np.float64) ** -zipf
    return weights / weights.sum()


def predict(setting: Setting, *, layer_norm: bool) -> Prediction:
    """Predict the minimiser: with LayerNorm by Theorem 3, else by Theorem 1 or 2 if it holds, else by the mean field."""
    if layer_norm:
        return theorem_3(setting)
    if setting.is_uniform:
        return theorem_1(setting)
    if setting.share == 1 and theorem_2_holds(setting):
        return theorem_2(setting)
    return mean_field(setting)


def risk(setting: Setting, gap: float) -> float:
    """Return the cross-entropy if each wrong concept of a sentence costs its class `gap` in the logit."""
    return float(_log_sum(setting, setting.sentence_length * _log_factor(setting, gap)))


def theorem_1(setting: Setting) -> Prediction:
    """Return the minimiser without LayerNorm for uniform frequencies (Theorem 1)."""
    blocks = setting.sequences * setting.sentence_length
    rate = setting.steepness / math.sqrt(setting.vocabulary_size * blocks)
    decay = setting.weight_decay

    def objective(t: float) -> float:
        return risk(setting, rate * t) + decay * t

    def slope(t: float) -> float:
        return rate * _risk_slope(setting, rate * t) + decay

    t = _minimiser(objective, slope, math.log(setting.sequences + 1) / decay if decay else math.inf)
    return Prediction(
        source=PredictionSource.THEOREM_1,
        word_norms=np.full(len(setting.frequencies), math.sqrt(t / setting.vocabulary_size)),
        linear_norm=math.sqrt(t / blocks),
        loss=risk(setting, rate * t),
        objective=objective(t),
    )


def theorem_2_holds(setting: Setting) -> bool:
    """Return whether Theorem 2's condition holds: lambda^2 < L sum mu_b^2 / n_c^(L + 1)."""
    length = setting.sentence_length
    bound = length * float(np.square(setting.frequencies).sum()) / setting.concepts ** (length + 1)
    return setting.weight_decay**2 < bound


def theorem_2(setting: Setting) -> Prediction:
    """Return the minimiser without LayerNorm for any frequencies, with all n_c^L sequences as classes (Theorem 2).

    Raises:
        ValueError: the condition of the theorem does not hold (`theorem_2_holds`).
    """
    if setting.share != 1 or not theorem_2_holds(setting):
        raise ValueError(
            f"Theorem 2 does not hold: {setting.sequences} of {setting.concepts}^{setting.sentence_length} sequences, "
            f"weight_decay {setting.weight_decay:g}; give all of them, and a weight decay with "
            "lambda^2 < L sum mu_b^2 / n_c^(L + 1)"
        )
    length, steepness = setting.sentence_length, setting.steepness
    wanted = length * float(setting.concepts) ** (length - 1)

    def ratios(c: float) -> Floats:
        """Solve (lambda/L) x (n_c - 1 + exp(steepness c^2 x)) = mu_b for x = r_b / c. The left side increases in x."""
        target, scale = setting.frequencies * length / setting.weight_decay, steepness * c**2

        def excess(x: float, aim: float) -> float:
            return math.log(x) + float(np.logaddexp(math.log(setting.concepts - 1), scale * x)) - math.log(aim)

        return np.array([_root(excess, 1e-300, aim, aim) for aim in target])

    def balance(c: float) -> float:
        return math.log(float(np.square(ratios(c)).sum()) / wanted)

    high = 1.0
    while balance(high) > 0:
        high *= 2
    c = float(optimize.brentq(balance, 0.0, high, xtol=1e-15, rtol=1e-14))
    norms = c * ratios(c)
    return _of_norms(setting, PredictionSource.THEOREM_2, norms, c)


def theorem_3(setting: Setting) -> Prediction:
    """Return the minimiser with LayerNorm, whose word features have norm sqrt(d), for any frequencies (Theorem 3)."""
    blocks, decay = setting.sequences * setting.sentence_length, setting.weight_decay
    rate = setting.steepness * math.sqrt(setting.width / blocks)

    def objective(t: float) -> float:
        return risk(setting, rate * t) + decay * t**2 / 2

    def slope(t: float) -> float:
        return rate * _risk_slope(setting, rate * t) + decay * t

    t = _minimiser(objective, slope, math.sqrt(2 * math.log(setting.sequences + 1) / decay) if decay else math.inf)
    return Prediction(
        source=PredictionSource.THEOREM_3,
        word_norms=np.full(len(setting.frequencies), math.sqrt(setting.width)),
        linear_norm=t / math.sqrt(blocks),
        loss=risk(setting, rate * t),
        objective=objective(t),
    )


def mean_field(setting: Setting) -> Prediction:
    """Return the minimiser without LayerNorm for any frequencies and any number of classes, averaged over the sampled classes.

    Minimises over r_b and c the mean over sentences of log(1 - K/n_c^L + K prod_l s(b_l)) + (lambda/2)(n_c sum r_b^2 +
    K L c^2), s(b) = 1/n_c + (1 - 1/n_c) exp(-n_c/(n_c - 1) c r_b). Equal to Theorem 1 for uniform frequencies.
    """
    blocks, concepts, decay = setting.sequences * setting.sentence_length, setting.concepts, setting.weight_decay
    uniform = theorem_1(setting)
    if uniform.linear_norm == 0:
        return _of_norms(setting, PredictionSource.MEAN_FIELD, np.zeros(len(setting.frequencies)), 0.0)

    def objective(x: Floats) -> tuple[float, Floats]:
        norms, c = x[:-1], float(x[-1])
        loss, by_gap = _mean_risk(setting, c * norms)
        value = loss + decay / 2 * (concepts * float(norms @ norms) + blocks * c**2)
        gradient = np.append(c * by_gap + decay * concepts * norms, norms @ by_gap + decay * blocks * c)
        return value, gradient

    # scale the uniform norms by the square root of the relative frequency, with the same sum of squares
    spread = np.sqrt(setting.frequencies * len(setting.frequencies))
    start = np.append(uniform.word_norms * spread, uniform.linear_norm)
    solution = optimize.minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=[(0, None)] * len(start),
        options={"maxiter": 5000, "maxfun": 10000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 30},
    )
    if solution.fun > math.log(1 - setting.share + setting.sequences):  # the zero solution is better
        return _of_norms(setting, PredictionSource.MEAN_FIELD, np.zeros(len(setting.frequencies)), 0.0)
    return _of_norms(setting, PredictionSource.MEAN_FIELD, solution.x[:-1], float(solution.x[-1]))


def _of_norms(setting: Setting, source: PredictionSource, norms: Floats, c: float) -> Prediction:
    loss, _ = _mean_risk(setting, c * norms)
    blocks = setting.sequences * setting.sentence_length
    decay = setting.weight_decay / 2 * (setting.concepts * float(norms @ norms) + blocks * c**2)
    return Prediction(source=source, word_norms=norms, linear_norm=c, loss=loss, objective=loss + decay)


def _log_factor(setting: Setting, gap: Any) -> Any:
    """Return log(1/n_c + (1 - 1/n_c) exp(-gap)), the log factor of one word in the sum over classes."""
    return np.log1p((setting.concepts - 1) * np.exp(-gap)) - math.log(setting.concepts)


def _log_sum(setting: Setting, log_product: Any) -> Any:
    """Return log(1 - K/n_c^L + K exp(log_product))."""
    return np.log(1 - setting.share + setting.sequences * np.exp(log_product))


def _risk_slope(setting: Setting, gap: float) -> float:
    """Return the derivative of `risk` in the gap."""
    product = setting.sequences * math.exp(setting.sentence_length * _log_factor(setting, gap))
    return setting.sentence_length * product / (1 - setting.share + product) * _factor_slope(setting, gap)


def _factor_slope(setting: Setting, gap: Any) -> Any:
    """Return the derivative of `_log_factor` in the gap."""
    wrong = (setting.concepts - 1) * np.exp(-gap)
    return -wrong / (1 + wrong)


def _mean_risk(setting: Setting, products: Floats) -> tuple[float, Floats]:
    """Return the mean cross-entropy over sentences and its derivative in each word's (norm x block norm).

    The distribution of the summed log factors of L - 1 words is computed on a grid, as a power of a Fourier transform.
    The last word is then added; all positions are equivalent.
    """
    length, mu = setting.sentence_length, setting.frequencies
    gaps = setting.steepness * products
    spacing = length * math.log(setting.concepts) / (GRID - 1)
    places = -_log_factor(setting, gaps) / spacing
    lower = np.minimum(places.astype(np.int64), GRID - 2)
    upper_share = places - lower
    one = np.bincount(lower, mu * (1 - upper_share), GRID) + np.bincount(lower + 1, mu * upper_share, GRID)
    others = np.fft.rfft(one, 2 * GRID) ** (length - 1)
    grid = -spacing * np.arange(2 * GRID)

    def averaged(of_sum: Floats) -> Floats:
        """Average over L - 1 other words: sum_j p_j f(x_i + x_j), interpolated linearly between grid points."""
        mean = np.fft.irfft(np.conj(others) * np.fft.rfft(of_sum), 2 * GRID)
        return np.asarray(mean[lower] * (1 - upper_share) + mean[lower + 1] * upper_share)

    log_sum = _log_sum(setting, grid)
    log_sum_slope = setting.sequences * np.exp(grid - log_sum)
    loss = float(mu @ averaged(log_sum))
    by_gap = length * mu * averaged(log_sum_slope) * _factor_slope(setting, gaps)
    return loss, setting.steepness * by_gap


def _minimiser(objective: Callable[[float], float], slope: Callable[[float], float], most: float) -> float:
    """Return the minimiser of the objective over [0, most]: 0, or a point where the slope rises through zero, to rounding."""
    if math.isinf(most):
        raise ValueError("weight_decay is 0, and the norms grow for ever; give a positive one")
    points = [0.0, *np.geomspace(most * 1e-9, most, 2000)]
    slopes = [slope(t) for t in points]
    candidates = [0.0]
    for index in range(len(points) - 1):
        if slopes[index] < 0 <= slopes[index + 1]:
            low, high = points[index], points[index + 1]
            candidates.append(float(optimize.brentq(slope, low, high, xtol=1e-14 * high, rtol=1e-14)))
    return min(candidates, key=objective)


def _root(function: Callable[..., float], low: float, high: float, argument: float) -> float:
    return float(optimize.brentq(function, low, high, args=(argument,), xtol=1e-300, rtol=1e-14))
