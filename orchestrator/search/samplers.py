"""Optuna's samplers, asked for batches of proposals and told what came of them; rebuilt by asking for earlier ones again."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial

from depthrate.orchestrator.search.proposals import ProposalOutcome, ProposalState
from depthrate.sweeps.search_space import Dimension
from depthrate.sweeps.spec import Search

MAX_TRIES = 50
"""Proposals in a row that were made before or that the task refuses, until a study counts as exhausted."""
_OPTUNA_STATES = {
    ProposalState.COMPLETE: TrialState.COMPLETE,
    ProposalState.PRUNED: TrialState.PRUNED,
    ProposalState.UNDEFINED: TrialState.PRUNED,
    ProposalState.FAILED: TrialState.FAIL,
}
Values = dict[str, Any]
"""Searched parameter -> value."""


class StudySampler:
    """Asks an Optuna sampler for batches; the same batches and outcomes lead to the same proposals."""

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
        """The batch whose outcomes are not told yet."""
        self._num_reported = 0
        self._seen: set[str] = set()

    def ask(self, count: int) -> list[Values]:
        """Return up to `count` proposals that were not made before; fewer when there are no more."""
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

    def replay(self, batches: Sequence[Sequence[Values]], told: Sequence[ProposalOutcome]) -> None:
        """Tell the outcomes of all batches, asking for those again that an earlier process asked for.

        `batches` are the values of each, `told` the outcomes of all proposals in order.
        """
        start = sum(map(len, batches[: self._num_reported]))
        for batch in batches[self._num_reported :]:
            if not self._open_batch:
                self.ask(len(batch))
            outcomes = told[start : start + len(batch)]
            if [_key(values) for _, values in self._open_batch] == [_key(values) for values in batch]:
                for (trial, _), outcome in zip(self._open_batch, outcomes, strict=True):
                    self._report_outcome(trial, outcome)
            else:  # proposed by another version, or when something was failed that is there now
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
        # Optuna knows no pruned trials with several objectives
        self._study.tell(trial, state=TrialState.FAIL if several else _OPTUNA_STATES[outcome.state])


def make_sampler(search: Search, dimensions: Sequence[Dimension]) -> optuna.samplers.BaseSampler:
    """Return the Optuna sampler that a search asks for."""
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
        return optuna.samplers.TPESampler(seed=search.seed, constant_liar=True)


class _GridSampler(optuna.samplers.GridSampler):
    """Optuna's, without the end of the loop of `Study.optimize`, which is not there when one asks and tells."""

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Do nothing: a grid is over when nothing new comes."""


def suggest(trial: optuna.Trial, dimension: Dimension) -> Any:
    """Return Optuna's value for one searched parameter."""
    if dimension.values is not None:
        return trial.suggest_categorical(dimension.name, dimension.values)
    if dimension.is_int:
        step, low, high = int(dimension.step or 1), int(dimension.low), int(dimension.high)
        return trial.suggest_int(dimension.name, low, high, step=step, log=dimension.is_log)
    return trial.suggest_float(dimension.name, dimension.low, dimension.high, step=dimension.step, log=dimension.is_log)


def distribution(dimension: Dimension) -> optuna.distributions.BaseDistribution:
    """Return the range of a searched parameter as Optuna writes it."""
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
    """Return a proposal and its outcome as Optuna keeps them; `outcome` may not be open."""
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
