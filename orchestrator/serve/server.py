"""Prepare the server of a store's pages."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from depthrate.orchestrator.console.errors import UsageError
from depthrate.storage.files.store import Store

if TYPE_CHECKING:
    import uvicorn

MAX_CONNECTIONS = 200
STOPPED_AFTER_S = 5
"""Grace period of open requests on shutdown, in seconds."""


@dataclass(frozen=True)
class Listening:
    """A server that has bound its port and waits for `run`."""

    server: uvicorn.Server
    socket: socket.socket
    address: str
    tunnel: str = ""
    """Command that makes the address work on another machine, if only this one reaches it."""

    def run(self) -> None:
        """Serve until stopped."""
        self.server.run(sockets=[self.socket])


def listen(store: Store, host: str, port: int, *, with_token: bool, writes: bool = False) -> Listening:
    """Prepare a server of a store.

    Raises:
        UsageError: Starlette or uvicorn is not installed, or nothing can listen at that address.
    """
    try:
        import uvicorn

        from depthrate.orchestrator.serve.access import is_loopback, own_names
        from depthrate.orchestrator.serve.connections import BoundedConnection
        from depthrate.orchestrator.serve.web import make_app
    except ImportError as error:
        raise UsageError(
            f"depthrate serve needs Starlette and uvicorn ({error}). Install them: pip install 'depthrate[serve]'"
        ) from None
    listening = _listen(host, port)
    port = listening.getsockname()[1]
    token = secrets.token_urlsafe(24) if with_token or not is_loopback(host) else None
    # a browser sends a cookie to all ports of a host, so each server uses its own cookie
    app = make_app(store, names=own_names(host), token=token, cookie=f"depthrate_{port}", writes=writes)
    settings = uvicorn.Config(
        app,
        http=BoundedConnection,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=STOPPED_AFTER_S,
    )
    address = f"http://{_shown(host)}:{port}/" + (f"?token={token}" if token else "")
    tunnel = f"ssh -L {port}:localhost:{port} {socket.gethostname()}" if is_loopback(host) else ""
    return Listening(uvicorn.Server(settings), listening, address, tunnel)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
        listening.listen()  # the address is printed before the server runs: connections wait until it does
    except OSError as error:
        why = error.strerror or error
        raise UsageError(
            f"cannot listen at {host}, port {port}: {why}. Give another --port (0: any free port) or --host."
        ) from None
    return listening


def _shown(host: str) -> str:
    """Format a host for a URL. A wildcard address becomes the machine's name."""
    if host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
