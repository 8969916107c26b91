"""The proposals of a search, their outcomes and the best proposals, read from the store. Independent of Optuna."""

import json
import math
import statistics
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from depthrate.orchestrator.launch.launch_plan import CheckedSweep
from depthrate.storage.attempts.searches import Batch, Report, SearchRecords
from depthrate.storage.catalog.specs import read_specs, write_list
from depthrate.storage.files.store import Store
from depthrate.sweeps.studies import Study, make_studies
from depthrate.sweeps.trial import Trial, Trials
from depthrate.tasks.interface import ResultStatus

RANDOM_PROPOSALS = {"tpe": 10, "cmaes": 1}
"""Sampler -> completed proposals before which it proposes batches at random."""


class ProposalState(StrEnum):
    """State of a proposal."""

    COMPLETE = "complete"
    """All objectives are known."""
    OPEN = "open"
    """Some trials are not committed yet."""
    PRUNED = "pruned"
    """A trial was pruned."""
    UNDEFINED = "undefined"
    """A trial diverged, or an objective is null."""
    FAILED = "failed"
    """This launch gave up the remaining trials."""


@dataclass(frozen=True)
class Proposal:
    """Values that a study proposed, and their trials, one per seed."""

    number: int
    values: dict[str, Any]
    trials: tuple[Trial, ...]


@dataclass(frozen=True)
class ProposalOutcome:
    """State, objectives and reports of a proposal."""

    state: ProposalState
    values: tuple[float, ...] = ()
    """Mean of each objective over the proposal's trials."""
    reports: tuple[Report, ...] = ()
    """Reports of its trials, if they may be pruned."""


@dataclass
class StudyState:
    """A study with its proposals and their outcomes."""

    study: Study
    batches: list[list[Proposal]] = field(default_factory=list)
    thresholds: dict[str, dict[str, float]] = field(default_factory=dict)
    """Trial -> step -> value that it must reach to continue."""
    outcomes: list[ProposalOutcome] = field(default_factory=list)
    """Outcome of each proposal."""
    is_exhausted: bool = False
    """True if the sampler has no new proposals."""

    @property
    def proposals(self) -> list[Proposal]:
        """All proposals in order."""
        return [proposal for batch in self.batches for proposal in batch]

    @property
    def is_waiting(self) -> bool:
        """True if a proposal has uncommitted trials."""
        return any(outcome.state is ProposalState.OPEN for outcome in self.outcomes)

    @property
    def has_proposed_all(self) -> bool:
        """True if the study makes no more proposals."""
        return self.is_exhausted or len(self.outcomes) >= self.study.search.trials

    @property
    def is_over(self) -> bool:
        """True if all proposals are made and no outcome is open."""
        return self.has_proposed_all and not self.is_waiting

    def best(self) -> list[int]:
        """Return the numbers of the best proposals: one proposal, or the Pareto front for several objectives."""
        signs = [1 if word == "minimize" else -1 for word in self.study.search.direction]
        costs = {
            number: tuple(sign * value for sign, value in zip(signs, outcome.values, strict=True))
            for number, outcome in enumerate(self.outcomes)
            if outcome.state is ProposalState.COMPLETE
        }
        if len(signs) == 1:
            return [min(costs, key=lambda number: (costs[number], number))] if costs else []
        return [
            number for number, cost in costs.items() if not any(_dominates(other, cost) for other in costs.values())
        ]

    def measured(self) -> list[Trial]:
        """Return the final trials at the best proposal, or an empty list before the study is over."""
        best = self.best() if self.is_over else []
        return self.study.measured(self.proposals[best[0]].values) if best else []

    def trials_to_fit(self) -> list[Trial]:
        """Return the final trials at the best proposal, or the best proposals' trials if the search has no final runs."""
        if self.study.search.measure is not None:
            return self.measured()
        return [trial for number in self.best() for trial in self.proposals[number].trials]


_STATES_WITHOUT_RESULT = (ProposalState.PRUNED, ProposalState.UNDEFINED, ProposalState.FAILED)


def _dominates(first: tuple[float, ...], second: tuple[float, ...]) -> bool:
    return first != second and all(a <= b for a, b in zip(first, second, strict=True))


class SearchView:
    """The studies of a sweep, read from the store."""

    def __init__(self, checked: CheckedSweep, store: Store):
        """Read the studies.

        Raises:
            SweepError: If the search cannot run.
        """
        self.checked = checked
        self.states = [StudyState(study) for study in make_studies(checked.sweep, checked.task)]
        self.records = SearchRecords(store, checked.sweep.name)
        self.given_up: Collection[str] = ()
        """Trials that this launch has given up."""
        self._values: dict[str, tuple[float, ...] | None] = {}
        """Committed trial -> its objectives, or None if an objective is undefined."""
        search = checked.sweep.search
        self._objective = search.objective if search else ()
        self.records.refresh()
        # imported here: duckdb is slow to import, and most sweeps have no search
        from depthrate.orchestrator.analysis.open_results import results_of

        self._results = results_of(store, checked.task)
        self._update(self.states)

    @property
    def is_over(self) -> bool:
        """True if every study has made its proposals, and all their trials are committed, pruned or given up."""
        return all(state.is_over for state in self.states) and not self.pending()

    def refresh(self) -> None:
        """Read new proposals and commits.

        Raises:
            QueryError: If the objective is not an expression over `results`.
            StoreError, OSError: If the store cannot be read.
        """
        self.records.refresh()
        self._results.refresh()
        self._update(self.states)

    def _update(self, states: Sequence[StudyState]) -> None:
        for state in states:
            self._load(state)
        self._read_values([proposal for state in states for proposal in state.proposals])
        for state in states:
            state.outcomes = [self._outcome(proposal) for proposal in state.proposals]

    def trials(self) -> Trials:
        """Return all trials of the search so far, except pruned ones."""
        proposed = [trial for state in self.states for p in state.proposals for trial in p.trials]
        final = [trial for state in self.states for trial in state.measured()]
        return Trials(trial for trial in (*proposed, *final) if not self._is_pruned(trial.trial_id))

    def list_trials(self) -> None:
        """Write the launch's list of trials again, with the final runs, since no batch lists them."""
        sweep = self.checked.sweep
        for spec in read_specs(self.records.store, sweep.name):
            if spec.spec_hash == sweep.spec_hash():
                write_list(self.records.store, spec, self.trials().ids)

    def trials_to_fit(self) -> list[Trial]:
        """Return the trials that fits use."""
        return list({trial.trial_id: trial for state in self.states for trial in state.trials_to_fit()}.values())

    def summary(self) -> str:
        """Return the progress of the search in one line."""
        search, proposed = self.states[0].study.search, sum(len(state.outcomes) for state in self.states)
        counts = Counter(outcome.state for state in self.states for outcome in state.outcomes)
        parts = [f"{counts[state]} {state}" for state in ProposalState if counts[state]]
        is_single = len(self.states) == 1
        studies = "1 study of" if is_single else f"{len(self.states)} studies of"
        proposals = "proposals" if is_single else "proposals each"
        batches = math.ceil(RANDOM_PROPOSALS.get(search.sampler, 0) / search.batch)
        num_random = search.trials if search.sampler == "random" else min(search.trials, batches * search.batch)
        sampler = f"{search.sampler}, the first {num_random} random" if num_random else search.sampler
        text = f"search: {studies} {search.trials} {proposals} ({sampler}), {proposed} proposed"
        return text + (f": {', '.join(parts)}" if parts else "")

    def table(self) -> tuple[list[str], list[list[Any]]]:
        """Return (columns, rows): each study's grid point, best proposals, and number of proposals by state."""
        by = list(self.states[0].study.by)
        searched = list(self.states[0].study.search.params)
        rows = []
        for state in self.states:
            counts = Counter(outcome.state for outcome in state.outcomes)
            best: list[int | None] = [*state.best()]
            for number in best or [None]:
                values = {} if number is None else state.proposals[number].values
                objective = [None] * len(self._objective) if number is None else list(state.outcomes[number].values)
                start = [state.study.by[name] for name in by] + [values.get(name) for name in searched]
                rows.append([*start, *objective, len(state.outcomes), *(counts[s] for s in _STATES_WITHOUT_RESULT)])
        best_values = [f"best {name}" for name in searched]
        return [*by, *best_values, *self._objective, "proposals", *(s.value for s in _STATES_WITHOUT_RESULT)], rows

    def to_json(self) -> list[dict[str, Any]]:
        """Return each study as JSON values: its grid point, its proposals, and its best proposals."""
        return [
            {
                "study_id": state.study.study_id,
                "by": state.study.by,
                "proposals": [
                    {"values": p.values, "state": outcome.state, "objective": list(outcome.values)}
                    for p, outcome in zip(state.proposals, state.outcomes, strict=True)
                ],
                "best": state.best(),
                "is_over": state.is_over,
            }
            for state in self.states
        ]

    def pending(self) -> list[Trial]:
        """Return the trials that are not committed, pruned or given up."""
        committed = self._results.snapshot.trial_ids()
        return [t for t in self.trials() if t.trial_id not in committed and t.trial_id not in self.given_up]

    def add(self, state: StudyState, batch: Batch) -> None:
        """Store a study's batch of proposals and update the study."""
        self.records.write(batch)
        self._update([state])

    def _load(self, state: StudyState) -> None:
        rounds = self.records.batches(state.study.study_id)  # peer launches may store several batches for one round
        if sum(len(batch.values) for batches in rounds for batch in batches) == len(state.proposals) and rounds:
            state.is_exhausted = any(batch.exhausted for batches in rounds for batch in batches)
            return
        state.batches, number, seen = [], 0, set()
        for batches in rounds:
            proposals = []
            for batch in batches:
                state.is_exhausted = state.is_exhausted or batch.exhausted
                for values in batch.values:
                    key = json.dumps(values, sort_keys=True)
                    if key in seen:
                        continue  # two launches made the same proposal
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
        if missing := [trial_id for trial_id in ids if trial_id not in self._values]:
            is_given_up = all(trial_id in self.given_up for trial_id in missing)
            return ProposalOutcome(ProposalState.FAILED if is_given_up else ProposalState.OPEN, (), reports)
        values = [self._values[trial_id] for trial_id in ids]
        defined = [objectives for objectives in values if objectives is not None]
        if len(defined) < len(values):
            return ProposalOutcome(ProposalState.UNDEFINED, (), reports)
        means = tuple(statistics.fmean(column) for column in zip(*defined, strict=True))
        return ProposalOutcome(ProposalState.COMPLETE, means, reports)

    def _is_pruned(self, trial_id: str) -> bool:
        report = self.records.reports.get(trial_id)
        return (
            report is not None and report.pruned_at is not None and trial_id not in self._results.snapshot.trial_ids()
        )

    def _read_values(self, proposals: Sequence[Proposal]) -> None:
        """Evaluate the objectives of newly committed trials."""
        committed = self._results.snapshot.trial_ids()
        ids = {t.trial_id for p in proposals for t in p.trials if t.trial_id in committed} - self._values.keys()
        if not ids:
            return
        from depthrate.storage.query.sql_checks import QueryError  # imported here, as most sweeps have no search

        columns = ", ".join(f"try_cast(({text}) as double) as value_{i}" for i, text in enumerate(self._objective))
        listed = ", ".join(f"'{trial_id}'" for trial_id in sorted(ids))
        query = f"select trial_id, status, {columns} from results where trial_id in ({listed})"
        try:
            rows = self._results.sql(query).fetchall()
        except QueryError as error:
            objective = ", ".join(repr(text) for text in self._objective)
            row = self._results.sql(f"select * from results where trial_id = '{min(ids)}'")
            columns = ", ".join(n for n, value in zip(row.columns, row.fetchall()[0], strict=True) if value is not None)
            text = f"search.objective is {objective}, which fails on the trials' results: {error}"
            raise QueryError(f"{text}. Columns with a value: {columns}") from None
        for trial_id, status, *values in rows:
            is_defined = status == ResultStatus.OK and all(v is not None and math.isfinite(v) for v in values)
            self._values[trial_id] = tuple(values) if is_defined else None


def with_search(checked: CheckedSweep, store: Store) -> tuple[CheckedSweep, SearchView | None]:
    """Return the sweep with the trials of its search so far, and the search. Without a search, return the sweep and None."""
    if checked.sweep.search is None:
        return checked, None
    view = SearchView(checked, store)
    return replace(checked, trials=view.trials()), view


def fitted_trials(checked: CheckedSweep, view: SearchView | None) -> Sequence[Trial]:
    """Return the trials that a sweep's fits use."""
    return checked.trials if view is None else view.trials_to_fit()
