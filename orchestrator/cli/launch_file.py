"""`python -m depthrate.orchestrator.cli.launch_file FILE`: `depthrate run` with options that another launch left in a file.

As with `python -m depthrate`, what is installed comes before what lies in the working folder.
"""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        sys.path.append(sys.path.pop(0))
    from pathlib import Path

    from depthrate.orchestrator.cli.commands.run import run_sweep
    from depthrate.orchestrator.cli.exit_codes import exit_code
    from depthrate.orchestrator.executors.options import LaunchOptions

    options = LaunchOptions.from_json(Path(sys.argv[1]).read_text())
    sys.exit(exit_code(lambda: run_sweep(options)))
