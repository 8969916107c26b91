"""Propose batches with Optuna's samplers. A sampler's state is rebuilt by replaying earlier batches and their outcomes."""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial

from depthrate.orchestrator.search.search_view import RANDOM_PROPOSALS, ProposalOutcome, ProposalState
from depthrate.sweeps.search_space import Dimension
from depthrate.sweeps.spec import Search

MAX_TRIES = 50
"""Number of consecutive repeated or impossible proposals after which a study counts as exhausted."""
_OPTUNA_STATES = {
    ProposalState.COMPLETE: TrialState.COMPLETE,
    ProposalState.PRUNED: TrialState.PRUNED,
    ProposalState.UNDEFINED: TrialState.PRUNED,
    ProposalState.FAILED: TrialState.FAIL,
}
Values = dict[str, Any]
"""Searched parameter -> value."""


class StudySampler:
    """Proposes batches with an Optuna sampler. The same earlier batches and outcomes lead to the same proposals."""

    def __init__(
        self,
        search: Search,
        dimensions: Sequence[Dimension],
        is_active: Callable[[Dimension, Values], bool] = lambda dimension, values: True,
        is_possible: Callable[[Values], bool] = lambda values: True,
    ):
        self._dimensions, self._is_active, self._is_possible = dimensions, is_active, is_possible
        directions: list[Any] = list(search.direction)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._study = optuna.create_study(
            sampler=make_sampler(search, dimensions), directions=directions, study_name="search"
        )
        self._open_batch: list[tuple[optuna.Trial, Values]] = []
        """Proposals of the batch whose outcomes are not reported to Optuna yet."""
        self._num_reported = 0
        self._seen: set[str] = set()

    def ask(self, count: int) -> list[Values]:
        """Return `count` new proposals, or fewer if the study is exhausted."""
        tries = 0
        while len(self._open_batch) < count and tries < MAX_TRIES:
            trial = self._study.ask()
            values = self._suggest(trial)
            key = _key(values)
            if key in self._seen or not self._is_possible(values):
                tries += 1
                self._study.tell(trial, state=TrialState.FAIL)
                continue
            tries = 0
            self._seen.add(key)
            self._open_batch.append((trial, values))
        return [values for _, values in self._open_batch]

    def replay(self, batches: Sequence[Sequence[Values]], all_outcomes: Sequence[ProposalOutcome]) -> None:
        """Report the outcomes of new batches to Optuna, after repeating the proposals of an earlier process.

        Args:
            batches: Values of the proposals of each batch.
            all_outcomes: Outcomes of all proposals in order.
        """
        start = sum(map(len, batches[: self._num_reported]))
        for batch in batches[self._num_reported :]:
            if not self._open_batch:
                self.ask(len(batch))
            outcomes = all_outcomes[start : start + len(batch)]
            if [_key(values) for _, values in self._open_batch] == [_key(values) for values in batch]:
                for (trial, _), outcome in zip(self._open_batch, outcomes, strict=True):
                    self._report_outcome(trial, outcome)
            else:  # another version proposed the batch, or a trial that had failed is now committed
                for trial, _ in self._open_batch:
                    self._study.tell(trial, state=TrialState.FAIL)
                for values, outcome in zip(batch, outcomes, strict=True):
                    self._study.add_trial(frozen_trial(values, outcome, self._dimensions))
            self._seen.update(map(_key, batch))
            self._open_batch = []
            self._num_reported += 1
            start += len(batch)

    def _suggest(self, trial: optuna.Trial) -> Values:
        values: Values = {}
        for dimension in self._dimensions:
            if self._is_active(dimension, values):
                values[dimension.name] = suggest(trial, dimension)
        return values

    def _report_outcome(self, trial: optuna.Trial, outcome: ProposalOutcome) -> None:
        if outcome.state is ProposalState.COMPLETE:
            self._study.tell(trial, list(outcome.values))
            return
        several = len(self._study.directions) > 1
        if len(outcome.reports) == 1 and not several:
            for step, value in sorted(outcome.reports[0].values.items()):
                trial.report(value, step)
        # Optuna does not support pruned trials with several objectives.
        self._study.tell(trial, state=TrialState.FAIL if several else _OPTUNA_STATES[outcome.state])


def make_sampler(search: Search, dimensions: Sequence[Dimension]) -> optuna.samplers.BaseSampler:
    """Create the Optuna sampler of a search."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if search.sampler == "random":
            return optuna.samplers.RandomSampler(seed=search.seed)
        if search.sampler == "qmc":
            return optuna.samplers.QMCSampler(scramble=True, seed=search.seed, warn_independent_sampling=False)
        if search.sampler == "cmaes":
            return optuna.samplers.CmaEsSampler(seed=search.seed, warn_independent_sampling=False)
        if search.sampler == "grid":
            points = {dimension.name: dimension.points() or [] for dimension in dimensions}
            return _GridSampler(points, seed=search.seed)
        return optuna.samplers.TPESampler(
            n_startup_trials=RANDOM_PROPOSALS["tpe"], seed=search.seed, constant_liar=True
        )


class _GridSampler(optuna.samplers.GridSampler):
    """Optuna's grid sampler for the ask-and-tell interface, where no `Study.optimize` loop exists to be stopped."""

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Do nothing. A grid is exhausted when it makes no new proposals."""


def suggest(trial: optuna.Trial, dimension: Dimension) -> Any:
    """Suggest a value of one searched parameter with Optuna."""
    if dimension.values is not None:
        return trial.suggest_categorical(dimension.name, dimension.values)
    if dimension.is_int:
        step, low, high = int(dimension.step or 1), int(dimension.low), int(dimension.high)
        return trial.suggest_int(dimension.name, low, high, step=step, log=dimension.is_log)
    return trial.suggest_float(dimension.name, dimension.low, dimension.high, step=dimension.step, log=dimension.is_log)


def distribution(dimension: Dimension) -> optuna.distributions.BaseDistribution:
    """Convert the range of a searched parameter to an Optuna distribution."""
    if dimension.values is not None:
        return optuna.distributions.CategoricalDistribution(dimension.values)
    if dimension.is_int:
        step, low, high = int(dimension.step or 1), int(dimension.low), int(dimension.high)
        return optuna.distributions.IntDistribution(low, high, log=dimension.is_log, step=step)
    return optuna.distributions.FloatDistribution(
        dimension.low, dimension.high, log=dimension.is_log, step=dimension.step
    )


def frozen_trial(
    values: Values, outcome: ProposalOutcome, dimensions: Sequence[Dimension], trial_ids: Sequence[str] = ()
) -> FrozenTrial:
    """Convert a proposal and its outcome, which must be final, to an Optuna trial."""
    reports = {step: value for report in outcome.reports for step, value in report.values.items()}
    return create_trial(
        state=_OPTUNA_STATES[outcome.state],
        values=list(outcome.values) or None,
        params=dict(values),
        distributions={dimension.name: distribution(dimension) for dimension in dimensions if dimension.name in values},
        intermediate_values=reports if len(outcome.reports) == 1 else None,
        user_attrs={"trial_ids": list(trial_ids)} if trial_ids else None,
    )


def _key(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)
