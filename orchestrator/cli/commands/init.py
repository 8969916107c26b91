"""`depthrate init`: write a commented sweep and a custom task to start from."""

import json
from pathlib import Path

import click

from depthrate.orchestrator.cli.options import FILE, declared
from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.console.output_file import write_output
from depthrate.orchestrator.console.tables import make_console
from depthrate.sweeps.json_schema import sweep_schema
from depthrate.tasks.registry import registered_tasks

SCHEMA_FILE = "sweep.schema.json"
SWEEP_TEMPLATE = """\
# yaml-language-server: $schema=sweep.schema.json
# depthrate plan sweep.yaml    list pending trials   depthrate run sweep.yaml       run or resume it
# depthrate tasks collapse     list all parameters   depthrate report mine          write the report
name: mine
task: collapse                # or a custom task: ./my_task.py:power_law
params:                       # fixed
  arch: rn1
  dataset: digits             # depthrate data list
  width: 32
  steps: 500
grid:                         # every combination
  depth: [2, 3, 5, 8]
  # weight_decay: {logspace: [1.0e-3, 1.0e-2, 3]}
# derive:                     # arithmetic on other parameters
#   lr: 0.5 / depth
seeds: 3                      # seed: 0, 1, 2
fit:
  - {metric: nc1, x: depth}   # by: [weight_decay] fits one curve per value
"""
TASK = '''\
"""A custom task: its keyword arguments are the parameters that a sweep may set."""

import numpy as np

import depthrate


@depthrate.task(version=1)  # raise the version when results change
def power_law(*, depth: int, exponent: float = 0.5, noise: float = 0.1, seed: int = 0, context):
    """Run one trial: replace this with your training and metrics."""
    rng = np.random.default_rng(seed)
    value = depth**-exponent * np.exp(noise * rng.normal())
    return {"metrics": [{"layer": depth, "nc1": value}]}  # one row per layer; custom columns are stored too
'''


def _has_content(path: Path, content: bytes) -> bool:
    """Return whether a path is a file with this content. Only files of this size are read."""
    return path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content


def schema_text() -> str:
    """Return the JSON schema of sweep files."""
    return json.dumps(sweep_schema(registered_tasks()), indent=1) + "\n"


@declared(__doc__)
@click.argument("folder", type=FILE, default=Path(), help="Folder to write to. Default: the current one.")
def command(folder: Path) -> None:
    contents = {"sweep.yaml": SWEEP_TEMPLATE, "my_task.py": TASK, SCHEMA_FILE: schema_text()}
    existing = [name for name in contents if (folder / name).exists()]
    # after an interruption, the next call completes the files
    is_partial = len(existing) < len(contents) and all(
        _has_content(folder / name, contents[name].encode()) for name in existing
    )
    if existing and not is_partial:
        raise UsageError(f"{folder / existing[0]} exists already and is not overwritten. Give another folder.")
    for name, text in contents.items():
        write_output(folder / name, text)
    console = make_console()
    for name, role in (("sweep.yaml", "sweep"), ("my_task.py", "task"), (SCHEMA_FILE, "schema of sweeps for editors")):
        console.print(f"wrote {folder / name} ({role})")
    console.print(f"next: depthrate plan {folder / 'sweep.yaml'}")
