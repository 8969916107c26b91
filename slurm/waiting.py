"""Change waiting jobs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from depthrate.slurm.command import SlurmError, run_command

log = logging.getLogger("depthrate")


def exclude_nodes(array_ids: Iterable[str], nodes: Sequence[str]) -> None:
    """Exclude nodes for the waiting jobs of these arrays. Running jobs are not affected."""
    for array_id in array_ids:
        try:
            run_command(["scontrol", "update", f"JobId={array_id}", f"ExcNodeList={','.join(nodes)}"])
        except SlurmError as error:  # also raised if only some jobs of the array still wait
            log.info("running jobs of array %s stay on their nodes: %s", array_id, error)
