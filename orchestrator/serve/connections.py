"""HTTP connections with a time limit for requests and a limit per client, which uvicorn does not have."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_TIMEOUT_S = 10.0
"""Longest wait for a whole request, headers and body, from its first byte or from the connection's start."""
MAX_CONNECTIONS_PER_CLIENT = 100
"""Open connections allowed per address. A browser opens about six. Half of `server.MAX_CONNECTIONS` stays free for other
clients.
"""


class BoundedConnection(H11Protocol):
    """A connection that is closed when its request stays incomplete or its client has too many connections."""

    _timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit, or close the connection at once."""
        super().connection_made(transport)
        if sum(_host(other) == _host(self) for other in self.connections) > MAX_CONNECTIONS_PER_CLIENT:
            self.transport.close()
        else:
            self._watch_request()

    def data_received(self, data: bytes) -> None:
        """Start the time limit with a request's first bytes, and end it with the last bytes."""
        super().data_received(data)
        self._watch_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the time limit."""
        self._cancel_timeout()
        super().connection_lost(exc)

    def _watch_request(self) -> None:
        is_whole = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        if is_whole or self.transport.is_closing():
            self._cancel_timeout()
        elif self._timeout is None:
            self._timeout = self.loop.call_later(REQUEST_TIMEOUT_S, self.transport.close)

    def _cancel_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None


def _host(connection: object) -> str | None:
    client = getattr(connection, "client", None)
    return client[0] if client else None
