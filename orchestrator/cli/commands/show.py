"""`depthrate show`: print a sweep as it is read: its base, --set and the paths of your files filled in."""

from __future__ import annotations

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
@click.option("--set", "set_", multiple=True, metavar="KEY=VALUE", help="Replace a parameter, as run does.")
@json_option
def command(sweep: str, store: str | None, set_: tuple[str, ...], json: bool) -> None:
    found = sweep_to_launch(sweep, overrides_of(set_), store)
    trials = check_sweep(found).trials
    if json:
        print_json({"spec": found.spec(), "trials": [trial.params for trial in trials]})
        return
    print(yaml_text(found.spec()), end="")
    varying = ", ".join(varying_parameters(trials)) if trials else ""
    print_line(f"# {counted(len(trials), 'trial')}{f', which differ in {varying}' if varying else ''}")
