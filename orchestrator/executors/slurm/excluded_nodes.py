"""Nodes that jobs leave out: unhealthy nodes, nodes where jobs do not start, nodes where the packs of a job failed."""

from collections.abc import Iterable, Sequence

from depthrate.orchestrator.attempts.node_health import StartFailures
from depthrate.slurm.job_states import parse_array_id
from depthrate.slurm.submit import exclude_nodes


class ExcludedNodes:
    """Excluded nodes of the jobs of a launch. At least one node always remains."""

    def __init__(self, start_failures: StartFailures, num_nodes: int, never: Sequence[str]):
        """Args: num_nodes: nodes that jobs may run on. never: nodes that the cluster file excludes."""
        self._start_failures, self._num_nodes, self._never = start_failures, num_nodes, never
        self.unhealthy: list[str] = []
        """Nodes that the driver excludes."""
        self._failed: dict[str, list[str]] = {}
        """Array -> nodes where its packs failed."""
        self._applied: list[str] = []
        """Nodes excluded when waiting jobs were last updated."""

    @property
    def num_usable(self) -> int:
        """Number of nodes on which jobs start."""
        return self._num_nodes - len(self._start_failures.excluded)

    def for_packs(self, failed: Sequence[str] = ()) -> list[str]:
        """Return the nodes to exclude for all packs and, if other nodes remain, the nodes where these packs `failed`."""
        for_all = list(dict.fromkeys([*self._start_failures.excluded, *self.unhealthy]))[: max(0, self._num_nodes - 1)]
        combined = list(dict.fromkeys([*for_all, *failed]))
        return combined if len(combined) < self._num_nodes else for_all

    def register_jobs(self, job_ids: Iterable[str], failed: Sequence[str]) -> None:
        """Register submitted jobs whose packs failed on these nodes."""
        if failed:
            self._failed |= {parse_array_id(job_id): list(failed) for job_id in job_ids}

    def update(self, waiting: Iterable[str]) -> None:
        """Update the excluded nodes of waiting jobs after a change."""
        if (excluded := self.for_packs()) == self._applied:
            return
        self._applied = excluded
        for array in sorted({parse_array_id(job_id) for job_id in waiting}):
            nodes = self.for_packs(self._failed.get(array, ()))
            exclude_nodes([array], sorted({*self._never, *nodes}))
