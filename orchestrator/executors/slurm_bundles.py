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

    No job is asked for while another has a slot without a pack. Where a cost is unknown all packs count alike, in four
    rounds of jobs: one that takes longer than its time limit goes on in the next, so nothing is lost by that.
    """
    parallel = profile.array_parallelism or GUESSED_PARALLEL
    costs_s = _costs_s(seconds)
    filled = math.ceil(len(packs) / profile.slots)
    length_s = 60 * min(profile.job_min, 0.8 * profile.walltime_min) * profile.slots
    needed = 4 * parallel if None in seconds else math.ceil(sum(costs_s) / max(length_s, 1e-9))
    count = filled if length_s == 0 else min(filled, max(parallel, needed))
    slots = [(0.0, slot) for slot in range(count * profile.slots)]  # of all jobs: a job's slots are beside each other
    bundles: list[list[P]] = [[] for _ in range(count)]
    for pack, cost_s in sorted(zip(packs, costs_s, strict=True), key=lambda each: -each[1]):
        filled_s, slot = heapq.heappop(slots)
        bundles[slot // profile.slots].append(pack)
        heapq.heappush(slots, (filled_s + cost_s, slot))
    return bundles


def share_of_slots_used(packs: Sequence[P], seconds: Sequence[float | None], profile: Profile) -> float | None:
    """Return which part of their jobs' time the slots (GPUs, or CPUs) have a pack, as `bundle` shares them out.

    Packs of unknown cost count alike; None without any pack.
    """
    costs_s = _costs_s(seconds)
    used_s = given_s = 0.0
    for members in bundle(range(len(packs)), seconds, profile):
        ends = [0.0] * profile.slots
        for pack in members:  # in this order, each into the first slot that is free
            heapq.heapreplace(ends, ends[0] + costs_s[pack])
        used_s += sum(costs_s[pack] for pack in members)
        given_s += profile.slots * max(ends)
    return used_s / given_s if given_s else None


def _costs_s(seconds: Sequence[float | None]) -> list[float]:
    """Return the packs' costs; all alike where one is unknown."""
    costs_s = [cost_s for cost_s in seconds if cost_s is not None]
    return costs_s if len(costs_s) == len(seconds) else [1.0] * len(seconds)
