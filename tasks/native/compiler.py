"""The C++ compiler of this machine, and the errors of steps that need one."""

import os
import shutil

from depthrate.errors import InputError


class EngineError(InputError):
    """Raised when steps cannot run with the requested engine or precision."""


class NoCompilerError(EngineError):
    """Raised when neither a built library nor a compiler is available on this machine."""


def compiler() -> str:
    """Return the path of the C++ compiler.

    Raises:
        NoCompilerError: It is not on PATH.
    """
    name = os.environ.get("CXX") or "g++"
    path = shutil.which(name)
    if path is None:
        raise NoCompilerError(
            f"the C++ compiler {name!r} is not on PATH, but native steps need one. Either install g++, set CXX to "
            "another compiler, or train with --engine eager."
        )
    return path
