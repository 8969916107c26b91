"""Rates in several variables: products of powers or a sum of powers with a floor, their uncertainty, and open questions.

- `product`: y = c prod x_k^-a_k, a plane in logarithms.
- `sum`: y = E + sum c_k x_k^-a_k, with c_k, E >= 0.
- `log_product`: y = c log(x_1)^b prod x_k^-a_k, and `log2_product`, the same with b = 2.
- `proportional`: y = c / prod x_k. With x = 1 / bound, one constant times a whole bound.

Residuals are of log y, and units (seeds, or runs with several checkpoints) are the independent observations. With few units,
intervals are Student's t over whole units (CR2 with Satterthwaite's degrees of freedom, exact for a plane), for a sum by the
profile likelihood scaled with that variance; with many, they are percentiles of a bootstrap over whole units.

Shapes: K variables, N values, P parameters, U units, B resamples, V values left out, R ends of intervals, S starts for them.
Sources: Bell and McCaffrey (2002), Bias reduction in standard errors for linear regression with multi-stage samples; Besiroglu
et al. (2024), Chinchilla Scaling: A replication attempt (bootstrap); Burnham and Anderson (2002), Model Selection and
Multimodel Inference, 2.4; Kent (1982), Robust properties of likelihood ratio tests; Holm (1979), A simple sequentially
rejective multiple test procedure.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import special

from depthrate.tasks.fits import ALL_FORMS, FORMS, LOG_FORMS, MAX_VARIABLES
from depthrate.tasks.fits.bootstrap_and_profile import COVERAGE, t_quantile, t_quantiles
from depthrate.tasks.fits.least_squares import Array
from depthrate.tasks.fits.model import exp
from depthrate.tasks.fits.points import EXACT_FIT_RMS, FitError, as_curve, check_positive
from depthrate.tasks.fits.power_sums import MIN_LOG_COEFFICIENT, PowerSum, best_of_starts

Interval: TypeAlias = tuple[float, float]
ENDS = ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2)
"""Quantiles of resamples at which intervals end."""
MIN_UNITS = 3
"""Minimum number of units for an interval."""
MANY_UNITS = 20
"""Number of units from which intervals are percentiles of the bootstrap. Of fewer, resamples are too few and too narrow."""
MAX_INFLATION = 5.0
"""Variance inflation above which two variables are confounded (Belsley, Kuh and Welsch 1980; a correlation of .89)."""
SMALLEST_EIGENVALUE = 1e-9
"""Eigenvalue of the correlations below which one variable follows from the others."""
MAX_ON_BOUND = 0.025
"""Share of resamples with E at 0 above which E is not identified."""
HIGH_CORRELATION = 0.9
"""Correlation of two estimates above which the values determine only a combination of them."""
CLEAR_AICC = 2.0
MIN_R2 = 0.9
LEVEL = 0.05
MAX_DOUBLINGS, MAX_SECANTS = 14, 12
MIN_REACH = 1e-6
"""Distance from the estimate below which an end of an interval counts as not found. The interval is then open there."""
MAX_HEIGHT = 10.0
"""Height that stands for any greater one while an end is searched: secants to a far greater one stay at the estimate."""
CLOSE = 1e-3
"""Tolerance of the height at which an interval by profile ends, as a share of half its length."""
NO_RISE = 1e-200
"""Rise that stands for none, where units agree exactly."""
MAX_LEFT_OUT = 60
"""Maximum number of values that are left out and predicted, evenly chosen."""
ROWS_PER_BLOCK = 1 << 18
"""Maximum number of values times rows in one block of resamples, for memory."""


@dataclass(frozen=True)
class SurfaceFit:
    """One form fitted to one table."""

    form: str
    names: tuple[str, ...]
    exponents: tuple[float, ...]
    intervals: tuple[Interval | None, ...]
    """95 % intervals of the exponents."""
    coefficients: tuple[float, ...]
    """c_k of a sum, or the one c of a product."""
    coefficient_intervals: tuple[Interval | None, ...]
    log_power: float
    """b, the power of the first variable's logarithm. 0 without."""
    log_power_interval: Interval | None
    floor: float
    """E. 0 for a product."""
    floor_interval: Interval | None
    objective: float
    """Sum of half squares, or of Huber's function, of the residuals of log y."""
    delta: float | None
    """Huber's delta. None: squares."""
    r2: float
    aicc: float
    left_out: float
    """Root mean square of the residuals of log y when each value of each variable is left out and predicted."""
    p_lack_of_fit: float | None
    """p-value of the test against one mean per cell. None without replicates."""
    on_bound: float
    """Share of resamples with E at 0."""
    trade_offs: tuple[tuple[str, str, float], ...] = ()
    """Pairs of exponents whose estimates correlate above HIGH_CORRELATION in size, and the correlation."""
    p_half: tuple[float | None, ...] = ()
    p_one: tuple[float | None, ...] = ()
    """p-values of a_k = 1/2 and a_k = 1."""
    n_points: int = 0
    n_units: int = 0
    method: str = ""
    """Method of the intervals: `t`, `profile` or `bootstrap`. Empty without intervals."""

    @property
    def inadequacy(self) -> str:
        """Reason why the form does not describe the values: R^2 below MIN_R2, or a lack of fit. Empty if it does."""
        if self.r2 < MIN_R2:
            return f"R^2 {self.r2:.2f}"
        p = self.p_lack_of_fit
        return "" if p is None or p >= LEVEL else f"a lack of fit, p {'< 0.001' if p < 0.001 else f'= {p:.3f}'}"

    @property
    def is_adequate(self) -> bool:
        """Whether the form describes the values."""
        return not self.inadequacy

    @property
    def is_floor_identified(self) -> bool:
        """Whether the values decide that E is above 0, or the form has no E."""
        is_above = self.floor > 0 and (self.floor_interval is None or self.floor_interval[0] > 0)
        return self.form != "sum" or (self.on_bound <= MAX_ON_BOUND and is_above)

    def predict(self, x_KN: npt.ArrayLike) -> Array:
        """Return y at values of the variables, [K, ...]."""
        x = np.asarray(x_KN, dtype=np.float64)
        powers = np.stack([x[k] ** -a for k, a in enumerate(self.exponents)])
        if self.form == "sum":
            return np.asarray(np.tensordot(self.coefficients, powers, 1) + self.floor)
        logarithm = np.log(x[0]) ** self.log_power if self.log_power else 1.0
        return np.asarray(self.coefficients[0] * logarithm * powers.prod(0))


@dataclass(frozen=True)
class SurfaceFits:
    """The forms fitted to one table."""

    fits: tuple[SurfaceFit, ...]
    inflation: float
    """Largest variance inflation of the variables' logarithms."""
    confounded: tuple[str, ...] = ()
    """The two variables with the largest correlation of their logarithms."""

    @property
    def preferred(self) -> tuple[SurfaceFit, ...]:
        """Adequate forms that neither AICc nor prediction of values left out separates, the best first."""
        adequate = sorted((fit for fit in self.fits if fit.is_adequate), key=lambda fit: fit.aicc)
        if not adequate:
            return ()
        best, predicts = adequate[0], min(adequate, key=lambda fit: fit.left_out)
        return tuple(fit for fit in adequate if fit.aicc - best.aicc < CLEAR_AICC or fit is predicts)


def fit_surfaces(
    x_KN: npt.ArrayLike,
    y_N: npt.ArrayLike,
    names: Sequence[str],
    *,
    units: Sequence[Hashable] | None = None,
    forms: Sequence[str] = FORMS,
    delta: float | None = None,
    num_resamples: int = 1000,
    seed: int = 0,
) -> SurfaceFits:
    """Fit forms in one to three variables.

    Args:
        x_KN: Positive values of the variables, [K, N].
        y_N: Positive values, [N].
        names: Names of the variables.
        units: Independent unit of each value, such as its seed or run, length N. None: each value.
        forms: Forms to fit, of ALL_FORMS.
        delta: Huber's delta for the residuals of log y. None: squares.
        num_resamples: Number of resamples of whole units.
        seed: Seed of the resamples.

    Raises:
        FitError: A value is not positive and finite, lengths differ, a variable has fewer than two values, or there are fewer
            values than parameters.
    """
    x_KN, y_N = np.asarray(x_KN, dtype=np.float64), as_curve("y", y_N)
    _check(x_KN, y_N, names, units, forms)
    unit_N = np.arange(len(y_N)) if units is None else unit_numbers(units)
    log_x_KN, log_y_N = np.log(x_KN), np.log(y_N)
    cells = np.unique(x_KN, axis=1, return_inverse=True)[1].reshape(-1)
    fits = [_Fit(form, log_x_KN, log_y_N, unit_N, cells, delta, num_resamples, seed) for form in forms]
    return SurfaceFits(
        tuple(fit.result(tuple(names)) for fit in fits),
        _inflation(log_x_KN),
        tuple(names[k] for k in _most_correlated(log_x_KN)),
    )


class _Fit:
    """One form fitted to one table, with scaled variables, and to resamples of its units."""

    def __init__(
        self,
        form: str,
        log_x_KN: Array,
        log_y_N: Array,
        unit_N: np.ndarray,
        cell_N: np.ndarray,
        delta: float | None,
        num_resamples: int,
        seed: int,
    ):
        self._form, self._unit_N, self._cell_N, self._delta = form, unit_N, cell_N, delta
        self._centre_K, self._level = log_x_KN.mean(1), float(log_y_N.mean())
        self._log_x_KN, self._log_y_N = log_x_KN - self._centre_K[:, None], log_y_N - self._level
        self._sum = PowerSum(self._log_x_KN, self._log_y_N, delta)
        self._num_units = int(unit_N.max()) + 1
        # parameters of a plane: a_1 ... a_K, the power b of the logarithm, log c
        k, n = log_x_KN.shape
        has_log = form in LOG_FORMS
        log_log_N = np.log(log_x_KN[0]) if has_log else np.zeros(n)
        self._log_centre = float(log_log_N.mean())
        self._plane_PN = np.concatenate([-self._log_x_KN, [log_log_N - self._log_centre], np.ones((1, n))])
        self._fixed_P = np.full(k + 2, np.nan)
        self._fixed_P[k] = 0.0 if not has_log else LOG_FORMS[form]
        if form == "proportional":
            self._fixed_P[:k] = 1.0
        self._theta_P, self._objective = self._best()
        self._jacobian_PN = self._sum.jacobian(self._theta_P) if form == "sum" else self._plane_PN
        self._residual_N = self._log_y_N - self._log_model(self._theta_P)
        self._is_free_P = self._is_free()
        self._covariance_PP, self._freedom_P = _covariance(
            self._jacobian_PN, self._residual_N, unit_N, self._is_free_P, delta
        )
        self._resampled_BP: Array | None = None
        if num_resamples > 0 and self._num_units >= MANY_UNITS:
            even_U = np.full(self._num_units, 1 / self._num_units)
            drawn_BU = np.random.default_rng(seed).multinomial(self._num_units, even_U, num_resamples)
            self._resampled_BP = self._solve(drawn_BU[:, unit_N].astype(np.float64))

    def result(self, names: tuple[str, ...]) -> SurfaceFit:
        """Return the parameters with their intervals and tests, and the error of predictions of values left out."""
        k, n = len(self._log_x_KN), len(self._log_y_N)
        theta_P, residual_N, resampled_BP = self._theta_P, self._residual_N, self._resampled_BP
        intervals, method = self._intervals()
        error_K = np.sqrt(np.diag(self._covariance_PP)[:k])
        p_half, p_one = (
            tuple(_p_value(theta_P[i] - value, error_K[i], self._freedom_P[i]) for i in range(k))
            for value in (0.5, 1.0)
        )
        is_sum = self._form == "sum"
        on_bound = float((resampled_BP[:, -1] <= 0).mean()) if is_sum and resampled_BP is not None else 0.0
        y_level = math.exp(self._level)
        squares, num_free = self._squares_of_means(residual_N), int(self._is_free_P.sum())
        total = self._squares_of_means(self._log_y_N - self._log_y_N.mean())
        floor_interval = intervals[-1] if is_sum else None
        log_c_CP = self._log_coefficients()
        return SurfaceFit(
            form=self._form,
            names=names,
            exponents=tuple(theta_P[:k].tolist()),
            intervals=tuple(intervals[:k]),
            # of confounded variables, any coefficient may be possible, also an infinite one
            coefficients=tuple(exp(log_c_CP @ theta_P + self._level).tolist()),
            coefficient_intervals=self._coefficient_intervals(log_c_CP),
            log_power=0.0 if is_sum else float(theta_P[k]),
            log_power_interval=None if is_sum else intervals[k],
            floor=float(theta_P[-1]) * y_level if is_sum else 0.0,
            floor_interval=floor_interval and (floor_interval[0] * y_level, floor_interval[1] * y_level),
            objective=self._objective,
            delta=self._delta,
            r2=1 - squares / total if total > 0 else 0.0,
            aicc=self._aicc(num_free + 1),
            left_out=self._left_out(),
            p_lack_of_fit=self._lack_of_fit(num_free),
            on_bound=on_bound,
            trade_offs=self._trade_offs(names),
            p_half=p_half,
            p_one=p_one,
            n_points=n,
            n_units=self._num_units,
            method=method,
        )

    def _trade_offs(self, names: tuple[str, ...]) -> tuple[tuple[str, str, float], ...]:
        """Return the pairs of exponents, and of the logarithm's power, whose estimates correlate.

        Without resamples, the correlations are those of independent values: a few units would correlate by chance.
        """
        labels = [f"the exponent of {name}" for name in names]
        if self._form == "log_product":
            labels.append(f"the power of log {names[0]}")
        is_free_P = self._is_free_P
        covariance_PP = np.full((len(is_free_P), len(is_free_P)), np.nan)
        if self._resampled_BP is not None:
            covariance_PP = np.cov(self._resampled_BP.T)
        else:
            jacobian_QN = self._jacobian_PN[is_free_P]
            covariance_PP[np.ix_(is_free_P, is_free_P)] = np.linalg.pinv(jacobian_QN @ jacobian_QN.T)
        error_P = np.sqrt(np.diag(covariance_PP))
        with np.errstate(invalid="ignore", divide="ignore"):
            correlation_PP = covariance_PP / np.outer(error_P, error_P)
        pairs = itertools.combinations(range(len(labels)), 2)
        sizes = [(labels[one], labels[other], float(correlation_PP[one, other])) for one, other in pairs]
        return tuple(pair for pair in sizes if abs(pair[2]) > HIGH_CORRELATION)

    def _coefficient_intervals(self, log_c_CP: Array) -> tuple[Interval | None, ...]:
        """Return intervals of the coefficients: percentiles, or Student's t of their logarithms."""
        if self._resampled_BP is not None:
            ends_EC = np.quantile(exp(self._resampled_BP @ log_c_CP.T + self._level), ENDS, axis=0)
            return tuple((float(low), float(high)) for low, high in ends_EC.T)
        if self._num_units < MIN_UNITS:
            return (None,) * len(log_c_CP)
        intervals = list[Interval | None]()
        for row_P in log_c_CP:
            is_used_P = (row_P != 0) & self._is_free_P
            if not is_used_P.any():
                intervals.append(None)
                continue
            used_Q = row_P[is_used_P]
            error = math.sqrt(used_Q @ self._covariance_PP[np.ix_(is_used_P, is_used_P)] @ used_Q)
            reach = t_quantile(self._freedom_P[is_used_P].min()) * error
            middle = float(row_P @ self._theta_P) + self._level
            low, high = exp(np.array([middle - reach, middle + reach])).tolist()
            intervals.append((low, high))
        return tuple(intervals)

    def _best(self) -> tuple[Array, float]:
        if self._form == "sum":
            return best_of_starts(self._sum)
        theta_P = self._plane(np.ones((1, len(self._log_y_N))))[0]
        return theta_P, float(self._sum.rho(self._log_y_N - self._log_model(theta_P)).sum())

    def _plane(self, weight_RN: Array) -> Array:
        """Fit log y = log c + b log log x_1 - sum a_k log x_k, [R, K + 2]: least squares, or Huber's by iterated weights."""
        is_free_P = np.isnan(self._fixed_P)
        design_NQ = self._plane_PN[is_free_P].T
        target_N = self._log_y_N - self._fixed_P[~is_free_P] @ self._plane_PN[~is_free_P]
        inner_RN = weight_RN
        theta_RQ = np.zeros((len(weight_RN), design_NQ.shape[1]))
        for _ in range(1 if self._delta is None else 200):
            gram_RQQ = np.einsum("rn,nq,np->rqp", inner_RN, design_NQ, design_NQ)
            right_RQ = np.einsum("rn,nq,n->rq", inner_RN, design_NQ, target_N)
            before, theta_RQ = theta_RQ, np.einsum("rqp,rp->rq", np.linalg.pinv(gram_RQQ), right_RQ)
            if self._delta is None or np.abs(theta_RQ - before).max() < 1e-12:
                break
            size_RN = np.abs(target_N - theta_RQ @ design_NQ.T)
            inner_RN = weight_RN * self._delta / np.maximum(size_RN, self._delta)
        theta_RP = np.tile(self._fixed_P, (len(weight_RN), 1))
        theta_RP[:, is_free_P] = theta_RQ
        return theta_RP

    def _log_model(self, theta_P: Array) -> Array:
        return self._sum.log_model(theta_P) if self._form == "sum" else np.asarray(theta_P @ self._plane_PN)

    def _is_free(self) -> np.ndarray:
        """Return which parameters are neither fixed nor on a bound [P]. A term without a coefficient has no exponent."""
        if self._form != "sum":
            return np.isnan(self._fixed_P)
        theta_P = self._theta_P
        is_free_P, k = np.ones(len(theta_P), dtype=bool), len(self._log_x_KN)
        is_free_P[-1] = theta_P[-1] > 0
        is_free_P[k : 2 * k] = theta_P[k : 2 * k] > MIN_LOG_COEFFICIENT
        is_free_P[:k] = is_free_P[k : 2 * k]
        return is_free_P

    def _log_coefficients(self) -> Array:
        """Return the rows [C, P] that give log c, less the level of y, for the variables as given."""
        k = len(self._log_x_KN)
        if self._form != "sum":
            return np.array([[*self._centre_K, -self._log_centre, 1.0]])
        return np.concatenate([np.diag(self._centre_K), np.eye(k), np.zeros((k, 1))], axis=1)

    def _solve(self, weight_RN: Array) -> Array:
        """Fit with weights, each row from the estimate."""
        if self._form != "sum":
            return self._plane(weight_RN)
        problem, log_y_RN = self._sum, None
        if self._delta is None:  # squares around a cell's values are squares around their mean, and a constant
            order = np.argsort(self._cell_N, kind="stable")
            firsts = np.flatnonzero(np.diff(self._cell_N[order], prepend=-1))
            sums_RC = np.add.reduceat((weight_RN * self._log_y_N)[:, order], firsts, axis=1)
            weight_RN = np.add.reduceat(weight_RN[:, order], firsts, axis=1)
            log_y_RN = sums_RC / np.where(weight_RN > 0, weight_RN, 1.0)
            cells_KN = self._log_x_KN[:, order[firsts]]
            problem = PowerSum(cells_KN, np.zeros(len(firsts)), None)
        rows, size = [], max(1, ROWS_PER_BLOCK // weight_RN.shape[1])
        for start in range(0, len(weight_RN), size):
            here = slice(start, start + size)
            starts_RP = np.repeat(self._theta_P[None], len(weight_RN[here]), 0)
            own_y_RN = None if log_y_RN is None else log_y_RN[here]
            rows.append(problem.minimise(starts_RP, weight_RN[here], 60, log_y_RN=own_y_RN)[0])
        return np.concatenate(rows)

    def _intervals(self) -> tuple[list[Interval | None], str]:
        """Return the intervals of the parameters, and their method."""
        if self._resampled_BP is not None:
            low_P, high_P = np.quantile(self._resampled_BP, ENDS, axis=0)
            return _where(self._is_free_P | (self._form == "sum"), low_P, high_P), "bootstrap"
        if self._num_units < MIN_UNITS:
            return [None] * len(self._theta_P), ""
        if self._form == "sum" and self._delta is None:
            return self._profile(), "profile"
        reach_P = t_quantiles(self._freedom_P) * np.sqrt(np.diag(self._covariance_PP))
        return _where(self._is_free_P, self._theta_P - reach_P, self._theta_P + reach_P), "t"

    def _profile(self) -> list[Interval | None]:
        """Return where the minimum with one parameter fixed rises by t^2 / 2 times its variance over whole units.

        The rise is in units of the variance that independent values would have (Kent 1982). A parameter on its bound has the
        variance of the residuals.
        """
        theta_P, is_free_P, t_P = self._theta_P, self._is_free_P, t_quantiles(self._freedom_P)
        k, (num_parameters, n), free_NQ = len(self._log_x_KN), self._jacobian_PN.shape, self._jacobian_PN[is_free_P].T
        alone_P = np.full(num_parameters, np.nan)
        alone_P[is_free_P] = np.diag(np.linalg.pinv(free_NQ.T @ free_NQ))
        spread = 2 * self._objective / max(n - int(is_free_P.sum()), 1)
        error_P = np.sqrt(np.diag(self._covariance_PP))
        rise_P = np.where(is_free_P, t_P**2 / 2 * error_P**2 / alone_P, t_P**2 / 2 * spread)
        rise_P = np.maximum(rise_P, NO_RISE)
        step_P = np.where(is_free_P & (error_P > 0), t_P * error_P, 0.05)
        chosen = np.array([*range(k), num_parameters - 1])
        which_R, sign_R = np.tile(chosen, 2), np.repeat([-1.0, 1.0], len(chosen))
        rows, which_S = np.arange(len(which_R)), np.tile(which_R, 2)
        weight_SN, fixed_SP = np.ones((len(which_S), n)), np.arange(num_parameters) == which_S[:, None]
        theta_RP = np.repeat(theta_P[None], len(which_R), 0)

        def height(value_R: Array) -> Array:
            """Return the square root of the rise over the wanted one, minus 1: nearly linear in the parameter."""
            # from the fit and from the previous value: either alone can end in a second minimum
            start_SP = np.concatenate([np.repeat(theta_P[None], len(rows), 0), theta_RP])
            start_SP[np.arange(len(which_S)), which_S] = np.tile(value_R, 2)
            found_SP, least_S = self._sum.minimise(start_SP, weight_SN, 60, fixed_SP)
            best_R = np.where(least_S[: len(rows)] <= least_S[len(rows) :], rows, rows + len(rows))
            theta_RP[:] = found_SP[best_R]
            rise_R = np.maximum(least_S[best_R] - self._objective, 0.0)
            return np.minimum(np.sqrt(rise_R / rise_P[which_R]) - 1, MAX_HEIGHT)

        inside_R, low_R = theta_P[which_R].copy(), np.full(len(rows), -1.0)
        outside_R, high_R = inside_R.copy(), np.full(len(rows), -1.0)
        floor_R = np.where(which_R == num_parameters - 1, 0.0, -np.inf)
        for doubling in range(MAX_DOUBLINGS):
            is_open_R = (high_R <= 0) & ~((outside_R <= floor_R) & (sign_R < 0))
            if not is_open_R.any():
                break
            tried_R = np.where(is_open_R, theta_P[which_R] + sign_R * step_P[which_R] * 1.5**doubling, outside_R)
            tried_R = np.maximum(tried_R, floor_R)
            height_R = height(tried_R)
            inside_R, low_R = (
                np.where(is_open_R & (height_R <= 0), new, old) for new, old in ((tried_R, inside_R), (height_R, low_R))
            )
            outside_R = np.where(is_open_R, tried_R, outside_R)
            high_R = np.where(is_open_R, height_R, high_R)
        is_found_R = high_R > 0
        for _ in range(MAX_SECANTS):
            tried_R = inside_R + (outside_R - inside_R) * np.where(
                is_found_R, low_R / np.minimum(low_R - high_R, -1e-12), 0.0
            )
            height_R = height(tried_R)
            is_in_R = height_R <= 0
            inside_R, low_R = np.where(is_in_R, tried_R, inside_R), np.where(is_in_R, height_R, low_R / 2)
            outside_R, high_R = np.where(is_in_R, outside_R, tried_R), np.where(is_in_R, high_R / 2, height_R)
            if np.abs(height_R[is_found_R]).max(initial=0.0) < CLOSE:
                break
        if spread > EXACT_FIT_RMS**2:  # of values with noise, no interval ends at its estimate
            is_found_R &= np.abs(tried_R - theta_P[which_R]) >= MIN_REACH
        ends_R = np.where(is_found_R, tried_R, np.where(np.isfinite(floor_R) & (sign_R < 0), 0.0, sign_R * np.inf))
        low_P, high_P = np.full((2, num_parameters), np.nan)
        low_P[chosen], high_P[chosen] = ends_R[: len(chosen)], ends_R[len(chosen) :]
        return _where(~np.isnan(low_P), low_P, high_P)

    def _squares_of_means(self, residual_N: Array) -> float:
        """Return the squares of the means of cells, weighted by their number of values."""
        count_G = np.bincount(self._cell_N)
        mean_G = np.bincount(self._cell_N, residual_N) / count_G
        return float((count_G * mean_G**2).sum())

    def _within_units(self) -> tuple[Array, int]:
        """Return residuals with each unit at its own level, if all units have all cells, and the number of levels."""
        num_cells, residual_N = int(self._cell_N.max()) + 1, self._residual_N
        if self._num_units == len(residual_N) or len(residual_N) != self._num_units * num_cells:
            return residual_N, 0
        level_U = np.bincount(self._unit_N, residual_N) / np.bincount(self._unit_N)
        return residual_N - level_U[self._unit_N] + residual_N.mean(), self._num_units - 1

    def _aicc(self, num_parameters: int) -> float:
        around_N, levels = self._within_units()
        n, p = len(around_N), num_parameters + levels
        if n - p - 1 <= 0:
            return math.inf
        return n * math.log(max(float((around_N**2).mean()), 1e-300)) + 2 * p + 2 * p * (p + 1) / (n - p - 1)

    def _lack_of_fit(self, num_parameters: int) -> float | None:
        """Test the form against one mean per cell, with the spread of replicates. None without replicates."""
        around_N, levels = self._within_units()
        num_cells, n = int(self._cell_N.max()) + 1, len(around_N)
        missing, free = num_cells - num_parameters, n - num_cells - levels
        if missing <= 0 or free <= 0:
            return None
        between = self._squares_of_means(around_N)
        within = max(float((around_N**2).sum()) - between, 1e-300)
        return float(special.fdtrc(missing, free, (between / missing) / (within / free)))

    def _left_out(self) -> float:
        """Return the root mean square error when each value of each variable is left out and predicted."""
        groups = []
        for of_x_N in self._log_x_KN:
            numbers = np.unique(of_x_N, return_inverse=True)[1].reshape(-1)
            if len(set(numbers)) <= len(of_x_N) // 2:  # a variable with hardly two equal values has no groups
                groups += [numbers == number for number in range(int(numbers.max()) + 1)]
        if not groups:
            return math.nan
        is_out_VN = np.array(groups)[np.linspace(0, len(groups) - 1, min(len(groups), MAX_LEFT_OUT)).astype(int)]
        theta_VP = self._solve(1.0 - is_out_VN)
        errors = [
            (self._log_y_N - self._log_model(theta))[is_out] for theta, is_out in zip(theta_VP, is_out_VN, strict=True)
        ]
        return float(np.sqrt((np.concatenate(errors) ** 2).mean()))


def _where(is_known_P: np.ndarray, low_P: Array, high_P: Array) -> list[Interval | None]:
    """Return the intervals that are known."""
    ends = zip(low_P.tolist(), high_P.tolist(), is_known_P.tolist(), strict=True)
    return [(low, high) if is_known else None for low, high, is_known in ends]


def _covariance(
    jacobian_PN: Array, residual_N: Array, unit_N: np.ndarray, is_free_P: np.ndarray, delta: float | None
) -> tuple[Array, Array]:
    """Return the covariance [P, P] of the parameters over whole units, and each one's degrees of freedom [P].

    CR2 for squares, exact for a plane. For Huber's function, the sandwich of the clipped residuals. Parameters on a bound have
    no covariance.
    """
    num_parameters, n = jacobian_PN.shape
    covariance_PP, freedom_P = np.full((num_parameters, num_parameters), np.nan), np.ones(num_parameters)
    design_NQ = jacobian_PN[is_free_P].T
    is_inside_N = np.ones(n) if delta is None else (np.abs(residual_N) <= delta).astype(np.float64)
    bread_QQ = np.linalg.pinv((design_NQ * is_inside_N[:, None]).T @ design_NQ)
    score_N = residual_N if delta is None else np.clip(residual_N, -delta, delta)
    members = [np.flatnonzero(unit_N == unit) for unit in range(int(unit_N.max()) + 1)]
    if delta is not None or len(members) == n:
        if delta is None:
            leverage_N = np.einsum("nq,qp,np->n", design_NQ, bread_QQ, design_NQ)
            score_N = score_N / np.sqrt(np.maximum(1 - leverage_N, 1e-9))
        reach_UQ = np.stack([score_N[own] @ design_NQ[own] for own in members]) @ bread_QQ
        covariance_QQ = reach_UQ.T @ reach_UQ
        freedom_Q = np.full(len(bread_QQ), max(len(members) - (len(bread_QQ) if len(members) == n else 1), 1.0))
    else:
        covariance_QQ, freedom_Q = _cr2(design_NQ, bread_QQ, residual_N, members)
    covariance_PP[np.ix_(is_free_P, is_free_P)], freedom_P[is_free_P] = covariance_QQ, freedom_Q
    return covariance_PP, freedom_P


def _cr2(design_NQ: Array, bread_QQ: Array, residual_N: Array, members: Sequence[np.ndarray]) -> tuple[Array, Array]:
    """Return CR2's covariance [Q, Q] and Satterthwaite's degrees of freedom [Q], without an N x N matrix.

    A unit's residuals are widened by (I - X B X^T)^(-1/2), which differs from I only in the span of its rows X.
    """
    sums_UQ, own_UQ, influence_UQ, reach_UQP = [], [], [], []
    for own in members:
        basis_MQ, triangle_QQ = np.linalg.qr(design_NQ[own])
        leverage_Q, turn_QQ = np.linalg.eigh(triangle_QQ @ bread_QQ @ triangle_QQ.T)
        # a direction that the unit alone determines has no residual
        widen_Q = np.where(leverage_Q < 1 - 1e-9, np.maximum(1 - leverage_Q, 1e-9) ** -0.5, 0.0) - 1
        basis_MQ = basis_MQ @ turn_QQ
        scores_QM = bread_QQ @ design_NQ[own].T
        influence_QM = scores_QM + (scores_QM @ basis_MQ * widen_Q) @ basis_MQ.T
        sums_UQ.append(influence_QM @ residual_N[own])
        own_UQ.append((influence_QM**2).sum(1))
        influence_UQ.append(influence_QM @ design_NQ[own])
        reach_UQP.append(influence_UQ[-1] @ bread_QQ)
    covariance_QQ = np.einsum("uq,up->qp", sums_UQ, sums_UQ)
    # residuals of independent values: each unit's influence, less its fit to all values
    crossed_QUV = np.einsum("uqp,vqp->quv", influence_UQ, reach_UQP)
    fitted_QUV = np.einsum("uqp,pr,vqr->quv", reach_UQP, design_NQ.T @ design_NQ, reach_UQP)
    gram_QUV = fitted_QUV - crossed_QUV - np.swapaxes(crossed_QUV, 1, 2)
    at = np.arange(len(members))
    gram_QUV[:, at, at] += np.array(own_UQ).T
    with np.errstate(invalid="ignore"):
        freedom_Q = np.trace(gram_QUV, axis1=1, axis2=2) ** 2 / (gram_QUV**2).sum((1, 2))
    return covariance_QQ, np.clip(np.nan_to_num(freedom_Q, nan=1.0), 1.0, len(members) - 1.0)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for the number of tests, by Holm's procedure."""
    order, corrected, largest = np.argsort(p_values), [0.0] * len(p_values), 0.0
    for rank, number in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[number]))
        corrected[number] = largest
    return corrected


def _p_value(distance: float, error: float, freedom: float) -> float | None:
    if not (math.isfinite(error) and error > 0):
        return None
    return float(2 * special.stdtr(freedom, -abs(distance) / error))


def inflation_of(rows: Sequence[Sequence[float]]) -> float:
    """Return the largest variance inflation of the variables of a design, of rows of positive values.

    It is infinite if one is a power of others, or has one value.
    """
    log_x_KN = np.log(np.array(rows, dtype=np.float64)).T
    if not log_x_KN.size or (np.ptp(log_x_KN, axis=1) == 0).any():
        return math.inf
    return _inflation(log_x_KN)


def _inflation(log_x_KN: Array) -> float:
    """Return the largest variance inflation of a variable: 1 / (1 - R^2) of its regression on the others."""
    if len(log_x_KN) == 1:
        return 1.0
    correlation_KK = np.corrcoef(log_x_KN)
    if np.linalg.eigvalsh(correlation_KK)[0] < SMALLEST_EIGENVALUE:
        return math.inf
    return float(np.diag(np.linalg.inv(correlation_KK)).max())


def _most_correlated(log_x_KN: Array) -> list[int]:
    if len(log_x_KN) == 1:
        return []
    size_KK = np.abs(np.corrcoef(log_x_KN)) - np.eye(len(log_x_KN))
    return sorted(int(k) for k in np.unravel_index(int(np.argmax(size_KK)), size_KK.shape))


def unit_numbers(units: Sequence[Hashable]) -> np.ndarray:
    """Number units in order of first occurrence, and return each value's number."""
    numbers = {unit: number for number, unit in enumerate(dict.fromkeys(units))}
    return np.array([numbers[unit] for unit in units], dtype=np.int64)


def _check(
    x_KN: Array, y_N: Array, names: Sequence[str], units: Sequence[Hashable] | None, forms: Sequence[str]
) -> None:
    if x_KN.ndim != 2 or x_KN.shape != (len(names), len(y_N)) or not 1 <= len(names) <= MAX_VARIABLES:
        raise FitError(
            f"x has shape {x_KN.shape}, expected [{len(names)}, {len(y_N)}]: one row for each of at most {MAX_VARIABLES} names."
        )
    if units is not None and len(units) != len(y_N):
        raise FitError(f"units has {len(units)} entries, expected {len(y_N)}, one per value, or None.")
    if unknown := set(forms) - set(ALL_FORMS):
        raise FitError(f"form {min(unknown)!r} is unknown, expected {', '.join(ALL_FORMS)}.")
    for name, of_x_N in zip(names, x_KN, strict=True):
        check_positive(name, of_x_N)
        if len(np.unique(of_x_N)) < 2:
            raise FitError(f"{name} has one value, expected at least 2 distinct values.")
    check_positive("y", y_N)
    if set(forms) & set(LOG_FORMS) and not (x_KN[0] > 1).all():
        raise FitError(
            f"{names[0]} has values up to 1, whose logarithm has no power: {', '.join(LOG_FORMS)} need values above 1."
        )
    num_parameters = 2 * len(names) + 1 if "sum" in forms else len(names) + 2
    if len(y_N) <= num_parameters:
        raise FitError(
            f"{len(y_N)} values, expected more than the {num_parameters} parameters of {' or '.join(forms)}."
        )
