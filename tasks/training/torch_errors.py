"""Exception classes of torch, found without importing it: tasks need not use torch."""

from __future__ import annotations

import sys


def torch_errors(*names: str) -> tuple[type[BaseException], ...]:
    """Return torch's exception classes of these names, as far as torch is imported and its version has them."""
    torch = sys.modules.get("torch")
    classes = (getattr(torch, name, None) for name in names)
    return tuple(error_class for error_class in classes if isinstance(error_class, type))
