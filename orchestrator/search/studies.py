"""Searches with Optuna: proposals in batches, each a function of the sweep file and of the results before it.

A study proposes a batch, waits for all of it, and proposes the next. So its proposals depend on nothing but the search
as written and what is committed: not on the machine, the executor, or when it was killed. The sampler's own state is kept
nowhere; it is rebuilt by asking for the earlier batches again. What stands in the store counts, also where another
version of Optuna would propose something else.
"""

from __future__ import annotations

import json
import logging
import statistics
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial

from depthrate.orchestrator.search.proposals import SearchView, StudyState, Told
from depthrate.storage.searches import Batch
from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.packing import Pack, pack_trials
from depthrate.sweeps.search import Search
from depthrate.sweeps.search_space import Dimension
from depthrate.sweeps.studies import Study

MAX_TRIES = 50
"""Proposals in a row that were made before or that the task refuses, until a study counts as exhausted."""
_STATES = {
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "undefined": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}
Values = dict[str, Any]


class SearchFeed:
    """Gives a launch the packs of a search's next batches as results come in."""

    def __init__(self, view: SearchView, *, device: str, workers: int, memory_bytes: float | None = None):
        self.view = view
        self._device, self._workers, self._memory_bytes = device, workers, memory_bytes
        self._samplers: dict[str, StudySampler] = {}
        self._handed_out: set[str] = set()
        self.propose()

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.view.is_over

    def next_packs(self, given_up: Collection[str]) -> list[Pack]:
        """See what has been committed, propose what can be proposed now, and return packs of what is new to the launch.

        Raises:
            StoreError, OSError: the store cannot be read or written just now.
            QueryError: the objective cannot be computed.
        """
        self.view.given_up = given_up
        self.view.refresh()
        self.propose()
        fresh = [trial for trial in self.view.pending() if trial.trial_id not in self._handed_out]
        self.hand_out(trial.trial_id for trial in fresh)
        running = sum(not state.is_over for state in self.view.states)
        # other studies keep the other workers busy: a batch is cut only as far as there are workers to spare
        workers = max(1, self._workers // max(1, running))
        return pack_trials(
            fresh, self.view.checked.task, device=self._device, workers=workers, memory_bytes=self._memory_bytes
        )

    def hand_out(self, trial_ids: Any) -> None:
        """Note trials that the launch has."""
        self._handed_out.update(trial_ids)

    def pruning(self, trial_id: str) -> Mapping[str, Any] | None:
        """Return when a trial leaves its pack, for `PackJob.pruning`."""
        sweep = self.view.checked.sweep
        prune = None if sweep.search is None else sweep.search.prune
        if sweep.search is None or prune is None:
            return None
        for state in self.view.states:
            if trial_id in state.thresholds:
                return {
                    "rule": prune.rule,
                    "study": state.study.study_id,
                    "metric": prune.metric,
                    "maximize": sweep.search.direction[0] == "maximize",
                    "thresholds": state.thresholds[trial_id],
                    "from_step": prune.from_step,
                    "factor": prune.factor,
                }
        return None

    def propose(self) -> None:
        """Propose the next batch of every study whose last one is known, until each waits or has proposed all."""
        for state in self.view.states:
            while not state.has_proposed_all and not state.is_waiting:
                self._propose_batch(state)

    def _propose_batch(self, state: StudyState) -> None:
        study = state.study
        if study.study_id not in self._samplers:
            self._samplers[study.study_id] = StudySampler(
                study.search,
                study.dimensions,
                is_active=lambda dimension, values: dimension.is_active({**study.given, **values}, study.task.schema),
                is_possible=lambda values: _is_possible(study, values),
            )
        sampler = self._samplers[study.study_id]
        sampler.catch_up([[p.values for p in each] for each in state.rounds], state.told)
        count = min(study.search.batch, study.search.trials - len(state.told))
        values = sampler.ask(count)
        batch = Batch(
            study_id=study.study_id,
            number=len(state.rounds),
            values=tuple(values),
            trial_ids=tuple(tuple(trial.trial_id for trial in study.trials(each)) for each in values),
            thresholds=thresholds(study.search, state.told),
            exhausted=len(values) < count,
        )
        self.view.add(state, batch)


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
        self._asked: list[tuple[optuna.Trial, Values]] = []
        """The batch whose outcomes are not told yet."""
        self._batches_told = 0
        self._seen: set[str] = set()

    def ask(self, count: int) -> list[Values]:
        """Return up to `count` proposals that were not made before; fewer when there are no more."""
        tries = 0
        while len(self._asked) < count and tries < MAX_TRIES:
            trial = self._study.ask()
            values = self._suggest(trial)
            key = _key(values)
            if key in self._seen or not self._is_possible(values):
                tries += 1
                self._study.tell(trial, state=TrialState.FAIL)
                continue
            tries = 0
            self._seen.add(key)
            self._asked.append((trial, values))
        return [values for _, values in self._asked]

    def catch_up(self, batches: Sequence[Sequence[Values]], told: Sequence[Told]) -> None:
        """Tell the outcomes of all batches, asking for those again that an earlier process asked for.

        `batches` are the values of each, `told` the outcomes of all proposals in order.
        """
        start = sum(map(len, batches[: self._batches_told]))
        for batch in batches[self._batches_told :]:
            if not self._asked:
                self.ask(len(batch))
            outcomes = told[start : start + len(batch)]
            if [_key(values) for _, values in self._asked] == [_key(values) for values in batch]:
                for (trial, _), outcome in zip(self._asked, outcomes, strict=True):
                    self._tell(trial, outcome)
            else:  # proposed by another version, or when something was failed that is there now
                for trial, _ in self._asked:
                    self._study.tell(trial, state=TrialState.FAIL)
                for values, outcome in zip(batch, outcomes, strict=True):
                    self._study.add_trial(frozen_trial(values, outcome, self._dimensions))
            self._seen.update(map(_key, batch))
            self._asked = []
            self._batches_told += 1
            start += len(batch)

    def _suggest(self, trial: optuna.Trial) -> Values:
        values: Values = {}
        for dimension in self._dimensions:
            if self._is_active(dimension, values):
                values[dimension.name] = suggest(trial, dimension)
        return values

    def _tell(self, trial: optuna.Trial, outcome: Told) -> None:
        if outcome.state == "complete":
            self._study.tell(trial, list(outcome.values))
            return
        several = len(self._study.directions) > 1
        if len(outcome.reports) == 1 and not several:
            for step, value in sorted(outcome.reports[0].values.items()):
                trial.report(value, step)
        # Optuna knows no pruned trials with several objectives
        self._study.tell(trial, state=TrialState.FAIL if several else _STATES[outcome.state])


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
    values: Values, outcome: Told, dimensions: Sequence[Dimension], trial_ids: Sequence[str] = ()
) -> FrozenTrial:
    """Return a proposal and its outcome as Optuna keeps them; `outcome` may not be open."""
    reports = {step: value for report in outcome.reports for step, value in report.values.items()}
    return create_trial(
        state=_STATES[outcome.state],
        values=list(outcome.values) or None,
        params=dict(values),
        distributions={each.name: distribution(each) for each in dimensions if each.name in values},
        intermediate_values=reports if len(outcome.reports) == 1 else None,
        user_attrs={"trial_ids": list(trial_ids)} if trial_ids else None,
    )


def thresholds(search: Search, told: Sequence[Told]) -> dict[str, float]:
    """Return step -> the value that trials of the next batch must reach there to go on, from what is known so far.

    median: the median of the completed trials at that step (Golovin et al. 2017, Google Vizier, section 3.5.2).
    halving: the worst of the best 1/factor of all trials that came to a rung, the rungs being from_step x factor^k
    (asynchronous successive halving, Li et al. 2020, algorithm 2, with whole batches in the place of single trials).
    asha: none.
    """
    prune = search.prune
    if prune is None or prune.rule == "asha":  # which compares them while they run
        return {}
    maximize = search.direction[0] == "maximize"
    known = [each for each in told if prune.rule == "halving" or each.state == "complete"]
    by_step: dict[int, list[float]] = {}
    for outcome in known:
        for report in outcome.reports:
            for step, value in report.values.items():
                by_step.setdefault(step, []).append(value)
    steps = [step for step in sorted(by_step) if step >= prune.from_step]
    if prune.rule == "halving":
        steps = _rungs(steps, prune.from_step, prune.factor)
    chosen = {}
    for step in steps:
        values = sorted(by_step[step], reverse=maximize)
        if len(values) >= prune.startup:
            place = max(1, len(values) // prune.factor) - 1
            chosen[str(step)] = statistics.median(values) if prune.rule == "median" else values[place]
    return chosen


def _rungs(steps: Sequence[int], first: int, factor: int) -> list[int]:
    """Return the reported steps that come next at or after first, first x factor, first x factor^2, ..."""
    rungs, rung = [], first
    while later := [step for step in steps if step >= rung]:
        rungs.append(later[0])
        while rung <= later[0]:
            rung *= factor
    return rungs


def export_studies(view: SearchView, url: str) -> list[str]:
    """Write the studies with all that is known of them to an Optuna storage, and return their names.

    Raises:
        SweepError: the storage holds such a study already, or cannot be written.
    """
    names = []
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    for state in view.states:
        study = state.study
        name = f"{view.checked.sweep.name} {study.label()}".strip()
        try:
            directions: list[Any] = list(study.search.direction)
            exported = optuna.create_study(study_name=name, storage=url, directions=directions)
        except optuna.exceptions.DuplicatedStudyError:
            raise SweepError(f"study {name!r} is in {url} already; give a storage that does not have it") from None
        except Exception as error:  # whatever a database driver raises
            raise SweepError(
                f"{url} cannot be written ({type(error).__name__}: {error}); as in sqlite:///search.db"
            ) from error
        exported.set_user_attr("sweep", view.checked.sweep.name)
        exported.set_user_attr("study_id", study.study_id)
        exported.set_user_attr("objective", list(study.search.objective))
        for proposal, told in zip(state.proposals, state.told, strict=True):
            if told.state != "open":
                ids = [trial.trial_id for trial in proposal.trials]
                exported.add_trial(frozen_trial(proposal.values, told, study.dimensions, ids))
        names.append(name)
    return names


def _is_possible(study: Study, values: Values) -> bool:
    """Whether the task accepts a proposal, and the sweep does not exclude it."""
    try:
        return bool(study.trials(values))
    except ValueError as error:
        logging.getLogger("depthrate").info("a proposal that cannot run is passed over: %s", error)
        return False


def _key(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)
