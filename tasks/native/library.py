"""ctypes interface of a kernel library: the call structures and the functions.

Shapes: T trials, S steps, N samples, B batch, I input dimensions, G groups of weight decay, P parameters of one trial,
L layers, M LayerNorms, D width. For sentences: V words, K classes, M inputs of the linear layer.
"""

import ctypes
from typing import ClassVar

from depthrate.errors import InputError


class Call(ctypes.Structure):
    """Mirror `Call` of tasks/native/steps.h: addresses of numbers of the library's type, or of int64, without gaps."""

    version: ClassVar[int] = 2
    """Version of the C++ structure that this one mirrors."""
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
    ]


class WordsCall(ctypes.Structure):
    """Mirror `Call` of tasks/native/words.cpp: an embedding and a linear layer over sentences."""

    version: ClassVar[int] = 1
    """Version of the C++ structure that this one mirrors."""
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
    """Raised when a library's call structure differs from Python's."""


class Library:
    """The kernels of one family of networks and one set of constants."""

    device = "cpu"
    """Device whose memory calls point to."""

    def __init__(self, library: ctypes.CDLL, call: type[AnyCall] = Call):
        """Bind the functions of a library with this call structure.

        Raises:
            CallMismatchError: The library was built with another structure.
        """
        compiled, mirrored = _exported_call(library), (ctypes.sizeof(call), call.version)
        if compiled != mirrored:
            raise CallMismatchError(
                f"its struct Call has (bytes, version) {compiled}, but {call.__name__} in {__name__} has {mirrored}"
            )
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


def _exported_call(library: ctypes.CDLL) -> tuple[int, int] | None:
    """Read the size and version of a library's `Call`, or None if the library does not export them."""
    try:
        size, version = library.call_bytes, library.call_version
    except AttributeError:
        return None
    size.restype = version.restype = ctypes.c_int64
    return int(size()), int(version())
