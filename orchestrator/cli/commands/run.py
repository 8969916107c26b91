"""`depthrate run`: run a sweep's pending trials and fit the rates. Run again to resume."""

from depthrate.orchestrator.attempts.options import LaunchOptions
from depthrate.orchestrator.cli.launch_options import SUGGESTIONS, launch_options
from depthrate.orchestrator.cli.launch_output import run_sweep
from depthrate.orchestrator.cli.options import declared
from depthrate.orchestrator.launch.outcome import RunState

EXIT_CODES = {
    RunState.COMPLETE: 0,
    RunState.DETACHED: 0,
    RunState.PROBED: 0,
    RunState.INCOMPLETE: 1,
    RunState.NO_METRIC: 2,
    RunState.INTERRUPTED: 130,
}


@declared(__doc__, SUGGESTIONS)
@launch_options(of_plan=False)
def command(options: LaunchOptions) -> int:
    return EXIT_CODES[run_sweep(options)]
