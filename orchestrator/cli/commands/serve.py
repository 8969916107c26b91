"""`depthrate serve`: explore a live store in a browser: sweeps, rates, curves, trials."""

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
@click.option("--write", is_flag=True, help="Let the pages change tags and notes.")
def command(store: str | None, host: str, port: int, token: bool, write: bool) -> None:
    opened = existing_store(store, writes=write)
    listener = listen(opened, host, port, with_token=token, writes=write)
    print_line(f"{opened.url} at {listener.address} ({'tags and notes' if write else 'read-only'}, stop with Ctrl-C)")
    if listener.tunnel:
        print_line(f"from another machine: {listener.tunnel}, then the same address there")
    listener.run()
