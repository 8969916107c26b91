"""Checkpoints as bytes: tensors, numbers and strings, with a leading checksum."""

import hashlib
import io
import logging
from collections.abc import Mapping
from typing import Any

import torch

from depthrate.tasks.interface import TaskContext

log = logging.getLogger(__name__)
CHECKPOINT_FORMAT = 3


def serialise(content: Mapping[str, Any]) -> bytes:
    """Serialise a checkpoint's content to bytes."""
    buffer = io.BytesIO()
    torch.save({"format": CHECKPOINT_FORMAT, **content}, buffer)
    payload = buffer.getvalue()
    return hashlib.sha256(payload).digest() + payload


def deserialise(content: bytes) -> dict[str, Any]:
    """Deserialise the bytes from `serialise`. The checksum detects changed bits in tensors, which torch does not.

    Raises:
        ValueError: The checksum or the format does not match. torch raises other errors.
    """
    digest, payload = content[:32], content[32:]
    if hashlib.sha256(payload).digest() != digest:
        raise ValueError("its checksum does not match")
    saved: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    if saved["format"] != CHECKPOINT_FORMAT:
        raise ValueError(f"its format is {saved['format']}, expected {CHECKPOINT_FORMAT}")
    return saved


def load_checkpoint(context: TaskContext) -> dict[str, Any] | None:
    """Load the checkpoint of an earlier attempt, or None if it is missing or unreadable."""
    content = context.load_checkpoint()
    if content is None:
        return None
    try:
        return deserialise(content)
    except Exception as error:  # whatever the corruption, restarting costs time but never results
        log.warning("cannot read the checkpoint (%s), training restarts", error)
        return None


def load_previous(context: TaskContext) -> tuple[dict[str, Any], list[int]] | None:
    """Load an earlier attempt's checkpoint if it holds all trials of this pack.

    Returns:
        The checkpoint, and the saved position of each trial of this pack. None if the checkpoint is missing, is unreadable or
        lacks a trial.
    """
    saved = load_checkpoint(context)
    if saved is None:
        return None
    if not set(context.trial_ids) <= set(saved["trial_ids"]):
        return None
    return saved, [saved["trial_ids"].index(trial_id) for trial_id in context.trial_ids]
