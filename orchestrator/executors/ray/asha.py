"""Asynchronous successive halving (ASHA) over the trials in all packs of a study, by Ray Tune."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import depthrate.orchestrator.executors.ray.settings  # noqa: F401 - first: ray reads the environment

# isort: split
from ray.tune.schedulers import ASHAScheduler

from depthrate.orchestrator.executors.base import AttemptSpec


def asha_rule(job: AttemptSpec) -> Mapping[str, Any] | None:
    """Return the ASHA rule of a pack's trials, if they have one."""
    rules = [rule for rule in job.pruning or () if rule is not None and rule.get("rule") == "asha"]
    return rules[0] if rules else None


class AshaRungs:
    """Promotion of trials from rung to rung (Li et al. 2020, algorithm 2)."""

    def __init__(self, rule: Mapping[str, Any]):
        # Our trials are not Tune trials, but the scheduler only reads their ID.
        self._asha: Any = ASHAScheduler(
            time_attr="step",
            metric="value",
            mode="max" if rule["maximize"] else "min",
            max_t=10**9,  # unbounded: trials end by themselves
            grace_period=rule["from_step"],
            reduction_factor=rule["factor"],
        )
        self._runners: dict[str, _Runner] = {}

    def prune(self, step: int, values: Mapping[str, float]) -> list[str]:
        """Return the trials to prune at this step."""
        pruned = []
        for trial_id, value in values.items():
            if trial_id not in self._runners:
                self._runners[trial_id] = _Runner(trial_id)
                self._asha.on_trial_add(None, self._runners[trial_id])
            result = {"step": step, "value": value}
            decision = self._asha.on_trial_result(None, self._runners[trial_id], result)
            if decision == ASHAScheduler.STOP or not math.isfinite(value):
                pruned.append(trial_id)
        return pruned


@dataclass(frozen=True)
class _Runner:
    """Substitute for a Tune trial."""

    trial_id: str
