"""One launch, one object: an option is declared once and is on the command line, in notebooks, and in the file of a job."""

import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import depthrate
from depthrate.orchestrator.attempts.options import JobOptions, OptionError
from depthrate.orchestrator.attempts.spec import AttemptSpec
from depthrate.orchestrator.cli.app import app
from depthrate.orchestrator.executors.registry import launch_options, make_launch_options
from depthrate.storage.files.store import Store
from tests.support.here import printed, refused

ROOT = Path(__file__).parents[3]
RUN_FILES = [*(ROOT / "orchestrator").rglob("*.py")]
TASK = """
import os, depthrate

@depthrate.task(version=1)
def niceness(*, seed: int = 0, context):
    return {"metrics": [{"step": 0, "layer": 0, "niceness": float(os.getpriority(os.PRIO_PROCESS, 0))}]}
"""


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    (tmp_path / "nice_task.py").write_text(TASK)
    path = tmp_path / "nice.yaml"
    path.write_text("name: nice\ntask: ./nice_task.py:niceness\nseeds: 1\n")
    return path


def niceness(store: str) -> list[float]:
    return [row[0] for row in depthrate.open(store).sql("select niceness from metrics order by 1").fetchall()]


@pytest.mark.slow
def test_niceness_from_both_sides(sweep: Path, tmp_path: Path) -> None:
    ours, (here, there) = os.getpriority(os.PRIO_PROCESS, 0), (str(tmp_path / "a"), str(tmp_path / "b"))
    words = ["run", sweep, "--workers", "1", "--store", here, "--nice", "3"]
    printed(*words)
    depthrate.load(sweep).run(there, workers=1, nice=2)
    assert (niceness(here), niceness(there)) == ([ours + 3.0], [ours + 2.0])
    assert "--nice needs --executor local, but --executor is slurm" in refused(*words, "--executor", "slurm")


def test_command_line_and_notebook_share_options(sweep: Path) -> None:
    helped = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "200"}).output
    planned = CliRunner().invoke(app, ["plan", "--help"], env={"COLUMNS": "200"}).output
    for option in launch_options():
        assert option.flag in helped and (option.flag in planned) == option.in_plan, option.name
    with pytest.raises(TypeError, match="unknown option of run: chekpoint. Allowed: executor, .* notify"):
        depthrate.load(sweep).run(chekpoint=3)
    for given, message in (
        ({"stall_minutes": -1}, "stall_minutes is -1, expected a number >= 0"),
        ({"workers": "two"}, "workers is 'two', expected an int"),
        ({"rerun": 1}, "rerun is 1, expected true or false"),
        ({"nice": -3}, "nice is -3, expected an int >= 0"),
    ):
        with pytest.raises(OptionError, match=message):
            depthrate.load(sweep).run(**given)
    with pytest.raises(ValueError, match="--rerun and --keep-results are mutually exclusive"):
        depthrate.load(sweep).run(rerun=True, keep_results=True)


def test_options_travel_as_json(folder: Store) -> None:
    asked = make_launch_options("s", {"workers": 3, "nice": 4, "set_": ["depth=2"], "store": folder.url})
    of_jobs = JobOptions(
        **vars(asked) | {"store": folder.address, "data": "", "device": "cpu"}, git_sha="g", git_dirty=False
    )
    job = AttemptSpec(pack_id="p", trial_ids=["t"], params=[{}], attempt_id="a", sweep="s", task="t", options=of_jobs)
    assert vars(AttemptSpec.from_json(job.to_json()).options) == vars(of_jobs) | {
        "set_": ["depth=2"],
        "accepted_codes": [],
    }


@pytest.mark.parametrize(
    ("use", "file"),
    [
        (r"\boptions\.checkpoint_seconds\b", "worker/context.py"),
        (r"\boptions\.keep_results\b", "launch/code_changes.py"),
        (r"\boptions\.notify\b", "cli/launch_output.py"),
        (r"\bNICE\b", "executors/local.py"),
    ],
)
def test_option_declared_and_used(use: str, file: str) -> None:
    """Two files: `attempts/options.py`, or an executor's own, and where it does something; nobody hands it on by name."""
    files = {
        path.relative_to(ROOT / "orchestrator").as_posix() for path in RUN_FILES if re.search(use, path.read_text())
    }
    assert file in files and files <= {file, "api/run.py"}, "run.py refuses options that contradict each other"
