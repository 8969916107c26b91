"""Evaluate the arithmetic of `derive:` from its syntax tree. It may contain numbers, names, operators and log(...)."""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from depthrate.sweeps.errors import ExpressionError
from depthrate.tasks.code.parse import parse_source

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_ALLOWED = "numbers, parameter names, + - * / // % **, log() and parentheses"
_MAX_LENGTH = 500
_MAX_BITS = 1023


class Expression:
    """A parsed arithmetic expression over parameter names."""

    def __init__(self, text: str | int | float):
        """Parse an expression.

        Raises:
            ExpressionError: The expression is not arithmetic. The message shows the invalid part.
        """
        self.text = str(text)
        if len(self.text) > _MAX_LENGTH:
            raise ExpressionError(f"expression of {len(self.text)} characters, at most {_MAX_LENGTH} are allowed")
        try:
            self._tree = parse_source(self.text.strip(), "eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise ExpressionError(f"{self.text!r} is not an arithmetic expression, expected {_ALLOWED}") from None
        self.names = frozenset(self._check(self._tree))

    def _check(self, node: ast.expr) -> set[str]:
        match node:
            case ast.Constant(value=bool()):
                pass
            case ast.Constant(value=int() | float()):
                return set()
            case ast.Name(id=name):
                return {name}
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return self._check(left) | self._check(right)
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
                return self._check(operand)
            case ast.Call(func=ast.Name(id="log"), args=[operand], keywords=[]) if not isinstance(operand, ast.Starred):
                return self._check(operand)
        part = ast.get_source_segment(self.text.strip(), node) or self.text
        kind = "a call" if isinstance(node, ast.Call) else "not arithmetic"
        raise ExpressionError(f"{self.text!r}: {part!r} is {kind}, expected {_ALLOWED}")

    def evaluate(self, values: Mapping[str, Any]) -> int | float:
        """Evaluate the expression for these parameter values.

        Raises:
            ExpressionError: A name is not a number, a divisor is zero, or the result is not finite.
        """
        try:
            result = self._value(self._tree, values)
            finite = math.isfinite(result)
        except ZeroDivisionError:
            raise ExpressionError(f"{self.text!r} divides by zero {self._where(values)}") from None
        except OverflowError:
            raise ExpressionError(f"{self.text!r} is too large a number {self._where(values)}") from None
        if not finite:
            raise ExpressionError(f"{self.text!r} has no finite real value {self._where(values)}")
        return result

    def _value(self, node: ast.expr, values: Mapping[str, Any]) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                value = values[name]
                if isinstance(value, bool) or not isinstance(value, int | float):
                    text = "null" if value is None else repr(value)
                    raise ExpressionError(f"{self.text!r} refers to {name!r}, which is {text}, not a number")
                return value
            case ast.BinOp(left=left, op=op, right=right):
                first, second = self._value(left, values), self._value(right, values)
                if isinstance(op, ast.Pow):
                    return self._power(first, second, values)
                return _BINARY[type(op)](first, second)
            case ast.UnaryOp(op=op, operand=operand):
                return _UNARY[type(op)](self._value(operand, values))
            case ast.Call(args=[operand]):
                return self._logarithm(self._value(operand, values), values)
        raise AssertionError(f"unchecked node {node!r}")

    def _power(self, base: Any, exponent: Any, values: Mapping[str, Any]) -> Any:
        if abs(base) > 1 and abs(exponent) * math.log2(abs(base)) > _MAX_BITS:
            raise OverflowError  # an int has no size limit, so 9**9**9 would never finish
        result = base**exponent
        if isinstance(result, complex):
            raise ExpressionError(f"{self.text!r} has no real value {self._where(values)}")
        return result

    def _logarithm(self, value: Any, values: Mapping[str, Any]) -> float:
        if value <= 0:
            raise ExpressionError(f"{self.text!r} takes the logarithm of {value:g} {self._where(values)}")
        return math.log(value)

    def _where(self, values: Mapping[str, Any]) -> str:
        return "where " + ", ".join(f"{name} = {values[name]}" for name in sorted(self.names)) if self.names else ""
