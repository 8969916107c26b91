"""`depthrate show`: print a sweep with its base, --set and file paths resolved."""

import click

from depthrate.orchestrator.api.find_sweep import sweep_to_launch
from depthrate.orchestrator.api.planning import overrides_of
from depthrate.orchestrator.cli.options import declared, json_option, store_option, sweep_argument
from depthrate.orchestrator.console.tables import counted, print_json, print_line
from depthrate.orchestrator.launch.launch_plan import check_sweep
from depthrate.sweeps.trial import varying_parameters
from depthrate.sweeps.yaml_file import yaml_text


@declared(__doc__)
@sweep_argument("sweep")
@store_option
@click.option("--set", "set_", multiple=True, metavar="KEY=VALUE", help="Override a parameter, as in run.")
@json_option
def command(sweep: str, store: str | None, set_: tuple[str, ...], json: bool) -> None:
    resolved = sweep_to_launch(sweep, overrides_of(set_), store)
    trials = check_sweep(resolved).trials
    if json:
        print_json({"spec": resolved.spec(), "trials": [trial.params for trial in trials]})
        return
    print(yaml_text(resolved.spec()), end="")
    varying = ", ".join(varying_parameters(trials)) if trials else ""
    print_line(f"# {counted(len(trials), 'trial')}{f', varying in {varying}' if varying else ''}")
