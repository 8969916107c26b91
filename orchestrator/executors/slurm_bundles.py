"""Which packs share a SLURM job."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import TypeVar

from depthrate.slurm.profile import Profile

P = TypeVar("P")
GUESSED_PARALLEL = 16
"""Jobs that a cluster is taken to run at once where the profile does not say."""


def bundle(packs: Sequence[P], seconds: Sequence[float | None], profile: Profile) -> list[list[P]]:
    """Put packs into jobs of about `job_min` minutes, the longest packs first and apart, as many jobs as may run at once.

    Where a cost is unknown all packs count alike, in four rounds of jobs: one that takes longer than its time limit goes on
    in the next, so nothing is lost by that.
    """
    at_once = (profile.array_parallelism or GUESSED_PARALLEL) * profile.slots
    length_s = 60 * min(profile.job_min, 0.8 * profile.walltime_min) * profile.slots
    costs_s = [cost_s for cost_s in seconds if cost_s is not None]
    if len(costs_s) < len(packs):
        costs_s, needed = [1.0] * len(packs), 4 * at_once
    else:
        needed = math.ceil(sum(costs_s) / max(length_s, 1e-9))
    count = len(packs) if length_s == 0 else min(len(packs), max(at_once, needed))
    heap = [(0.0, index) for index in range(count)]
    bundles: list[list[P]] = [[] for _ in range(count)]
    for pack, cost_s in sorted(zip(packs, costs_s, strict=True), key=lambda each: -each[1]):
        filled_s, index = heapq.heappop(heap)
        bundles[index].append(pack)
        heapq.heappush(heap, (filled_s + cost_s, index))
    return bundles
