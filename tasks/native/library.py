"""ctypes interface of a kernel library: the call structures and the functions.

Shapes: T trials, S steps, N samples, B batch, I input dimensions, G groups of weight decay, P parameters of one trial,
L layers, M LayerNorms, D width. For sentences: V words, K classes, M inputs of the linear layer.
"""

import ctypes
from typing import ClassVar

from depthrate.errors import InputError


class Mirror(ctypes.Structure):
    """Mirror of a C++ structure whose size and version libraries export."""

    version: ClassVar[int]
    """Version of the C++ structure."""


class Call(Mirror):
    """Mirror `Call` of tasks/native/steps.h: addresses of numbers of the library's type, or of int64, without gaps."""

    version = 3
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("num_trials", "num_steps", "num_parameters", "depth", "batch")),
        *((name, ctypes.c_int64) for name in ("last_bias", "is_mse", "is_adam")),
        *((name, ctypes.c_double) for name in ("clip_norm", "beta1", "beta2", "adam_eps", "ln_eps")),
        *((name, ctypes.c_void_p) for name in ("theta_TP", "first_TP", "second_TP", "x_NI", "labels_N", "order")),
        ("order_row", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("decay_GT", "momentum_T", "rate_ST", "correction_S")),
        *((name, ctypes.c_int64) for name in ("first_step", "look_every")),
        *((name, ctypes.c_void_p) for name in ("loss_T", "diverged_at_T", "scratch", "smoothing_T")),
        ("barrier", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("gradient_TP", "correct_T", "features_LND", "scales_MN", "state_TS")),
        ("num_state", ctypes.c_int64),
        ("table", ctypes.c_void_p),
    ]


class WordsCall(Mirror):
    """Mirror `Call` of tasks/native/words.cpp: an embedding and a linear layer over sentences."""

    version = 1
    _fields_ = [
        *(
            (name, ctypes.c_int64)
            for name in ("num_trials", "num_steps", "batch", "vocabulary", "first_step", "look_every")
        ),
        ("ln_eps", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("words_TVD", "linear_TKM", "word_scale_T", "linear_scale_T", "rate_ST")),
        *(
            (name, ctypes.c_void_p)
            for name in ("word_decay_T", "linear_decay_T", "sentences_T", "order_ST", "per_class_T")
        ),
        *((name, ctypes.c_void_p) for name in ("begins_ST", "epoch_T3", "loss_T", "diverged_at_T", "scratch")),
    ]


AnyCall = Call | WordsCall


class CallMismatchError(InputError):
    """Raised when a library's structures differ from Python's."""


class Library:
    """The kernels of one family of networks and one set of constants."""

    device = "cpu"
    """Device whose memory calls point to."""

    def __init__(self, library: ctypes.CDLL, call: type[AnyCall] = Call):
        """Bind the functions of a library with this call structure.

        Raises:
            CallMismatchError: The library was built with another structure.
        """
        check_layout(library, "call", call)
        self._scratch_bytes, self._run = library.scratch_bytes, library.run
        self._scratch_bytes.restype, self._run.restype = ctypes.c_int64, None
        self._library = library

    def scratch_bytes(self, call: AnyCall) -> int:
        """Return the number of bytes, initially zero, that a call needs at `scratch`."""
        return int(self._scratch_bytes(ctypes.byref(call)))

    def run(self, call: AnyCall) -> None:
        """Take `num_steps` steps of every trial in place, or evaluate the trials, without holding Python's GIL."""
        self._run(ctypes.byref(call))

    def evaluate(self, call: Call) -> None:
        """Compute every trial's loss and gradient over all samples, or a trial's layers, if kernels have `gives_layers`."""
        self._library.evaluate(ctypes.byref(call))


def check_layout(library: ctypes.CDLL, name: str, mirror: type[Mirror]) -> None:
    """Check that a library exports the size and the version of a structure (`EXPORT_LAYOUT`) that its mirror has.

    Raises:
        CallMismatchError: It exports others, or none.
    """
    exported, mirrored = _exported_layout(library, name), (ctypes.sizeof(mirror), mirror.version)
    if exported != mirrored:
        raise CallMismatchError(
            f"its struct {name} has (bytes, version) {exported}, but {mirror.__name__} in {mirror.__module__} has {mirrored}"
        )


def _exported_layout(library: ctypes.CDLL, name: str) -> tuple[int, int] | None:
    try:
        size, version = getattr(library, f"{name}_bytes"), getattr(library, f"{name}_version")
    except AttributeError:
        return None
    size.restype = version.restype = ctypes.c_int64
    return int(size()), int(version())
