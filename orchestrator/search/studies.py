"""Searches with Optuna: batches of proposals, each a function of the sweep file and the earlier results.

A study proposes a batch, waits for its results, and proposes the next batch. Its proposals depend only on the search and the
committed results, not on the node, the executor or interruptions. The sampler's state is not stored. It is rebuilt by replaying
the earlier batches. Stored proposals are used even if another version of Optuna would make different proposals.
"""

import logging
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from depthrate.orchestrator.search.samplers import StudySampler, Values
from depthrate.orchestrator.search.search_view import ProposalOutcome, ProposalState, SearchView, StudyState
from depthrate.storage.attempts.searches import Batch
from depthrate.sweeps.packing import Pack, pack_trials
from depthrate.sweeps.spec import Search
from depthrate.sweeps.studies import Study


class SearchFeed:
    """Supplies a launch with the packs of a search's next batches as results arrive."""

    def __init__(self, view: SearchView, *, device: str, workers: int, memory_bytes: float | None = None):
        self.view = view
        self._device, self._workers, self._memory_bytes = device, workers, memory_bytes
        self._samplers: dict[str, StudySampler] = {}
        self._dispatched_ids: set[str] = set()
        self.propose()

    @property
    def is_over(self) -> bool:
        """True if no more packs will come."""
        return self.view.is_over

    def next_packs(self, given_up: Collection[str]) -> list[Pack]:
        """Read new commits, propose the next batches, and return packs of the trials that the launch does not have yet.

        Raises:
            StoreError, OSError: If the store cannot be read or written.
            QueryError: If the objective cannot be computed.
        """
        self.view.given_up = given_up
        self.view.refresh()
        self.propose()
        fresh = [trial for trial in self.view.pending() if trial.trial_id not in self._dispatched_ids]
        if fresh and any(state.measured() for state in self.view.states):
            self.view.list_trials()
        self.mark_dispatched(trial.trial_id for trial in fresh)
        running = sum(not state.is_over for state in self.view.states)
        # Other studies use the remaining workers, so split a batch only for this study's share of the workers.
        workers = max(1, self._workers // max(1, running))
        return pack_trials(
            fresh, self.view.checked.task, device=self._device, workers=workers, memory_bytes=self._memory_bytes
        )

    def mark_dispatched(self, trial_ids: Iterable[str]) -> None:
        """Record trials that the launch has received."""
        self._dispatched_ids.update(trial_ids)

    def pruning(self, trial_id: str) -> Mapping[str, Any] | None:
        """Return a trial's pruning rule, for `AttemptSpec.pruning`."""
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
        """Propose batches until every study waits for results or has made all proposals."""
        for state in self.view.states:
            while not state.has_proposed_all and not state.is_waiting:
                self._propose_batch(state)

    def _propose_batch(self, state: StudyState) -> None:
        study = state.study
        if study.study_id not in self._samplers:
            self._samplers[study.study_id] = StudySampler(
                study.search,
                study.dimensions,
                is_active=lambda dimension, values: dimension.is_active({**study.fixed, **values}, study.task.schema),
                is_possible=lambda values: _is_possible(study, values),
            )
        sampler = self._samplers[study.study_id]
        sampler.replay([[p.values for p in batch] for batch in state.batches], state.outcomes)
        count = min(study.search.batch, study.search.trials - len(state.outcomes))
        values = sampler.ask(count)
        batch = Batch(
            study_id=study.study_id,
            number=len(state.batches),
            values=tuple(values),
            trial_ids=tuple(tuple(trial.trial_id for trial in study.trials(value)) for value in values),
            thresholds=thresholds(study.search, state.outcomes),
            exhausted=len(values) < count,
        )
        self.view.add(state, batch)


def _is_possible(study: Study, values: Values) -> bool:
    """Return whether the task accepts a proposal and the sweep does not exclude it."""
    try:
        return bool(study.trials(values))
    except ValueError as error:
        logging.getLogger("depthrate").info("proposal skipped, because it cannot run: %s", error)
        return False


def thresholds(search: Search, outcomes: Sequence[ProposalOutcome]) -> dict[str, float]:
    """Compute, per step, the value that trials of the next batch must reach to continue.

    median: the median of the completed trials at that step (Golovin et al. 2017, Google Vizier, section 3.5.2).
    halving: the worst of the best 1/factor of all trials that reached a rung. The rungs are from_step x factor^k
    (asynchronous successive halving, Li et al. 2020, algorithm 2, with whole batches in place of single trials).
    asha: no thresholds.
    """
    prune = search.prune
    if prune is None or prune.rule == "asha":  # asha compares trials while they run
        return {}
    maximize = search.direction[0] == "maximize"
    used = [outcome for outcome in outcomes if prune.rule == "halving" or outcome.state is ProposalState.COMPLETE]
    by_step: dict[int, list[float]] = {}
    for outcome in used:
        for report in outcome.reports:
            for step, value in report.values.items():
                by_step.setdefault(step, []).append(value)
    steps = [step for step in sorted(by_step) if step >= prune.from_step]
    if prune.rule == "halving":
        steps = _rungs(steps, prune.from_step, prune.factor)
    limits = {}
    for step in steps:
        values = sorted(by_step[step], reverse=maximize)
        if len(values) >= prune.startup:
            rank = max(1, len(values) // prune.factor) - 1
            limits[str(step)] = statistics.median(values) if prune.rule == "median" else values[rank]
    return limits


def _rungs(steps: Sequence[int], first: int, factor: int) -> list[int]:
    """Return the first reported step at or after each of first, first x factor, first x factor^2, ..."""
    rungs, rung = [], first
    while later := [step for step in steps if step >= rung]:
        rungs.append(later[0])
        while rung <= later[0]:
            rung *= factor
    return rungs
