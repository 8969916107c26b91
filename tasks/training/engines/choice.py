"""Choice of the engine of a trial's steps: native, compiled or eager. Importable without torch.

The choice depends on the trial's shape and number of steps but never on its pack, so that a trial's numbers do not depend on
the pack either.
"""

from depthrate.tasks.interface import Engine
from depthrate.tasks.native.compiler import EngineError, NoCompilerError, compiler
from depthrate.tasks.networks.network import Network
from depthrate.tasks.training.cost import SPEED_UP, PackShape, steps_s
from depthrate.tasks.training.training_plan import ENGINE_OPTIMIZERS

COMPILE_S = 15.0
"""CPU seconds to import the compiler (measured, see LOG.md)."""
COMPILE_S_PER_PRODUCT = 2.5
"""CPU seconds to compile a step, per matrix product (measured, see LOG.md)."""


def check_precision(matmul_precision: str, device: str) -> None:
    """Check that the device supports the precision of matrix products.

    Raises:
        EngineError: It does not.
    """
    if matmul_precision == "tf32" and device != "cuda":
        raise EngineError(
            f"matmul_precision is tf32, which {device} does not support. Use --device cuda, or matmul_precision full or bf16."
        )


def compile_s(network: Network) -> float:
    """Estimate the CPU seconds to compile a network's step."""
    return COMPILE_S + COMPILE_S_PER_PRODUCT * network.step_cost().products


def select_engine(requested: Engine, shape: PackShape, device: str) -> Engine:
    """Select the engine of a trial's steps.

    `auto` selects native steps if kernels exist. Otherwise it selects compiled steps if they save more time than compiling
    takes, and eager steps in all other cases, such as on a GPU. Whatever the request, steps are eager if the network has a
    handwritten step or matrix products are in bf16, where compiled steps did not always agree with eager ones (LOG.md).

    Raises:
        EngineError: Native or compiled steps were requested, but do not support these trials.
    """
    if _is_native(requested, native_unsupported_reason(shape, device)):
        return Engine.NATIVE
    if shape.network.has_step_by_hand:
        return Engine.EAGER
    if (reason := _eager_only_reason(shape)) is not None:
        problem = f"{reason}, which compiled steps do not support. Train with --engine auto."
    elif not shape.network.is_compilable:
        problem = f"the step of {type(shape.network).__name__} is not compiled. Train with --engine auto."
    elif shape.matmul_precision == "bf16":
        return Engine.EAGER
    elif device != "cpu":
        problem = f"compiled steps run on CPUs only, and the device is {device}. Train with --engine auto, which replays eager "
        problem += "steps on a GPU."
    elif requested is not Engine.AUTO:
        return requested
    else:
        saved_s = steps_s(shape) * (1 - 1 / SPEED_UP)  # polish and measurements are not compiled
        return Engine.COMPILED if saved_s > compile_s(shape.network) else Engine.EAGER
    if requested is Engine.COMPILED:
        raise EngineError(problem)
    return Engine.EAGER


def select_engine_by_hand(requested: Engine, device: str) -> Engine:
    """Select native or eager steps for trials with kernels and a handwritten eager step.

    Raises:
        EngineError: Native steps were requested on a device other than the CPU.
    """
    return Engine.NATIVE if _is_native(requested, _device_reason(device)) else Engine.EAGER


def _is_native(requested: Engine, unsupported_reason: str | None) -> bool:
    if requested is Engine.NATIVE and unsupported_reason is not None:
        raise EngineError(f"native steps do not support these trials: {unsupported_reason}. Train with --engine auto.")
    return requested in (Engine.AUTO, Engine.NATIVE) and unsupported_reason is None


def _device_reason(device: str) -> str | None:
    return None if device == "cpu" else f"kernels run on CPUs only, and the device is {device}"


def available_engine(requested: Engine) -> tuple[Engine, str | None]:
    """Replace `auto` by eager if this machine has no compiler. Return the engine and the reason for a replacement."""
    if requested is Engine.AUTO:
        try:
            compiler()
        except NoCompilerError as error:
            return Engine.EAGER, f"trials train eagerly, because {error}"
    return requested, None


def native_unsupported_reason(shape: PackShape, device: str) -> str | None:
    """Return the reason why native steps do not support these trials, or None if they do."""
    if shape.network.kernels() is None:
        return (
            "kernels exist for residual networks (arch rn1 and rn2), transformers (t11 to t22), unconstrained features "
            f"(dufm, ufm, mufm) and words, not for {type(shape.network).__name__}"
        )
    if (reason := _eager_only_reason(shape)) is not None:
        optimizers = " and ".join(ENGINE_OPTIMIZERS)
        return f"{reason}, and kernels support only {optimizers} on in-memory data with one class per sample"
    if shape.matmul_precision != "full":
        return f"matmul_precision is {shape.matmul_precision}, and kernels compute products in full precision"
    return _device_reason(device)


def _eager_only_reason(shape: PackShape) -> str | None:
    """Return a property of the trials that only eager steps support, or None."""
    if shape.data.has_targets:
        return "targets are numbers"
    if shape.data.stream is not None:
        return "samples are streamed"
    if shape.data.labels_tokens:
        return "each token has a label"
    if shape.label_smoothing:
        return f"label_smoothing is {shape.label_smoothing}"
    return None if shape.optimizer in ENGINE_OPTIMIZERS else f"optimizer is {shape.optimizer}"
