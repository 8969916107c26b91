"""What a pack saves, as bytes: tensors, numbers and texts, with a checksum in front."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from typing import Any

import torch

CHECKPOINT_FORMAT = 2


def packed(content: Mapping[str, Any]) -> bytes:
    """Return the content as bytes."""
    buffer = io.BytesIO()
    torch.save({"format": CHECKPOINT_FORMAT, **content}, buffer)
    payload = buffer.getvalue()
    return hashlib.sha256(payload).digest() + payload


def unpacked(content: bytes) -> dict[str, Any]:
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
