"""`depthrate schema`: print the JSON schema of sweep files, for completion in editors."""

from depthrate.orchestrator.cli.commands.init import schema_text
from depthrate.orchestrator.cli.options import declared


@declared(__doc__)
def command() -> None:
    print(schema_text(), end="")
