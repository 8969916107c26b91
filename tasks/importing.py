"""Large packages: imports with the garbage collector paused, since they create no garbage, and exceptions without an import."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector. Saves a tenth of the time of importing torch, or of starting a command."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def torch_errors(*names: str) -> tuple[type[BaseException], ...]:
    """Look up torch's exception classes by name. The tuple is empty if torch has not been imported."""
    torch = sys.modules.get("torch")
    classes = (getattr(torch, name, None) for name in names)
    return tuple(error_class for error_class in classes if isinstance(error_class, type))
