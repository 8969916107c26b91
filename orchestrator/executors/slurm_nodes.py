"""What each node does well and badly, so that jobs avoid one that only fails; and whether the fault is no node's at all."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Collection

log = logging.getLogger("depthrate")
BAD_NODE_AT = 3
"""Packs that a node must fail, with no pack done on it, before it is left out."""
DEAD_ON_ARRIVAL_AT = 2
"""Jobs that must end on a node before our program begins, one after the other, before it is left out."""
NOWHERE_AT = 3
"""Jobs that must end so, on two nodes or all there are, before the fault is taken to be no node's."""


class NodeCounts:
    """How often jobs and packs of a launch went well on each node, and how often not."""

    def __init__(self, num_nodes: int):
        self._num_nodes = num_nodes
        """Of the partition; one of them is always left."""
        self._done: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._begun: set[str] = set()
        """Nodes on which our program has begun: a heartbeat there is a proof that jobs can run."""
        self._not_begun: defaultdict[str, set[str]] = defaultdict(set)
        """Node -> jobs that ended on it before that, since it last happened there."""
        self.excluded: list[str] = []
        """Nodes that failed too often, which jobs avoid from then on."""

    def begins(self, node: str, job_id: str) -> None:
        """Note that our program runs in a job, though it may have been thought dead: what it writes comes late."""
        self._begun.add(node)
        if self._not_begun.pop(node, None) and node in self.excluded and self._failed[node] < BAD_NODE_AT:
            log.warning("node %s works: job %s begins there", node, job_id)
            self.excluded.remove(node)

    def ends_before_it_begins(self, node: str, job_id: str) -> None:
        """Note that a job ended on a node without a sign of our program, and leave the node out if that is the rule."""
        if node:
            self._not_begun[node].add(job_id)
            if len(self._not_begun[node]) >= DEAD_ON_ARRIVAL_AT:
                self._exclude(node, f"ended {len(self._not_begun[node])} jobs before they began")

    def count(self, node: str, done: bool) -> None:
        """Note how a pack does on a node, and leave the node out if all it does is fail."""
        if not node:
            return
        (self._done if done else self._failed)[node] += 1
        others_work = any(
            other != node and (self._done[other] or not self._failed[other]) for other in {*self._done, *self._begun}
        )
        if self._failed[node] >= BAD_NODE_AT and not self._done[node] and others_work:
            self._exclude(node, f"failed {self._failed[node]} packs and did none")

    def _exclude(self, node: str, why: str) -> None:
        if node not in self.excluded and len(self.excluded) + 1 < self._num_nodes:
            self.excluded.append(node)
            log.warning("node %s %s: jobs avoid it from now on", node, why)

    def begins_nowhere(self, running_on: Collection[str]) -> bool:
        """Whether no job can begin anywhere, given the nodes on which jobs run now: they may be about to begin."""
        if self._begun or self._done:
            return False
        tried = {node for node, jobs in self._not_begun.items() if jobs}
        num_jobs = sum(len(jobs) for jobs in self._not_begun.values())
        return num_jobs >= NOWHERE_AT and len(tried) >= min(2, self._num_nodes) and tried.issuperset(running_on)
