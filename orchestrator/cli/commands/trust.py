"""`depthrate trust`: allow refused code to run for your user, after you have read it. A changed file is refused again."""

import click

from depthrate.orchestrator.cli.options import declared
from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.console.tables import make_console
from depthrate.tasks.code.trust import accept, is_hash
from depthrate.tasks.code.unpack import unpacked_files


@declared(__doc__)
@click.argument("content_hash", metavar="HASH", help="Hash of the code, as printed by the command that refused it.")
def command(content_hash: str) -> None:
    if not is_hash(content_hash):
        raise UsageError(
            f"{content_hash!r} is not a code hash. Give all 32 hex digits, as printed by the command that refused the code."
        )
    folder, files = unpacked_files(content_hash)
    if not files:
        raise UsageError(
            f"no code with hash {content_hash} was refused on this machine ({folder} has none). Repeat the command that "
            "refused it, and read the files that it lists."
        )
    try:
        accept(content_hash)
    except OSError as error:
        raise UsageError(f"cannot store that this code is trusted: {error}") from None
    console = make_console()
    for path in files:
        console.print(str(path), soft_wrap=True)
    console.print("trusted: depthrate may run these files for your user, as long as they do not change")
