"""`python -m depthrate.orchestrator.cli.launch_file FILE`: `depthrate run` with options from a file."""

import sys
from pathlib import Path

from depthrate.orchestrator.cli.commands.run import run_options
from depthrate.orchestrator.cli.exit_codes import exit_code
from depthrate.orchestrator.executors.options import LaunchOptions

if __name__ == "__main__":
    options = LaunchOptions.from_json(Path(sys.argv[1]).read_text())
    sys.exit(exit_code(lambda: run_options(options)))
