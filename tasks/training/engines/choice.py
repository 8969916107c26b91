"""Choice of the engine of a trial's steps, native or eager. Importable without torch.

The choice depends on the trial's shape but never on its pack, so that a trial's numbers do not depend on the pack either.
"""

from depthrate.tasks.interface import Engine
from depthrate.tasks.native.compiler import EngineError, NoCompilerError, compiler
from depthrate.tasks.training.cost import PackShape
from depthrate.tasks.training.training_plan import ENGINE_OPTIMIZERS


def check_precision(matmul_precision: str, device: str) -> None:
    """Check that the device supports the precision of matrix products.

    Raises:
        EngineError: It does not.
    """
    if matmul_precision == "tf32" and device != "cuda":
        raise EngineError(
            f"matmul_precision is tf32, which {device} does not support. Use --device cuda, or matmul_precision full or bf16."
        )


def select_engine(requested: Engine, shape: PackShape, device: str) -> Engine:
    """Select the engine of a trial's steps. `auto` selects native steps if kernels exist, and otherwise eager steps.

    Raises:
        EngineError: Native steps were requested, but do not support these trials.
    """
    return _select(requested, native_unsupported_reason(shape, device))


def select_engine_on(device: str, requested: Engine) -> Engine:
    """Select the engine of trials whose steps all have kernels, so that only the device decides.

    Raises:
        EngineError: Native steps were requested on a device other than the CPU.
    """
    return _select(requested, _device_reason(device))


def _select(requested: Engine, unsupported_reason: str | None) -> Engine:
    if requested is Engine.EAGER:
        return Engine.EAGER
    if unsupported_reason is None:
        return Engine.NATIVE
    if requested is Engine.NATIVE:
        raise EngineError(f"native steps do not support these trials: {unsupported_reason}. Train with --engine auto.")
    return Engine.EAGER


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
    network = shape.network
    if device not in ("cpu", "cuda"):
        return f"kernels run on CPUs and CUDA GPUs only, and the device is {device}"
    if shape.matmul_precision != "full":
        return f"matmul_precision is {shape.matmul_precision}, and kernels compute products in full precision"
    if shape.optimizer not in ENGINE_OPTIMIZERS:
        return f"optimizer is {shape.optimizer}, and kernels support only {' and '.join(ENGINE_OPTIMIZERS)}"
    if network.has_factors(shape.optimizer):
        return "parametrisation gives parameters different learning rates, and kernels support only equal ones"
    if shape.data.stream is not None:
        return "samples are streamed, and kernels read samples in memory"
    if network.kernels() is not None and shape.has_classes and device == "cpu":
        return None
    if network.has_generated_steps is False:
        return f"there are no kernels for {type(network).__name__} on this device ({device})"
    if network.has_generated_steps:
        return None
    from depthrate.tasks.training.engines.generated import generation_fault  # imports torch

    return generation_fault(network, shape.data, shape.dtype, shape.batch_size, shape.label_smoothing)
