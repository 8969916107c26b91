"""`depthrate init`: write a commented sweep and a task of your own to start from."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console

from depthrate.orchestrator.cli.options import FILE, declared
from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.console.output_file import write_output
from depthrate.orchestrator.console.tables import make_console
from depthrate.sweeps.json_schema import sweep_schema
from depthrate.tasks.registry import registered_tasks

SCHEMA_FILE = "sweep.schema.json"
SWEEP_TEMPLATE = """\
# yaml-language-server: $schema=sweep.schema.json
# depthrate plan sweep.yaml    what would run        depthrate run sweep.yaml       run it, or go on with it
# depthrate tasks collapse     all parameters        depthrate report mine          the picture
name: mine
task: collapse                # or a task of your own: ./my_task.py:power_law
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
  - {metric: nc1, x: depth}   # by: [weight_decay] makes a curve of each value
"""
TASK = '''\
"""A task of my own: its keyword arguments are the parameters that a sweep may set."""

import numpy as np

import depthrate


@depthrate.task(version=1)  # raise the version when results change
def power_law(*, depth: int, exponent: float = 0.5, noise: float = 0.1, seed: int = 0, context):
    """One trial: put in its place what you train and measure."""
    rng = np.random.default_rng(seed)
    value = depth**-exponent * np.exp(noise * rng.normal())
    return {"metrics": [{"layer": depth, "nc1": value}]}  # a row a layer; columns of your own are kept as well
'''


def write_start(folder: Path, console: Console) -> None:
    """Write a sweep, a task and the schema by which editors check sweeps into a folder; nothing is overwritten.

    Killed on the way it goes on when it is called again.

    Raises:
        UsageError: one of the files is there already, or cannot be written.
    """
    contents = {"sweep.yaml": SWEEP_TEMPLATE, "my_task.py": TASK, SCHEMA_FILE: schema_text()}
    there = [name for name in contents if (folder / name).exists()]
    is_begun = len(there) < len(contents) and all(_holds(folder / name, contents[name].encode()) for name in there)
    if there and not is_begun:
        raise UsageError(f"{folder / there[0]} is there already and is not overwritten; give another folder")
    for name, text in contents.items():
        write_output(folder / name, text)
    for name, what in (("sweep.yaml", "a sweep"), ("my_task.py", "a task"), (SCHEMA_FILE, "what editors check it by")):
        console.print(f"wrote {folder / name}: {what}")
    console.print(f"next: depthrate plan {folder / 'sweep.yaml'}")


def _holds(path: Path, content: bytes) -> bool:
    """Whether a file is there with this content; nothing is read of what is no file, or larger."""
    return path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content


def schema_text() -> str:
    """Return the JSON schema of sweep files."""
    return json.dumps(sweep_schema(registered_tasks()), indent=1) + "\n"


@declared(__doc__)
@click.argument("folder", type=FILE, default=Path(), help="A folder; default: this one.")
def command(folder: Path) -> None:
    write_start(folder, make_console())
