"""Compute pruning thresholds of a search's trials from the reports of earlier trials."""

import statistics
from collections.abc import Sequence

from depthrate.orchestrator.search.search_view import ProposalOutcome, ProposalState
from depthrate.sweeps.spec import Search


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
