"""torch's exception classes without importing torch, since tasks need not use it."""

import sys


def torch_errors(*names: str) -> tuple[type[BaseException], ...]:
    """Look up torch's exception classes by name. The tuple is empty if torch has not been imported."""
    torch = sys.modules.get("torch")
    classes = (getattr(torch, name, None) for name in names)
    return tuple(error_class for error_class in classes if isinstance(error_class, type))
