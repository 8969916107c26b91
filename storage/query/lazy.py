"""A cached property that may read from the store."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property
from typing import Any, TypeVar

T = TypeVar("T")


class lazy(cached_property[T]):
    """A cached property without the lock of Python 3.11, which all instances share: one slow read would stop all readers."""

    def __init__(self, func: Callable[[Any], T]):
        super().__init__(func)
        self.lock = nullcontext()
