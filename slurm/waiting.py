"""Change jobs that still wait."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from depthrate.slurm.command import SlurmError, run_command

log = logging.getLogger("depthrate")


def exclude_nodes(array_ids: Iterable[str], nodes: Sequence[str]) -> None:
    """Keep the jobs of these arrays that still wait away from some nodes; those that run are not touched."""
    for array_id in array_ids:
        try:
            run_command(["scontrol", "update", f"JobId={array_id}", f"ExcNodeList={','.join(nodes)}"])
        except SlurmError as error:  # also said where only some of an array still wait
            log.info("jobs of %s that run already stay where they are: %s", array_id, error)
