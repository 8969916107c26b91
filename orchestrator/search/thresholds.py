"""The values that trials of a search must reach on the way to go on, from what earlier ones reported."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from depthrate.orchestrator.search.proposals import ProposalOutcome, ProposalState
from depthrate.sweeps.spec import Search


def thresholds(search: Search, told: Sequence[ProposalOutcome]) -> dict[str, float]:
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
    known = [each for each in told if prune.rule == "halving" or each.state is ProposalState.COMPLETE]
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
