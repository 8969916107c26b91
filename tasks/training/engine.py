"""How the steps of a trial are run: eagerly, or compiled into one program. The choice; importable without torch.

The choice is the trial's own: it depends on its shape and its number of steps, never on its pack, so that a trial's numbers
do not either.
"""

from __future__ import annotations

import os
import shutil

from depthrate.tasks.networks.network import Network
from depthrate.tasks.task import Engine
from depthrate.tasks.training.cost import PackShape, steps_s

COMPILE_S, COMPILE_S_PER_PRODUCT = 15.0, 2.5
"""Processor seconds that compiling a step takes: importing the compiler, and each matrix product (measured, see LOG.md)."""
SPEED_UP = 2.0
"""Of a compiled step over an eager one: 1.4 to 3 measured."""


class EngineError(RuntimeError):
    """A step was to be compiled and cannot be."""


def compile_s(network: Network) -> float:
    """Return the rough processor seconds that it takes to compile a network's step."""
    return COMPILE_S + COMPILE_S_PER_PRODUCT * network.step_cost().products


def chosen_engine(asked: Engine, shape: PackShape, device: str) -> Engine:
    """Return the engine that was asked for; for `auto` compiled where a single trial's training repays compiling its step.

    On a GPU `auto` is eager: nobody has measured compiled steps there. So are networks that cannot be compiled, and steps with
    bf16 whatever was asked: compiled ones did not always agree with them (LOG.md).

    Raises:
        EngineError: compiled steps were asked for, and the network is a user's.
    """
    if not shape.network.is_compilable:
        if asked is Engine.COMPILED:
            raise EngineError(
                f"the step of {type(shape.network).__name__} runs a user's code; train with --engine eager"
            )
        return Engine.EAGER
    if shape.matmul_precision == "bf16":
        return Engine.EAGER
    if asked is not Engine.AUTO:
        return asked
    saved_s = steps_s(shape) * (1 - 1 / SPEED_UP)  # polish and measurements are not compiled
    return Engine.COMPILED if device == "cpu" and saved_s > compile_s(shape.network) else Engine.EAGER


def compiler() -> str:
    """Return the C++ compiler's path.

    Raises:
        EngineError: there is none.
    """
    name = os.environ.get("CXX") or "g++"
    path = shutil.which(name)
    if path is None:
        raise EngineError(
            f"the C++ compiler {name!r} is not on PATH, and compiled steps need one; install g++, name another in CXX, or "
            "train with --engine eager"
        )
    return path
