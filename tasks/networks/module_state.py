"""State that a module keeps between calls outside of its tensors: in attributes, classes, closures and globals.

Trials share one instance, and their steps may be traced, so only tensors are a trial's own. Other state matters if the module
computes other numbers once it has changed: in further calls, or with the number that a counter will reach.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

CALLS = 64
"""Calls in which a changing list, iterator or the like has to show its influence."""
JUMPS = (10, 100, 1_000, 10_000)
"""Calls after which a changing number has to show its influence, if it changes by as much in each."""
MAX_VALUES = 20_000
_NOT_STATE = ("_parameters", "_buffers", "_modules", "training")


def influential_state(module: nn.Module, compute: Callable[[], list[Tensor]]) -> str | None:
    """Return the names of the state that calls of a new module change and on which its numbers depend, or None.

    compute: Calls it, always with the same samples, tensors and random numbers, and returns what it computes.
    """

    def is_same() -> bool:
        try:
            pairs = zip(first, compute(), strict=True)
            return all(torch.allclose(a, b, rtol=1e-5, atol=1e-7, equal_nan=True) for a, b in pairs)
        except Exception:  # as with a graph that it has kept
            return False

    (new, _), first = _read(module), compute()
    (before, put), is_equal, (after, _) = _read(module), is_same(), _read(module)
    changed = [name for name in {**new, **after} if new.get(name) != after.get(name)]
    if any("[" in name or not isinstance(after.get(name), int | float | bytes) for name in changed):
        is_equal = is_equal and all(is_same() for _ in range(CALLS))
    for name in changed if is_equal else ():
        number, later = before.get(name), after.get(name)
        if name in put and isinstance(number, int | float) and isinstance(later, int | float):
            for jump in JUMPS:
                put[name](number + jump * (later - number))
                if not is_same():
                    return name
            put[name](number)
    return None if is_equal else ", ".join(dict.fromkeys(name.partition("[")[0] for name in changed)) or None


def _read(module: nn.Module) -> tuple[dict[str, Any], dict[str, Callable[[Any], None]]]:
    """Return the values that a module reaches without its parameters and buffers, the nearest first, and what sets each."""
    values: dict[str, Any] = {}
    put: dict[str, Callable[[Any], None]] = {}
    met: dict[int, Any] = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    ahead: deque[tuple[str, Any, Any]] = deque([("", module, None)])
    while ahead and len(values) < MAX_VALUES:
        name, value, set_value = ahead.popleft()
        if isinstance(value, type(None) | bool | int | float | complex | str | bytes):
            values[name], put[name] = value, set_value
        elif id(value) not in met:
            met[id(value)] = value  # held, because a freed object's id becomes another's
            with suppress(Exception):  # of sparse and other tensors
                ahead.extend(_parts(name, value))
    return values, {name: set_value for name, set_value in put.items() if set_value is not None}


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield an object's parts: their names, they themselves, and a function that sets each, or None."""
    prefix, attributes = f"{name}." if name else "", dict(getattr(value, "__dict__", {}))
    if isinstance(value, Tensor):
        yield name, value.detach().cpu().flatten().view(torch.uint8).numpy().tobytes(), None
    elif isinstance(value, dict | list | tuple):
        items, put = value.items() if isinstance(value, dict) else enumerate(value), getattr(value, "__setitem__", None)
        yield from ((f"{name}[{key!r}]", part, put and partial(put, key)) for key, part in [*items])
    elif isinstance(value, FunctionType):
        scope, prefix = value.__globals__, f"{value.__name__}."
        names = _names(value.__code__) if _is_own(scope.get("__name__")) else ()
        yield from ((key, scope[key], partial(scope.__setitem__, key)) for key in names if key in scope)
        for key, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            yield key, cell, None
        yield f"{prefix}defaults", (value.__defaults__, value.__kwdefaults__), None
    elif isinstance(value, nn.Module):
        attributes |= value._modules
        attributes = {key: part for key, part in attributes.items() if key not in _NOT_STATE}
    elif isinstance(value, ModuleType) or (isinstance(value, type) and not _is_own(value.__module__)):
        return
    elif isinstance(value, type):
        prefix = f"{value.__name__}."
    elif hasattr(value, "cell_contents"):
        yield name, value.cell_contents, partial(setattr, value, "cell_contents")
    yield from ((f"{prefix}{key}", part, partial(setattr, value, key)) for key, part in attributes.items())
    yield f"{name}[type]", type(value), None
    if not isinstance(value, Tensor | dict | list | tuple | FunctionType | nn.Module | type):
        # what pickle would store of iterators, random generators, partial functions and slots
        stored = value.__reduce_ex__(4)
        yield f"{name}[state]", [[*part] if isinstance(part, Iterator) else part for part in stored], None


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        yield from _names(constant) if isinstance(constant, CodeType) else ()


def _is_own(module: str | None) -> bool:
    """Return whether a Python module is neither of the standard library nor of an installed package."""
    file = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return "-packages" not in file and (module or "").partition(".")[0] not in {*sys.stdlib_module_names, "torch"}
