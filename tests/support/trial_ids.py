"""Ids of trials by their definition, beside those of `TrialMaker`, which reuses what trials share."""

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from depthrate.sweeps.trial import canonical_json, identifying


def trial_id_of(
    task: str, task_version: int | None, params: Mapping[str, Any], added: Mapping[str, Any] = MappingProxyType({})
) -> str:
    """Return the first 16 hex digits of sha256 over the canonical JSON of task, version and parameters.

    Parameters that the task gained later are omitted if they have the value in `added` (`ParameterSchema.added_later`), so that
    the ids of earlier trials remain valid.
    """
    content = {"task": task, "task_version": task_version, "params": identifying(params, added)}
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:16]
