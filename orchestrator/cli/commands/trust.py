"""`depthrate trust`: allow refused code to run for your user, after you have read it. A changed file is refused again."""

from __future__ import annotations

import click
from rich.console import Console

from depthrate.orchestrator.cli.options import declared
from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.console.tables import make_console
from depthrate.tasks.code.trust import accept, is_hash
from depthrate.tasks.code.unpack import unpacked_files


def trust_code(content_hash: str, console: Console) -> None:
    """Accept the code with this hash for this user, and print the files that it is.

    Raises:
        UsageError: it is no hash, or there is no such code here.
    """
    if not is_hash(content_hash):
        raise UsageError(
            f"{content_hash!r} is no hash of code; give its 32 hex digits, as the command that refused it does"
        )
    folder, files = unpacked_files(content_hash)
    if not files:
        raise UsageError(
            f"no code with the hash {content_hash} was refused on this machine: {folder} holds none; call the command again "
            "that refused it, and read the files that it names"
        )
    try:
        accept(content_hash)
    except OSError as error:
        raise UsageError(f"that this code is accepted cannot be written down: {error}") from None
    for path in files:
        console.print(str(path), soft_wrap=True)
    console.print("these files may be executed from now on, as they are and for you alone")


@declared(__doc__)
@click.argument("content_hash", metavar="HASH", help="Of the code, as the command that refused it says.")
def command(content_hash: str) -> None:
    trust_code(content_hash, make_console())
