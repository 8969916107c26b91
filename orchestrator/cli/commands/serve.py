"""`depthrate serve`: show a store in a browser, as it lives: sweeps, trials, curves, figures, logs, SQL; it changes nothing."""

from __future__ import annotations

import secrets
import socket

import click

from depthrate.orchestrator.cli.options import Number, declared, store_option
from depthrate.orchestrator.console.errors import UsageError
from depthrate.storage.files.store import Store, existing_store

PORT = 8377
MOST_CONNECTIONS = 200


def serve(store: Store, host: str, port: int, *, with_token: bool, timeout_s: float, memory_gb: float) -> None:
    """Show a store until the process is interrupted.

    Raises:
        UsageError: Starlette or uvicorn is not installed, or nothing can listen at that address.
    """
    try:
        import uvicorn

        from depthrate.orchestrator.cli.serve.access import is_loopback, own_names
        from depthrate.orchestrator.cli.serve.sql import Limits
        from depthrate.orchestrator.cli.serve.web import make_app
    except ImportError as error:
        raise UsageError(
            f"depthrate serve needs Starlette and uvicorn ({error}); install them: pip install 'depthrate[serve]'"
        ) from None
    listening = _listen(host, port)
    port = listening.getsockname()[1]
    token = secrets.token_urlsafe(24) if with_token or not is_loopback(host) else None
    limits = Limits(timeout_s, memory_gb)
    # a browser sends a cookie to all ports of a host: each server has its own
    app = make_app(store, limits=limits, names=own_names(host), token=token, cookie=f"depthrate_{port}")
    address = f"http://{_shown(host)}:{port}/" + (f"?token={token}" if token else "")
    print(f"{store.url} at {address} (read-only; Ctrl-C ends it)", flush=True)
    settings = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, limit_concurrency=MOST_CONNECTIONS
    )
    uvicorn.Server(settings).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
    except OSError as error:
        why = error.strerror or error
        raise UsageError(
            f"cannot listen at {host}, port {port}: {why}; give another --port (0: any that is free), or --host"
        ) from None
    return listening


def _shown(host: str) -> str:
    """Return the host as an address has it; of all of this machine's, its name."""
    if host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


@declared(__doc__)
@store_option
@click.option("--host", default="127.0.0.1", help="Where to listen; beyond this machine a token is asked for.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, help="0: any that is free.")
@click.option("--token", is_flag=True, help="Ask for a token on this machine too, where others have accounts.")
@click.option(
    "--timeout", type=Number(min=0.0, min_open=True), default=30.0, help="Seconds after which a query is ended."
)
@click.option("--memory", type=Number(min=0.05), default=1.0, help="GB that all queries together may take.")
def command(store: str | None, host: str, port: int, token: bool, timeout: float, memory: float) -> None:
    serve(existing_store(store), host, port, with_token=token, timeout_s=timeout, memory_gb=memory)
