"""The error of a network whose step cannot be generated."""

from depthrate.errors import InputError


class CannotGenerateError(InputError):
    """Raised when no kernels can be generated for a network. The message names the operation and fits behind "because"."""
