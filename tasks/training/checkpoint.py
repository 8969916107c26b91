"""What a pack saves, as bytes: tensors, numbers and texts, with a checksum in front."""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from depthrate.tasks.interface import TaskContext

log = logging.getLogger(__name__)
CHECKPOINT_FORMAT = 2


def serialise(content: Mapping[str, Any]) -> bytes:
    """Return the content as bytes."""
    buffer = io.BytesIO()
    torch.save({"format": CHECKPOINT_FORMAT, **content}, buffer)
    payload = buffer.getvalue()
    return hashlib.sha256(payload).digest() + payload


def deserialise(content: bytes) -> dict[str, Any]:
    """Return what `packed` packed; torch notices most damage itself, but not a changed bit in a tensor.

    Raises:
        ValueError: the checksum or the format is another one; torch raises errors of other kinds.
    """
    digest, payload = content[:32], content[32:]
    if hashlib.sha256(payload).digest() != digest:
        raise ValueError("its checksum is wrong")
    saved: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    if saved["format"] != CHECKPOINT_FORMAT:
        raise ValueError(f"its format is {saved['format']}, this version writes {CHECKPOINT_FORMAT}")
    return saved


def load_checkpoint(context: TaskContext) -> dict[str, Any] | None:
    """Return the checkpoint of an earlier attempt; null where there is none, or none that can be read."""
    content = context.load_checkpoint()
    if content is None:
        return None
    try:
        return deserialise(content)
    except Exception as error:  # damaged in any way: training anew costs time, never results
        log.warning("checkpoint cannot be read (%s); training starts anew", error)
        return None


def load_previous(context: TaskContext) -> tuple[dict[str, Any], list[int]] | None:
    """Return what an earlier attempt saved, with `trial_ids` in it, and the place there of each trial of this pack.

    None where nothing was saved, where it cannot be read, or where one of this pack's trials was not among them.
    """
    saved = load_checkpoint(context)
    if saved is None:
        return None
    places = {trial_id: place for place, trial_id in enumerate(saved["trial_ids"])}
    if not all(trial_id in places for trial_id in context.trial_ids):
        return None
    return saved, [places[trial_id] for trial_id in context.trial_ids]


def at_positions(saved: Mapping[int, Any], places: Sequence[int]) -> dict[int, Any]:
    """Return what was saved by place in another pack, by position in this one."""
    return {position: saved[place] for position, place in enumerate(places) if place in saved}
