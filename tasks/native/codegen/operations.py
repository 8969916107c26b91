"""Elementwise operations of generated steps as C++ expressions of vectors, see `generated.h`."""

from collections.abc import Mapping
from typing import Any

import torch

aten = torch.ops.aten

_COMPARISONS = {"le": "<=", "lt": "<", "ge": ">=", "gt": ">", "eq": "==", "ne": "!="}
_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_LOGIC = {
    aten.logical_and.default: "(as_mask({}) & as_mask({}))",
    aten.logical_or.default: "(as_mask({}) | as_mask({}))",
    aten.logical_not.default: "(~as_mask({}))",
    aten.bitwise_and.Tensor: "(as_mask({}) & as_mask({}))",
    aten.bitwise_or.Tensor: "(as_mask({}) | as_mask({}))",
    aten.bitwise_not.default: "(~as_mask({}))",
}
_FUNCTIONS = {
    name: f"{name}_of({{}})"
    for name in (
        *("exp", "log", "erf", "tanh", "sigmoid", "sqrt", "rsqrt", "sin", "cos", "atan", "log1p", "expm1"),
        *("floor", "ceil", "round"),
    )
}
_OTHERS = {
    aten.relu.default: "relu_of({})",
    aten.neg.default: "(-{})",
    aten.reciprocal.default: "(1 / {})",  # torch computes 1 / x by it, so it has no simpler form
    aten.abs.default: "abs_of({})",
    aten.sign.default: "sign_of({})",
    aten.rsub.Scalar: "({1} - {0})",
    aten.rsub.Tensor: "({1} - {0})",
    aten.where.self: "pick(as_mask({}), {}, {})",
    aten.where.ScalarSelf: "pick(as_mask({}), {}, {})",
    aten.where.ScalarOther: "pick(as_mask({}), {}, {})",
    aten.where.Scalar: "pick(as_mask({}), {}, {})",
    aten.maximum.default: "pick({0} > {1}, {0}, {1})",
    aten.minimum.default: "pick({0} < {1}, {0}, {1})",
    "to number": "to_number({})",
}


def _overloads(name: str, *variants: str) -> list[Any]:
    packet = getattr(aten, name)
    return [getattr(packet, variant) for variant in variants if hasattr(packet, variant)]


_COMPARED = {
    operation: f"({{}} {sign} {{}})"
    for name, sign in _COMPARISONS.items()
    for operation in _overloads(name, "Scalar", "Tensor")
}
POINTWISE: Mapping[Any, str] = {
    **{
        operation: f"({{}} {sign} {{}})"
        for name, sign in _ARITHMETIC.items()
        for operation in _overloads(name, "Tensor", "Scalar")
    },
    **_COMPARED,
    **_LOGIC,
    **{operation: text for name, text in _FUNCTIONS.items() for operation in _overloads(name, "default")},
    **_OTHERS,
}
"""Operation -> expression of its operands."""
BOOLEANS = {*_COMPARED, *_LOGIC}
"""Operations whose results are masks."""
COSTLY = {operation for name in _FUNCTIONS for operation in _overloads(name, "default")}
"""Operations that are not repeated where their results are read again."""
