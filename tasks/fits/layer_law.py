"""The law of equi-separation: a metric falls by the same factor rho in each layer, log D_l = log D_0 + l log rho.

Source: He and Su (2023), A law of data separation in deep learning, arXiv 2210.17020. Their D_l = tr(SS_W SS_B^+) is the
number of classes times nc1_pinv, which changes D_0 alone.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from depthrate.tasks.fits.fit import Fit
from depthrate.tasks.fits.models import POWER
from depthrate.tasks.fits.points import FitError, as_curve, gather, places_of
from depthrate.tasks.fits.rates import fit_rates

MIN_LAYERS = 3
"""Minimum number of layers. A line through two leaves no residual."""


@dataclass(frozen=True)
class LayerFit:
    """The law over the layers of trials of one depth."""

    fit: Fit
    """Exponential model: its exponent is -log rho, its prefactor D_0."""
    means: Mapping[int, float]
    """Layer -> geometric mean of D."""
    decays: Mapping[Hashable, float]
    """Unit -> its own -log rho."""

    @property
    def rho(self) -> float:
        """Factor per layer."""
        return math.exp(-self.fit.exponent)

    @property
    def rho_interval(self) -> tuple[float, float] | None:
        """95 % interval of rho over whole units."""
        low, high = self.fit.ci_low, self.fit.ci_high
        return None if low is None or high is None else (math.exp(-high), math.exp(-low))

    @property
    def r(self) -> float | None:
        """Pearson correlation of the layer and the mean of log D. None if D is constant."""
        return None if self.fit.r2 is None else -math.copysign(math.sqrt(max(self.fit.r2, 0.0)), self.fit.exponent)


def fit_layers(layer_N: npt.ArrayLike, value_N: npt.ArrayLike, units: Sequence[Hashable]) -> LayerFit:
    """Fit the law to the layers of one or several trials of the same depth.

    Args:
        layer_N: Layer of each value, at least 1, shape [N].
        value_N: Positive values, shape [N].
        units: Unit of resampling of each value: a seed, or a trial.

    Returns:
        The line with its interval over whole units, and the test against one mean per layer.

    Raises:
        FitError: There are fewer than three layers, or see `fit_many`.
    """
    layer_N, value_N = as_curve("layer", layer_N), as_curve("value", value_N)
    if (num_layers := len(np.unique(layer_N))) < MIN_LAYERS:
        raise FitError(f"{num_layers} layer{'' if num_layers == 1 else 's'}, at least {MIN_LAYERS} needed")
    (fit,) = fit_rates(layer_N, value_N, models=("exponential",), seeds=units)
    points = gather(layer_N, value_N[None], units)
    means = dict(zip(points.x_G.astype(int).tolist(), np.exp(points.mean_GC[:, 0]).tolist(), strict=True))
    decays = {
        unit: fit_rates(layer_N[members], value_N[members], models=("exponential",), num_resamples=1)[0].exponent
        for unit, members in places_of(units).items()
    }
    return LayerFit(fit, means, decays)


def decay_over_depth(fits: Mapping[int, LayerFit]) -> Fit | None:
    """Fit -log rho = c L^-a over the depths L, with units that are equal at several depths as replicates.

    Args:
        fits: Depth -> fit of its trials.

    Returns:
        The power law, or None if there are fewer than three depths, or a unit's rho is 1 or more.
    """
    points = [(depth, decay, unit) for depth, found in fits.items() for unit, decay in found.decays.items()]
    if len(fits) < MIN_LAYERS or min(decay for _, decay, _ in points) <= 0:
        return None
    depths, decays, units = zip(*points, strict=True)
    are_shared = len(set(units)) < len(units)
    return fit_rates(depths, decays, models=(POWER.name,), seeds=units if are_shared else None)[0]
