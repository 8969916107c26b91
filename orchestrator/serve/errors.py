"""Errors of the server: reasons why a request gets no answer.

Exception
├── BusyError: all processes are in use, or the store does not answer
├── ClientGoneError: the client has disconnected
└── RenderError: the render process ended, or was terminated, before it answered
"""


class BusyError(Exception):
    """All processes are in use, or the store does not answer."""


class ClientGoneError(Exception):
    """The client has disconnected."""


class RenderError(Exception):
    """The render process ended, or was terminated, before it answered."""
