"""A search as the store has it: what was proposed, what came of it, and which proposal is best. Knows nothing of Optuna."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from depthrate.orchestrator.launch.launch_plan import CheckedSweep
from depthrate.storage.attempts.searches import Batch, Report, SearchRecords
from depthrate.storage.files.store import Store
from depthrate.sweeps.studies import Study, make_studies
from depthrate.sweeps.trial import Trial
from depthrate.tasks.interface import ResultStatus

if TYPE_CHECKING:
    from depthrate.storage.query.results import Results


class ProposalState(StrEnum):
    """What came of a proposal."""

    COMPLETE = "complete"
    """All objectives are known."""
    OPEN = "open"
    """Not all of its trials are there yet."""
    PRUNED = "pruned"
    """Left out on the way."""
    UNDEFINED = "undefined"
    """A trial diverged, or an objective is null."""
    FAILED = "failed"
    """Given up by this launch."""


@dataclass(frozen=True)
class Proposal:
    """Values that a study proposed, and the trials that they are, one a seed."""

    number: int
    values: dict[str, Any]
    trials: tuple[Trial, ...]


@dataclass(frozen=True)
class ProposalOutcome:
    """What came of a proposal."""

    state: ProposalState
    values: tuple[float, ...] = ()
    """Of each objective, the mean over the proposal's trials."""
    reports: tuple[Report, ...] = ()
    """Of its trials, where they may be pruned."""


@dataclass
class StudyState:
    """A study, what it proposed, and what came of it."""

    study: Study
    batches: list[list[Proposal]] = field(default_factory=list)
    thresholds: dict[str, dict[str, float]] = field(default_factory=dict)
    """Trial -> step -> the value it must reach there to go on."""
    outcomes: list[ProposalOutcome] = field(default_factory=list)
    """Of each proposal."""
    is_exhausted: bool = False

    @property
    def proposals(self) -> list[Proposal]:
        """All of them, in order."""
        return [proposal for each in self.batches for proposal in each]

    @property
    def is_waiting(self) -> bool:
        """Whether a proposal's trials are not all there."""
        return any(told.state is ProposalState.OPEN for told in self.outcomes)

    @property
    def has_proposed_all(self) -> bool:
        """Whether there is nothing more to propose."""
        return self.is_exhausted or len(self.outcomes) >= self.study.search.trials

    @property
    def is_over(self) -> bool:
        """Whether all is proposed and known."""
        return self.has_proposed_all and not self.is_waiting

    def best(self) -> list[int]:
        """Return the numbers of the best proposals: one, or with several objectives those that no other beats in all."""
        signs = [1 if word == "minimize" else -1 for word in self.study.search.direction]
        costs = {
            number: tuple(sign * value for sign, value in zip(signs, told.values, strict=True))
            for number, told in enumerate(self.outcomes)
            if told.state is ProposalState.COMPLETE
        }
        if len(signs) == 1:
            return [min(costs, key=lambda number: (costs[number], number))] if costs else []
        return [
            number for number, cost in costs.items() if not any(_dominates(other, cost) for other in costs.values())
        ]

    def measured(self) -> list[Trial]:
        """Return the trials that measure at the best proposal; none before the search is over."""
        best = self.best() if self.is_over else []
        return self.study.measured(self.proposals[best[0]].values) if best else []

    def trials_to_fit(self) -> list[Trial]:
        """Return the trials that the study is for: those measured at the best, or the best themselves."""
        if self.study.search.measure is not None:
            return self.measured()
        return [trial for number in self.best() for trial in self.proposals[number].trials]


_STATES_WITHOUT_RESULT = (ProposalState.PRUNED, ProposalState.UNDEFINED, ProposalState.FAILED)


def _dominates(first: tuple[float, ...], second: tuple[float, ...]) -> bool:
    return first != second and all(a <= b for a, b in zip(first, second, strict=True))


class SearchView:
    """The studies of a sweep as the store has them."""

    def __init__(self, checked: CheckedSweep, store: Store):
        """See what the store holds.

        Raises:
            SweepError: the search cannot run.
        """
        self.checked = checked
        self.states = [StudyState(study) for study in make_studies(checked.sweep, checked.task)]
        self.records = SearchRecords(store, checked.sweep.name)
        self.given_up: Collection[str] = ()
        """Trials that this launch has given up."""
        self._results: Results | None = None
        self._files = store
        self._values: dict[str, tuple[float, ...] | None] = {}
        """Committed trial -> its objectives, None where one is not defined."""
        search = checked.sweep.search
        self._objective = search.objective if search else ()
        self.refresh()

    @property
    def is_over(self) -> bool:
        """Whether every study has proposed all, and all that it asks for is committed, pruned or given up."""
        return all(state.is_over for state in self.states) and not self.pending()

    def refresh(self) -> None:
        """See what was proposed and committed since.

        Raises:
            QueryError: the objective is not an expression over `results`.
            StoreError, OSError: the store cannot be read just now.
        """
        self.records.refresh()
        if self._results is None:
            from depthrate.orchestrator.analysis.open_results import (
                results_of,  # here: most sweeps have no search; duckdb takes a while
            )

            self._results = results_of(self._files, self.checked.task)
        else:
            self._results.refresh()
        for state in self.states:
            self._load(state)
        self._read_values([p for state in self.states for p in state.proposals])
        for state in self.states:
            state.outcomes = [self._outcome(proposal) for proposal in state.proposals]

    def trials(self) -> list[Trial]:
        """Return all trials of the search so far, without those that were pruned."""
        found = {trial.trial_id: trial for state in self.states for p in state.proposals for trial in p.trials}
        found |= {trial.trial_id: trial for state in self.states for trial in state.measured()}
        return [trial for trial_id, trial in found.items() if not self._is_pruned(trial_id)]

    def trials_to_fit(self) -> list[Trial]:
        """Return the trials that fits are about."""
        return list({trial.trial_id: trial for state in self.states for trial in state.trials_to_fit()}.values())

    def summary(self) -> str:
        """Say how far the search is."""
        search, proposed = self.states[0].study.search, sum(len(state.outcomes) for state in self.states)
        counts = Counter(told.state for state in self.states for told in state.outcomes)
        parts = [f"{counts[state]} {state}" for state in ProposalState if counts[state]]
        studies = f"{len(self.states)} studies" if len(self.states) > 1 else "one study"
        text = f"search: {studies} of {search.trials} proposals each ({search.sampler}), {proposed} proposed"
        return text + (f": {', '.join(parts)}" if parts else "")

    def table(self) -> tuple[list[str], list[list[Any]]]:
        """Return (columns, rows): of each study what tells it from the others, its best proposals, and how many it made."""
        by = list(self.states[0].study.by)
        searched = list(self.states[0].study.search.params)
        rows = []
        for state in self.states:
            counts = Counter(told.state for told in state.outcomes)
            best: list[int | None] = [*state.best()]
            for number in best or [None]:
                values = {} if number is None else state.proposals[number].values
                objective = [None] * len(self._objective) if number is None else list(state.outcomes[number].values)
                start = [state.study.by[name] for name in by] + [values.get(name) for name in searched]
                rows.append(
                    [*start, *objective, len(state.outcomes), *(counts[each] for each in _STATES_WITHOUT_RESULT)]
                )
        chosen = [f"best {name}" for name in searched]
        return [*by, *chosen, *self._objective, "proposals", *(each.value for each in _STATES_WITHOUT_RESULT)], rows

    def to_json(self) -> list[dict[str, Any]]:
        """Return each study for programs: what it is for, its proposals, and the best of them."""
        return [
            {
                "study_id": state.study.study_id,
                "by": state.study.by,
                "proposals": [
                    {"values": p.values, "state": told.state, "objective": list(told.values)}
                    for p, told in zip(state.proposals, state.outcomes, strict=True)
                ],
                "best": state.best(),
                "is_over": state.is_over,
            }
            for state in self.states
        ]

    def pending(self) -> list[Trial]:
        """Return the trials that are neither committed nor pruned nor given up."""
        committed = self._committed()
        return [t for t in self.trials() if t.trial_id not in committed and t.trial_id not in self.given_up]

    def add(self, state: StudyState, batch: Batch) -> None:
        """Keep what a study proposes, and note it."""
        self.records.write(batch)
        self._load(state)
        self._read_values(state.batches[-1])
        state.outcomes = [self._outcome(proposal) for proposal in state.proposals]

    def _committed(self) -> set[str]:
        assert self._results is not None
        return self._results.snapshot.trial_ids()

    def _load(self, state: StudyState) -> None:
        rounds = self.records.batches(state.study.study_id)
        if sum(len(batch.values) for each in rounds for batch in each) == len(state.proposals) and rounds:
            state.is_exhausted = any(batch.exhausted for each in rounds for batch in each)
            return
        state.batches, number, seen = [], 0, set()
        for each in rounds:
            proposals = []
            for batch in each:
                state.is_exhausted = state.is_exhausted or batch.exhausted
                for values in batch.values:
                    key = json.dumps(values, sort_keys=True)
                    if key in seen:
                        continue  # two launches proposed the same
                    seen.add(key)
                    proposals.append(Proposal(number, dict(values), tuple(state.study.trials(values))))
                    number += 1
                    for trial in proposals[-1].trials:
                        state.thresholds.setdefault(trial.trial_id, dict(batch.thresholds))
            state.batches.append(proposals)

    def _outcome(self, proposal: Proposal) -> ProposalOutcome:
        ids = [trial.trial_id for trial in proposal.trials]
        reports = tuple(self.records.reports[i] for i in ids if i in self.records.reports)
        if any(self._is_pruned(trial_id) for trial_id in ids):
            return ProposalOutcome(ProposalState.PRUNED, (), reports)
        if any(trial_id not in self._values for trial_id in ids):
            missing = [trial_id for trial_id in ids if trial_id not in self._values]
            is_given_up = all(trial_id in self.given_up for trial_id in missing)
            return ProposalOutcome(ProposalState.FAILED if is_given_up else ProposalState.OPEN, (), reports)
        each = [self._values[trial_id] for trial_id in ids]
        known = [values for values in each if values is not None]
        if len(known) < len(each):
            return ProposalOutcome(ProposalState.UNDEFINED, (), reports)
        return ProposalOutcome(
            ProposalState.COMPLETE, tuple(statistics.fmean(column) for column in zip(*known, strict=True)), reports
        )

    def _is_pruned(self, trial_id: str) -> bool:
        report = self.records.reports.get(trial_id)
        return report is not None and report.pruned_at is not None and trial_id not in self._committed()

    def _read_values(self, proposals: Sequence[Proposal]) -> None:
        """Evaluate the objectives of what has been committed since."""
        committed = self._committed()
        ids = {t.trial_id for p in proposals for t in p.trials if t.trial_id in committed} - self._values.keys()
        if not ids:
            return
        from depthrate.storage.query.sql_checks import QueryError  # here: most sweeps have no search

        assert self._results is not None
        columns = ", ".join(f"try_cast(({text}) as double) as value_{i}" for i, text in enumerate(self._objective))
        listed = ", ".join(f"'{trial_id}'" for trial_id in sorted(ids))
        query = f"select trial_id, status, {columns} from results where trial_id in ({listed})"
        try:
            rows = self._results.sql(query).fetchall()
        except QueryError as error:
            asked = ", ".join(repr(text) for text in self._objective)
            raise QueryError(f"search.objective is {asked}, which the trials' results do not give: {error}") from None
        for trial_id, status, *values in rows:
            is_known = status == ResultStatus.OK and all(value is not None and math.isfinite(value) for value in values)
            self._values[trial_id] = tuple(values) if is_known else None


def with_search(checked: CheckedSweep, store: Store) -> tuple[CheckedSweep, SearchView | None]:
    """Return a sweep with the trials that its search has led to so far, and the search; as it is without one."""
    if checked.sweep.search is None:
        return checked, None
    view = SearchView(checked, store)
    return replace(checked, trials=view.trials()), view


def fitted_trials(checked: CheckedSweep, view: SearchView | None) -> list[Trial]:
    """Return the trials that a sweep's fits are about: of a search, those it chose."""
    return checked.trials if view is None else view.trials_to_fit()
