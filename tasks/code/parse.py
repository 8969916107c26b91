"""Parse Python source, from any thread."""

import ast
import threading
from typing import Literal, overload

_LOCK = threading.RLock()
"""Python up to 3.12 counts the depth of syntax trees per interpreter, so two threads that parse fail with SystemError."""


@overload
def parse_source(source: str | bytes) -> ast.Module: ...
@overload
def parse_source(source: str | bytes, mode: Literal["eval"]) -> ast.Expression: ...
def parse_source(source: str | bytes, mode: Literal["exec", "eval"] = "exec") -> ast.Module | ast.Expression:
    """Return the syntax tree of a module, or of an expression.

    Raises:
        SyntaxError: The source is not Python.
        ValueError: The source contains null bytes.
    """
    with _LOCK:
        tree = ast.parse(source, mode=mode)
    assert isinstance(tree, ast.Module | ast.Expression)
    return tree
