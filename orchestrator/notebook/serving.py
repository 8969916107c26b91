"""Serve a store to browsers from a notebook, in the background."""

from __future__ import annotations

import html
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from depthrate.orchestrator.notebook.sweep import StoreUrl
from depthrate.storage.files.store import existing_store

if TYPE_CHECKING:
    from depthrate.orchestrator.serve.server import Listening

SERVER_START_TIMEOUT_S = 30.0
"""Seconds to wait until the server accepts connections."""


class Server:
    """A running server of a store, until `stop` or the end of a `with` block. A notebook shows a link to it."""

    def __init__(self, listening: Listening):
        self._server = listening.server
        self._thread = threading.Thread(target=listening.run, name="serve", daemon=True)
        self.url = listening.address
        """Address, with the token if one is required."""
        self._thread.start()
        ends_at = time.monotonic() + SERVER_START_TIMEOUT_S
        while not self._server.started and self._thread.is_alive() and time.monotonic() < ends_at:
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop the server and wait until it has stopped."""
        self._server.should_exit = True
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"{self.url} ({'read-only, stop with .stop()' if self._thread.is_alive() else 'stopped'})"

    def _repr_html_(self) -> str:
        address = html.escape(self.url, quote=True)
        return (
            f'<a href="{address}" target="_blank">{address}</a>' if self._thread.is_alive() else html.escape(repr(self))
        )


def serve(
    store: StoreUrl = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: bool = False,
) -> Server:
    """Serve a store to browsers, as `depthrate serve` does, and return at once.

    Args:
        store: Folder or fsspec URL. Default: DEPTHRATE_STORE, else ./results.
        host: Address to listen on. Other than localhost, a token is required.
        port: Port to listen on, 0 for any free port.
        token: Whether to require a token on localhost too.
    Returns:
        The running server.
    Raises:
        StoreError: The store does not exist.
        UsageError: Starlette or uvicorn is not installed, or the address cannot be used.
    """
    from depthrate.orchestrator.serve.server import listen

    return Server(listen(existing_store(store), host, port, with_token=token))
