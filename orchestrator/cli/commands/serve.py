"""`depthrate serve`: show a store in a browser, as it lives: sweeps, trials, curves, figures, logs, SQL; it changes nothing."""

from __future__ import annotations

import click

from depthrate.orchestrator.cli.options import Number, declared, store_option
from depthrate.orchestrator.console.tables import print_line
from depthrate.orchestrator.serve.server import listen
from depthrate.storage.files.store import existing_store

PORT = 8377


@declared(__doc__)
@store_option
@click.option("--host", default="127.0.0.1", help="Where to listen; beyond this machine a token is asked for.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, help="0: any that is free.")
@click.option("--token", is_flag=True, help="Ask for a token on this machine too, where others have accounts.")
@click.option("--timeout-seconds", type=Number(min=0.0, min_open=True), default=30.0, help="Time limit of a query.")
@click.option("--memory-gb", type=Number(min=0.05), default=1.0, help="Memory limit of all queries together.")
def command(store: str | None, host: str, port: int, token: bool, timeout_seconds: float, memory_gb: float) -> None:
    opened = existing_store(store)
    listening = listen(opened, host, port, with_token=token, timeout_s=timeout_seconds, memory_gb=memory_gb)
    print_line(f"{opened.url} at {listening.address} (read-only; Ctrl-C ends it)")
    listening.run()
