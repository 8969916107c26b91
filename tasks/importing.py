"""Imports of much at once without looking for garbage meanwhile: nothing that importing makes is any."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Leave out the interpreter's collections in here: a tenth of the time that importing torch takes, or a command."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
