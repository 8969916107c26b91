"""Predictions of the paper's theorems for a trial: word norms, block norms of the linear layer, loss. Torch-free.

Sentences of L words, n_c concepts of s words each, K of the n_c^L sequences of concepts as classes, word b of a concept drawn
with frequency mu_b. At a collapsed solution the words of concept alpha are r_b f_alpha and the blocks of the linear layer
c f_alpha, with equiangular f (cosines -1/(n_c - 1)).

Source: Feature Collapse (Laurent, von Brecht and Bresson 2023), Theorems 1, 2 and 3. They are exact for K = n_c^L. With fewer
classes their symmetry assumption holds on average over the draw of the sequences.
"""

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
"""Grid points for the mean field's sum over L - 1 words. Four times as many change no norm by more than 2e-4."""


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
    def blocks(self) -> int:
        """Number of blocks of the linear layer."""
        return self.sequences * self.sentence_length

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
    rate, decay = setting.steepness / math.sqrt(setting.vocabulary_size * setting.blocks), setting.weight_decay
    t, loss, objective = _minimum(setting, rate, lambda t: (decay * t, decay), lambda bound: bound / decay)
    norm = math.sqrt(t / setting.vocabulary_size)
    return _of_one_norm(setting, PredictionSource.THEOREM_1, norm, math.sqrt(t / setting.blocks), loss, objective)


def theorem_2_holds(setting: Setting) -> bool:
    """Return whether Theorem 2's condition holds: lambda^2 < L sum mu_b^2 / n_c^(L + 1)."""
    length = setting.sentence_length
    bound = length * float(np.square(setting.frequencies).sum()) / setting.concepts ** (length + 1)
    return setting.weight_decay**2 < bound


def theorem_2(setting: Setting) -> Prediction:
    """Return the minimiser without LayerNorm for any frequencies, with all n_c^L sequences as classes (Theorem 2).

    Raises:
        ValueError: The condition of the theorem does not hold (`theorem_2_holds`).
    """
    if setting.share != 1 or not theorem_2_holds(setting):
        raise ValueError(
            f"Theorem 2 does not hold: {setting.sequences} of {setting.concepts}^{setting.sentence_length} sequences, "
            f"weight_decay is {setting.weight_decay:g}. Use all sequences, and a weight decay with "
            "lambda^2 < L sum mu_b^2 / n_c^(L + 1)."
        )
    length, steepness = setting.sentence_length, setting.steepness
    wanted = length * float(setting.concepts) ** (length - 1)

    def ratios(c: float) -> Floats:
        """Solve (lambda/L) x (n_c - 1 + exp(steepness c^2 x)) = mu_b for x = r_b / c. The left side increases in x."""
        target, scale = setting.frequencies * length / setting.weight_decay, steepness * c**2

        def excess(x: float, aim: float) -> float:
            return math.log(x) + float(np.logaddexp(math.log(setting.concepts - 1), scale * x)) - math.log(aim)

        return np.array([optimize.brentq(excess, 1e-300, aim, (aim,), 1e-300, 1e-14) for aim in target])

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
    rate, decay = setting.steepness * math.sqrt(setting.width / setting.blocks), setting.weight_decay
    t, loss, objective = _minimum(
        setting, rate, lambda t: (decay * t**2 / 2, decay * t), lambda bound: math.sqrt(2 * bound / decay)
    )
    norm = math.sqrt(setting.width)
    return _of_one_norm(setting, PredictionSource.THEOREM_3, norm, t / math.sqrt(setting.blocks), loss, objective)


def mean_field(setting: Setting) -> Prediction:
    """Return the minimiser without LayerNorm for any frequencies and any number of classes, averaged over the sampled classes.

    Minimises over r_b and c the mean over sentences of log(1 - K/n_c^L + K prod_l s(b_l)) + (lambda/2)(n_c sum r_b^2 +
    K L c^2), s(b) = 1/n_c + (1 - 1/n_c) exp(-n_c/(n_c - 1) c r_b). Equal to Theorem 1 for uniform frequencies.
    """
    blocks, concepts, decay = setting.blocks, setting.concepts, setting.weight_decay
    uniform = theorem_1(setting)
    zero = _of_norms(setting, PredictionSource.MEAN_FIELD, np.zeros(len(setting.frequencies)), 0.0)
    if uniform.linear_norm == 0:
        return zero

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
        return zero
    return _of_norms(setting, PredictionSource.MEAN_FIELD, solution.x[:-1], float(solution.x[-1]))


def _of_one_norm(
    setting: Setting, source: PredictionSource, norm: float, linear_norm: float, loss: float, objective: float
) -> Prediction:
    norms = np.full(len(setting.frequencies), norm)
    return Prediction(source=source, word_norms=norms, linear_norm=linear_norm, loss=loss, objective=objective)


def _of_norms(setting: Setting, source: PredictionSource, norms: Floats, c: float) -> Prediction:
    loss, _ = _mean_risk(setting, c * norms)
    decay = setting.weight_decay / 2 * (setting.concepts * float(norms @ norms) + setting.blocks * c**2)
    return Prediction(source=source, word_norms=norms, linear_norm=c, loss=loss, objective=loss + decay)


def _log_factor(setting: Setting, gap: Any) -> Any:
    """Return log(1/n_c + (1 - 1/n_c) exp(-gap)), the log factor of one word in the sum over classes."""
    return np.log1p((setting.concepts - 1) * np.exp(-gap)) - math.log(setting.concepts)


def _log_sum(setting: Setting, log_product: Any) -> Any:
    """Return log(1 - K/n_c^L + K exp(log_product))."""
    return np.log(1 - setting.share + setting.sequences * np.exp(log_product))


def _factor_slope(setting: Setting, gap: Any) -> Any:
    """Return the derivative of `_log_factor` in the gap."""
    wrong = (setting.concepts - 1) * np.exp(-gap)
    return -wrong / (1 + wrong)


def _mean_risk(setting: Setting, products: Floats) -> tuple[float, Floats]:
    """Return the mean cross-entropy over sentences and its derivative in each word's (norm x block norm).

    The distribution of the summed log factors of L - 1 words is computed on a grid, as a power of a Fourier transform.
    The last word is then added, since all positions are equivalent.
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


def _minimum(
    setting: Setting, rate: float, penalty: Callable[[float], tuple[float, float]], largest: Callable[[float], float]
) -> tuple[float, float, float]:
    """Minimise risk(rate t) + penalty(t) over t >= 0, at 0 or where the slope rises through zero, to rounding.

    Args:
        penalty: Weight decay penalty at t and its derivative.
        largest: Function of a bound on the penalty that returns a bound on t.

    Returns:
        (t, risk, objective).
    """
    if setting.weight_decay == 0:
        raise ValueError("weight_decay is 0, expected a number > 0: without it the norms grow without limit")

    def objective(t: float) -> float:
        return risk(setting, rate * t) + penalty(t)[0]

    def slope(t: float) -> float:
        length, gap = setting.sentence_length, rate * t
        product = setting.sequences * math.exp(length * _log_factor(setting, gap))
        by_gap = length * product / (1 - setting.share + product) * _factor_slope(setting, gap)
        return float(rate * by_gap + penalty(t)[1])

    most = largest(math.log(setting.sequences + 1))
    points = [0.0, *np.geomspace(most * 1e-9, most, 2000)]
    slopes, candidates = [slope(t) for t in points], [0.0]
    for low, high, before, after in zip(points, points[1:], slopes, slopes[1:], strict=False):
        if before < 0 <= after:
            candidates.append(float(optimize.brentq(slope, low, high, xtol=1e-14 * high, rtol=1e-14)))
    t = min(candidates, key=objective)
    return t, risk(setting, rate * t), objective(t)
