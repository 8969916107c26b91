"""Arithmetic in `derive:` gives numbers, and nothing else can be said in it."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

from depthrate.sweeps.errors import ExpressionError
from depthrate.sweeps.expression import Expression

VALUES = {"depth": 4, "width": 64, "lr": 0.1, "arch": "rn1", "momentum": None, "bias": True}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.05 / depth", 0.0125),
        ("width // 3", 21),
        ("width % 10", 4),
        ("-depth + 2 * (width - 1)", 122),
        ("+depth", 4),
        ("2 ** -depth", 0.0625),
        ("2 ** 3 ** 2", 512),
        ("1e-4 * depth", 4e-4),
        ("depth ** 0.5", 2.0),
        ("  depth  ", 4),
        (0.25, 0.25),
        (3, 3),
        ("2 ** 1000", 2**1000),
    ],
)
def test_arithmetic(text, value):
    found = Expression(text).evaluate(VALUES)
    assert found == value and type(found) is type(value)


def test_names_are_what_it_depends_on():
    assert Expression("width / depth + depth * 2").names == {"width", "depth"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("abs(depth)", r"'abs\(depth\)' is a call, expected numbers, parameter names"),
        ("1 + __import__('os').getpid()", "is a call"),
        ("depth.real", "'depth.real' is not arithmetic"),
        ("().__class__", "not arithmetic"),
        ("[depth][0]", "not arithmetic"),
        ("depth if width else 1", "not arithmetic"),
        ("depth < 3", "not arithmetic"),
        ("depth and width", "not arithmetic"),
        ("not depth", "not arithmetic"),
        ("~depth", "not arithmetic"),
        ("depth << 3", "not arithmetic"),
        ("depth @ width", "not arithmetic"),
        ("(depth := 3)", "not arithmetic"),
        ("lambda: 3", "not arithmetic"),
        ("{depth}", "not arithmetic"),
        ("f'{depth}'", "not arithmetic"),
        ("'depth'", "not arithmetic"),
        ("True", "'True' is not arithmetic"),
        ("None", "not arithmetic"),
        ("1j", "'1j' is not arithmetic"),
        ("1, 2", "not arithmetic"),
        ("depth = 3", "not an arithmetic expression, expected numbers"),
        ("3 +", "not an arithmetic expression"),
        ("", "not an arithmetic expression"),
        ("2depth", "not an arithmetic expression"),
        ("depth\nwidth", "not an arithmetic expression"),
        ("\0", "not an arithmetic expression"),
        ("(" * 400, "not an arithmetic expression"),
        ("1+" * 300 + "1", "601 characters, at most 500"),
    ],
)
def test_anything_else_is_refused_when_it_is_read(text, message):
    with pytest.raises(ExpressionError, match=message):
        Expression(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 / (depth - 4)", r"divides by zero where depth = 4"),
        ("1 // 0", "divides by zero"),
        ("1 % 0", "divides by zero"),
        ("0 ** -1", "divides by zero"),
        ("lr + arch", "refers to 'arch', which is 'rn1', not a number"),
        ("momentum * 2", "refers to 'momentum', which is null, not a number"),
        ("bias + 1", "refers to 'bias', which is True, not a number"),
        ("9 ** 9 ** 9", "too large"),
        ("2.0 ** 1024", "too large"),
        ("1e308 * 10", "no finite real value"),
        ("1e999", "no finite real value"),
        ("10.0 ** 999", "too large"),
        ("(-1) ** 0.5", "no real value"),
        ("((-1) ** 0.5) % 2", "no real value"),
        ("10 ** 400", "too large|no finite"),
    ],
)
def test_nonnumeric_values_are_refused(text, message):
    with pytest.raises(ExpressionError, match=message):
        Expression(text).evaluate(VALUES)


def test_no_expression_keeps_the_machine_busy():
    """In a process of its own, so that it can be ended: each exponent is allowed, the last number has 3e9 bits."""
    program = (
        "from sweeps.expression import *\n"
        "try: Expression('((9 ** 999) ** 999) ** 999').evaluate({})\n"
        "except ExpressionError: print('refused')"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, timeout=10, capture_output=True, text=True)
    assert done.stdout == "refused\n", done.stderr


def test_deep_nesting_is_no_crash():
    assert Expression("-" * 490 + "1").evaluate({}) == 1
    assert math.isclose(Expression("+1" * 249).evaluate({}), 249)


def test_logarithms() -> None:
    expression = Expression("2 * log(depth) ** 2 / depth")
    assert expression.names == {"depth"}
    assert expression.evaluate({"depth": 8}) == pytest.approx(2 * math.log(8) ** 2 / 8)
    assert Expression("log(log)").evaluate({"log": 3}) == math.log(3)
    for value in (0, -1):
        with pytest.raises(ExpressionError, match="takes the logarithm of"):
            expression.evaluate({"depth": value})
    for text in ("log(a, b)", "log()", "log(x=1)", "log(*a)", "math.log(a)", "log"):
        if text == "log":
            assert Expression(text).names == {"log"}
            continue
        with pytest.raises(ExpressionError, match="is a call"):
            Expression(text)
