"""What is missing where a launch begins ends it in one line that says what to do, and Ctrl-C ends a query. No traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from depthrate.slurm import submit
from depthrate.slurm.command import run_command
from depthrate.slurm.errors import SlurmError
from depthrate.slurm.profile import Profile
from depthrate.slurm.script import import_submitit
from depthrate.storage.files.store import Store
from tests.support.tests_rows import A, commit


def test_submitit_that_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "submitit"] + ["submitit"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SlurmError, match=r"needs submitit .*pip install 'depthrate\[slurm\]'"):
        import_submitit()
    with pytest.raises(SlurmError, match=r"pip install 'depthrate\[slurm\]'"):
        submit.submit_array(Profile(), "name", tmp_path, print, [["a"]])  # type: ignore[arg-type]


def test_no_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "squeue"
    program.write_text(
        "#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(SlurmError) as caught:
        run_command(["squeue", "--me"])
    assert "scontrol ping" in str(caught.value) and "\n" not in str(caught.value)


LATE = """
import sys
from depthrate.orchestrator.executors.ray import session
from depthrate.orchestrator.cli.exit_codes import exit_code
def init(**options):
    print("(raylet) a stack of twenty lines", file=sys.stderr, flush=True)
    raise Exception("The current node timed out during startup.\\nThis could happen because\\n" + "advice\\n" * 40)
session.ray.init = init
sys.exit(exit_code(session.Session(address=None, workers=1).connect))
"""


@pytest.mark.ray
def test_a_ray_that_does_not_start_in_time() -> None:
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=False)
    said = done.stderr.strip().splitlines()
    assert done.returncode == 2 and len(said) == 1, done.stderr
    assert said[0].startswith("depthrate: Ray cannot be started: The current node timed out during startup. If the")


INTERRUPTED = """
import os, signal, sys, threading
from depthrate.orchestrator.cli.app import main
from depthrate.storage.query.results import Results
relation = Results._relation
def interrupted(*given, **options):
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    return relation(*given, **options)
Results._relation = interrupted
sys.argv = ["depthrate", "query", *sys.argv[1:]]
main()
"""
SLOW = "with n as (from range(1000000)) select count(*) from n a, n b, n c, trials"
ONE_CALL = "select levenshtein(repeat('ab', 900000), repeat('ba', 900000)) from trials"


@pytest.mark.parametrize("words", [[SLOW], [ONE_CALL], [ONE_CALL, "-o", "x.csv"]])
def test_ctrl_c_ends_a_query(folder: Store, tmp_path: Path, words: list[str]) -> None:
    commit(folder, A, ["x"])
    variables = {**os.environ, "DEPTHRATE_STORE": folder.url}
    (place := tmp_path / "place").mkdir()
    command = [sys.executable, "-c", INTERRUPTED, *words]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, cwd=place)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert not list(place.iterdir())
