"""How the steps of a trial are run: natively, compiled into one program, or eagerly. The choice; importable without torch.

The choice is the trial's own: it depends on its shape and its number of steps, never on its pack, so that a trial's numbers
do not either.
"""

from __future__ import annotations

import os
import shutil

from depthrate.tasks.interface import Engine
from depthrate.tasks.networks.network import Network
from depthrate.tasks.training.cost import SPEED_UP, PackShape, steps_s
from depthrate.tasks.training.training_plan import ENGINE_OPTIMIZERS

COMPILE_S, COMPILE_S_PER_PRODUCT = 15.0, 2.5
"""Processor seconds that compiling a step takes: importing the compiler, and each matrix product (measured, see LOG.md)."""


class EngineError(ValueError):
    """Steps cannot be run as they were to be."""


class NoCompilerError(EngineError):
    """What they need is neither here nor can it be made here; on another machine it may."""


def check_precision(matmul_precision: str, device: str) -> None:
    """Refuse matrix products in a precision that the device does not have.

    Raises:
        EngineError: they are.
    """
    if matmul_precision == "tf32" and device != "cuda":
        raise EngineError(
            f"matmul_precision is tf32, which {device} does not have; give --device cuda, or matmul_precision full or bf16"
        )


def compile_s(network: Network) -> float:
    """Return the rough processor seconds that it takes to compile a network's step."""
    return COMPILE_S + COMPILE_S_PER_PRODUCT * network.step_cost().products


def select_engine(asked: Engine, shape: PackShape, device: str) -> Engine:
    """Return the engine that was asked for; for `auto` native where there are kernels, else compiled where that repays a trial.

    What has no native steps is refused where they were asked for. On a GPU `auto` is eager: nobody has measured compiled steps
    there. So are networks that cannot be compiled or have a step by hand, and steps with bf16 whatever was asked: compiled ones
    did not always agree with them (LOG.md).

    Raises:
        EngineError: compiled steps were asked for, and the network is a user's; or native ones, and there are none.
    """
    if _is_native(asked, native_unsupported_reason(shape, device)):
        return Engine.NATIVE
    if shape.network.has_step_by_hand:
        return Engine.EAGER
    if (reason := _eager_only_reason(shape)) is not None:
        if asked is Engine.COMPILED:
            raise EngineError(f"{reason}, for which there are no compiled steps; train with --engine auto")
        return Engine.EAGER
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


def select_engine_by_hand(asked: Engine, device: str) -> Engine:
    """Return, as `chosen_engine`, that of trials which have kernels and whose eager step is written by hand: no other.

    Raises:
        EngineError: native steps were asked for on another device.
    """
    return Engine.NATIVE if _is_native(asked, _device_reason(device)) else Engine.EAGER


def _is_native(asked: Engine, why_not: str | None) -> bool:
    if asked is Engine.NATIVE and why_not is not None:
        raise EngineError(f"there are no native steps for these trials: {why_not}; train with --engine auto")
    return asked in (Engine.AUTO, Engine.NATIVE) and why_not is None


def _device_reason(device: str) -> str | None:
    return None if device == "cpu" else f"kernels are there for CPUs, and the device is {device}"


def available_engine(asked: Engine) -> tuple[Engine, str | None]:
    """Return what to ask of trials that run on this machine: eager instead of `auto` where it has no compiler, and why."""
    if asked is Engine.AUTO:
        try:
            compiler()
        except NoCompilerError as error:
            return Engine.EAGER, f"trials train eagerly, because {error}"
    return asked, None


def native_unsupported_reason(shape: PackShape, device: str) -> str | None:
    """Return why such trials have no native steps; null where they have."""
    if shape.network.kernels() is None:
        return (
            "kernels are there for residual networks (arch rn1 and rn2), transformers (t11 to t22), unconstrained features "
            f"(dufm, ufm, mufm) and words, not for {type(shape.network).__name__}"
        )
    if (reason := _eager_only_reason(shape)) is not None:
        return f"{reason}, and kernels have {' and '.join(ENGINE_OPTIMIZERS)} on classes, one a sample, that are held"
    if shape.matmul_precision != "full":
        return f"matmul_precision is {shape.matmul_precision}, and kernels form products in full"
    return _device_reason(device)


def _eager_only_reason(shape: PackShape) -> str | None:
    """Return what such trials have that eager steps alone know; null: nothing."""
    if shape.data.has_targets:
        return "targets are numbers"
    if shape.data.stream is not None:
        return "samples are streamed"
    if shape.data.labels_tokens:
        return "each token has a label"
    if shape.label_smoothing:
        return f"label_smoothing is {shape.label_smoothing}"
    return None if shape.optimizer in ENGINE_OPTIMIZERS else f"optimizer is {shape.optimizer}"


def compiler() -> str:
    """Return the C++ compiler's path.

    Raises:
        NoCompilerError: there is none.
    """
    name = os.environ.get("CXX") or "g++"
    path = shutil.which(name)
    if path is None:
        raise NoCompilerError(
            f"the C++ compiler {name!r} is not on PATH, and native and compiled steps need one; install g++, name another in "
            "CXX, or train with --engine eager"
        )
    return path
