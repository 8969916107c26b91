"""Tests of parsing Python source."""

import ast
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from depthrate.tasks.code.parse import parse_source

SOURCE = "\n".join(f"x{number} = a + b * (c + {number})" for number in range(300))


class _Slow:
    """Garbage whose collection lets other threads run."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        time.sleep(1e-4)


def _parse_in_threads(parse: Callable[[str], ast.AST]) -> set[str]:
    def parse_at_depth(depth: int) -> str:
        if depth:
            return parse_at_depth(depth - 1)
        for _ in range(20):
            garbage = [_Slow() for _ in range(20)]
            del garbage
            tree = parse(SOURCE)
        return ast.dump(tree)

    with ThreadPoolExecutor(4) as pool:
        return set(pool.map(parse_at_depth, [1, 5, 9, 20]))


def test_threads_parse_while_garbage_is_collected() -> None:
    """Plain ast.parse fails here with SystemError in Python 3.11: recursion depth mismatch."""
    assert _parse_in_threads(parse_source) == {ast.dump(ast.parse(SOURCE))}


@pytest.mark.parametrize("source", ["a +", "def", "\0"])
def test_invalid_source_is_reported(source: str) -> None:
    with pytest.raises((SyntaxError, ValueError)):
        parse_source(source)
