"""Parallel work on many curves, in parts, on all available cores."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

BLOCK_ROWS = 1 << 16
"""Maximum rows per block of a thread: enough to amortise numpy calls, few enough for the memory of many threads."""


def in_threads(work: Callable[[slice], Result], parts: Sequence[slice]) -> list[Result]:
    """Return work(part) for each part, in order, computed on all available cores."""
    # Threads suffice, since long numpy calls release the interpreter lock.
    num_threads = min(len(parts), _num_cores())
    if num_threads < 2:
        return [work(part) for part in parts]
    with ThreadPoolExecutor(num_threads) as threads:
        return list(threads.map(work, parts))


def parts_of(num_curves: int, *, at_most: int, at_least: int = 1) -> list[slice]:
    """Split the curves into one part per core, within these sizes."""
    size = max(1, min(at_most, max(-(-num_curves // _num_cores()), at_least)))
    return [slice(first, min(first + size, num_curves)) for first in range(0, num_curves, size)]


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))
