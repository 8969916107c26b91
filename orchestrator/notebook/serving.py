"""A store shown in a browser from a notebook, as `depthrate serve` does, while the notebook goes on."""

from __future__ import annotations

import html
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from depthrate.orchestrator.notebook.sweep import StoreUrl

if TYPE_CHECKING:
    from depthrate.orchestrator.serve.server import Listening

SERVER_START_TIMEOUT_S = 30.0


class Server:
    """A store that is shown until `stop`, or the end of a `with` block, or of the process; a notebook shows a link to it."""

    def __init__(self, listening: Listening):
        self._server = listening.server
        self._thread = threading.Thread(target=listening.run, name="serve", daemon=True)
        self.url = listening.address
        """Where it is, the token included where one is asked for."""
        self._thread.start()
        ends_at = time.monotonic() + SERVER_START_TIMEOUT_S
        while not self._server.started and self._thread.is_alive() and time.monotonic() < ends_at:
            time.sleep(0.01)

    def stop(self) -> None:
        """End it, and wait until it has ended."""
        self._server.should_exit = True
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"{self.url} ({'read-only; .stop() ends it' if self._thread.is_alive() else 'ended'})"

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
    timeout: float = 30.0,
    memory: float = 1.0,
) -> Server:
    """Show a store in a browser as `depthrate serve` does, and return at once; port 0 is any that is free.

    token: ask for one on this machine too; timeout, memory: seconds and GB that queries of its page may take.

    Raises:
        StoreError: there is no such store.
        UsageError: Starlette or uvicorn is not installed, or nothing can listen at that address.
    """
    from depthrate.orchestrator.serve.server import listen
    from depthrate.storage.files.store import existing_store

    return Server(listen(existing_store(store), host, port, with_token=token, timeout_s=timeout, memory_gb=memory))
