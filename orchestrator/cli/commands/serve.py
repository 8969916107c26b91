"""`depthrate serve`: show a live store in a browser: sweeps with their rates and curves, trials, logs. Read-only."""

import click

from depthrate.orchestrator.cli.options import declared, store_option
from depthrate.orchestrator.console.tables import print_line
from depthrate.orchestrator.serve.server import listen
from depthrate.storage.files.store import existing_store

PORT = 8377


@declared(__doc__)
@store_option
@click.option("--host", default="127.0.0.1", help="Address to listen on. Other than localhost, a token is required.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, help="Port to listen on, 0 for any free port.")
@click.option("--token", is_flag=True, help="Require a token on localhost too.")
def command(store: str | None, host: str, port: int, token: bool) -> None:
    opened = existing_store(store)
    listener = listen(opened, host, port, with_token=token)
    print_line(f"{opened.url} at {listener.address} (read-only, stop with Ctrl-C)")
    listener.run()
