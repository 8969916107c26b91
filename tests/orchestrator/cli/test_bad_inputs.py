"""Several hundred things that users give by mistake: exit code 2, one message, nothing started or written, at once."""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from depthrate.orchestrator.cli.app import app
from depthrate.storage.files.store import Store
from tests.support.bad_inputs import Row, bad_arguments, bad_sweeps
from tests.support.here import TINY, refused
from tests.support.tests_rows import commit

STORE = "there"
SWEEPS, ARGUMENTS = list(bad_sweeps()), list(bad_arguments(STORE))
CPU_S, MEMORY_MB = 10.0, 300.0
"""What refusing may cost, on a slow and busy machine: reading a store or training would take more."""
LETTERS = 700
"""That a message may have: it names all parameters or all shipped sweeps at most."""
AS_PROCESSES = (
    "derive '9**9**9'",
    "search objective 'nc11'",
    "file with a bomb",
    "run --nonsense",
    "run 's3://bucket//x'",
    "query select * from read_csv('/etc/passwd')",
    "report quickstart -o .",
)
"""One for each place that refuses: what it takes to import and to read comes on top of what the tests above measure."""


def some(rows: list[Row]) -> list[Any]:
    """Return the rows as test parameters, of which the fast lane runs every eighth."""
    marks = [() if number % 8 == 0 else (pytest.mark.slow,) for number in range(len(rows))]
    return [pytest.param(*row[1:], id=ascii(row[0])[1:-1], marks=m) for row, m in zip(rows, marks, strict=True)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store in it, in which nothing may change."""
    made = tmp_path_factory.mktemp("bad")
    commit(Store(str(made / STORE)), "20260101T000000_aaaaaaaaaaaa", ["t1", "t2"])
    (made / "bad.yaml").touch()
    return made


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


def write_sweep(folder: Path, change: Any) -> None:
    if not isinstance(change, str):
        is_whole = {"name", "task", "params"} <= change.keys()
        change = yaml.safe_dump(change if is_whole else TINY | change)
    (folder / "bad.yaml").write_bytes(change.encode(errors="surrogatepass"))


def assert_refusal(code: int, output: str, piece: str) -> None:
    """Check that it refuses, in one message, and says this piece of it."""
    message = " ".join(output.replace("│", " ").split())  # the parser of options draws a box round its messages
    assert code == 2, message
    assert message.count("depthrate: ") == 1 or message.startswith("Usage: "), "one message"
    assert piece in message and "Traceback" not in message and len(message) < LETTERS, message
    assert all(letter.isprintable() or letter == "\n" for letter in output), "orders to the terminal"


def refuse_here(arguments: list[str], piece: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call the command line in this process, and check that nothing is started or written, at a small price."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("subprocess.Popen", _nothing_is_started)
    before, used, started = everything(folder), peak_mb(resource.RUSAGE_SELF), time.process_time()
    result = CliRunner().invoke(app, arguments)
    taken_s, used = time.process_time() - started, peak_mb(resource.RUSAGE_SELF) - used
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert_refusal(result.exit_code, result.output, piece)
    assert everything(folder) == before, "something was written"
    assert taken_s < CPU_S and used < MEMORY_MB, f"{taken_s:.1f} s, {used:.0f} MB"


def _nothing_is_started(*_: Any, **__: Any) -> None:
    raise AssertionError("a process was started")


def peak_mb(whose: int) -> float:
    """Return the most memory that this process, or any of its children, has had."""
    return resource.getrusage(whose).ru_maxrss / 1024


@pytest.mark.parametrize(("change", "piece"), some(SWEEPS))
def test_a_bad_sweep(change: Any, piece: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sweep(folder, change)
    refuse_here(["run", "bad.yaml"], piece, folder, monkeypatch)


@pytest.mark.parametrize(("arguments", "piece"), some(ARGUMENTS))
def test_bad_arguments(arguments: list[str], piece: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_here(arguments, piece, folder, monkeypatch)


MEASURED = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print("used", used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, flush=True)
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", AS_PROCESSES)
def test_as_a_process_of_its_own(name: str, folder: Path) -> None:
    (row,) = [row for row in (*SWEEPS, *ARGUMENTS) if row[0] == name]
    arguments = row[1] if isinstance(row[1], list) else ["run", "bad.yaml"]
    if not isinstance(row[1], list):
        write_sweep(folder, row[1])
    before = everything(folder)
    environment = {key: value for key, value in os.environ.items() if key != "DEPTHRATE_STORE"}
    root = str(Path(__file__).parents[3])
    # between it and us a small process: of a child of ours the kernel counts our own memory, from before it became another
    command = [sys.executable, "-S", "-c", MEASURED, sys.executable, "-m", "depthrate", *arguments]
    environment = environment | {"PYTHONPATH": root, "COLUMNS": "80"}
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, cwd=folder, env=environment, check=False, **output)
    output, _, used = done.stdout.rpartition("used ")
    assert_refusal(done.returncode, output, row[2])
    assert everything(folder) == before, "something was written"
    cpu_s, memory_mb = map(float, used.split())
    assert cpu_s < CPU_S and memory_mb < MEMORY_MB, f"{cpu_s:.1f} s, {memory_mb:.0f} MB"


def test_they_are_many() -> None:
    rows = [*SWEEPS, *ARGUMENTS]
    assert len({repr(row[1]) for row in rows}) == len(rows) >= 450, "each is another one"
    assert all(row[2] for row in rows), "each has a piece of what is said"


FEW = """
import numpy as np

X = np.random.default_rng(0).normal(size=(20, 4))


def one():
    return X, np.zeros(20, int)


def none():
    return X[:0], np.zeros(0, int)


def none_held_out():
    return X, np.arange(20) % 2, X[:0], np.zeros(0, int)


def no_numbers():
    return X[:, :0], np.arange(20) % 2


def targets():
    return X[:0], X[:0]


def text():
    tokens = np.zeros((20, 5), int)
    return {"x": tokens, "y": tokens + 1, "vocabulary_size": 3}


class Streamed:
    num_classes = 1

    def __len__(self):
        return 50

    def __getitem__(self, index):
        return X[index % 20], 0
"""
STREAM = ("--set", "stream=true", "--set", "batch_size=4")


@pytest.mark.parametrize(
    ("task", "data", "more", "said"),
    [
        ("collapse", "one", (), "few:one has samples of one class only (0)"),
        ("collapse", "Streamed", STREAM, "few:Streamed has samples of one class only (0)"),
        ("collapse", "none", (), "few:none: the training split has no samples (its x has shape [0, 4])"),
        ("collapse", "none_held_out", (), "the test split has no samples (its x has shape [0, 4])"),
        ("collapse", "no_numbers", (), "20 samples without numbers (its x has shape [20, 0])"),
        ("regression", "targets", (), "few:targets: the training split has no samples (its x has shape [0, 4])"),
        ("next_token", "text", (), "few:text: the next token is 1 everywhere"),
    ],
)
def test_unmeasurable_data_are_refused(
    task: str, data: str, more: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("few.py").write_text(FEW)
    arch = {"collapse": "rn1", "regression": "mlp", "next_token": "t11"}[task]
    spec = f"name: few\ntask: {task}\nparams: {{arch: {arch}, dataset: './few.py:{data}', width: 8, steps: 2}}\n"
    Path("few.yaml").write_text(spec + "grid: {depth: [2]}\n")
    for command in ("plan", "run"):
        assert said in refused(command, "few.yaml", *more)
    assert not Path("results").exists()
