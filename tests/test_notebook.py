"""The notebook of the docs runs in a real kernel, and interrupting a cell stops a sweep that the next run goes on with."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import depthrate
from tests.support.here import await_that

nbformat = pytest.importorskip("nbformat", reason="needs pip install 'depthrate[dev]'")
nbclient = pytest.importorskip("nbclient", reason="needs pip install 'depthrate[dev]'")
pytest.importorskip("ipykernel", reason="needs pip install 'depthrate[dev]'")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

NOTEBOOK = Path(__file__).parents[1] / "docs" / "notebook.ipynb"
SLOW_TASK = """
import time
import depthrate

@depthrate.task(version=1)
def walk(*, depth: int, seed: int = 0, context):
    time.sleep(0.4)
    return {"metrics": [{"layer": depth, "nc1": 1 / depth}]}
"""


def shown(cell: Any, kind: str) -> str:
    """What a cell shows as one kind of content."""
    outputs = [output for output in cell.outputs if output.output_type in ("execute_result", "display_data")]
    return "".join(output.data.get(kind, "") for output in outputs)


def test_the_notebook_of_the_docs_runs(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "kept without outputs"
    nbclient.NotebookClient(notebook, timeout=400, resources={"metadata": {"path": str(tmp_path)}}).execute()
    cells = {cell.source: cell for cell in notebook.cells if cell.cell_type == "code"}
    plan, run, status = (cells[f"sweep.{verb}()"] for verb in ("plan", "run", "status"))
    assert "6 trials, 0 done, 6 to run" in shown(plan, "text/html") and "<table" in shown(plan, "text/html")
    assert "<progress value='6' max='6'" in shown(run, "text/html"), "the bar stands at its end"
    assert "nc1" in shown(run, "text/html") and "6 trials" in shown(status, "text/html")
    assert "<svg" in shown(cells['results.plot("nc1", x="depth")'], "image/svg+xml")
    assert (tmp_path / "nc3.pdf").read_bytes()[:4] == b"%PDF" and (tmp_path / "report.html").exists()
    assert "2 trials, 2 done" in shown(notebook.cells[-1], "text/html"), "what another sweep ran is not run again"
    results = depthrate.open(tmp_path / "results")
    assert results.sql("select count(*) from trials").fetchall() == [(6,)]


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(cwd=str(tmp_path), startup_timeout=200)
    try:
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def answer(client: Any, message: str, timeout: float = 300) -> dict[str, Any]:
    """The kernel's reply to what it was sent."""
    while True:
        reply: dict[str, Any] = client.get_shell_msg(timeout=timeout)
        if reply["parent_header"].get("msg_id") == message:
            return reply["content"]


def test_interrupted_cell_resumes(kernel: tuple[Any, Any], tmp_path: Path) -> None:
    manager, client = kernel
    (tmp_path / "slow.py").write_text(SLOW_TASK)
    sweep = "depthrate.Sweep(name='slow', task='./slow.py:walk', grid={'depth': [2, 3, 5]}, seeds=20)"
    # cells that come in the moment after an error are dropped by the kernel, unless it is told not to
    message = client.execute(f"import depthrate\nsweep = {sweep}\nsweep.run(workers=1)", stop_on_error=False)
    records = tmp_path / "results/attempts"
    await_that(lambda: any(b'"running"' in path.read_bytes() for path in records.glob("*/*.json")), 200)
    time.sleep(2)
    manager.interrupt_kernel()
    reply = answer(client, message)
    assert (reply["status"], reply.get("ename")) == ("error", "KeyboardInterrupt"), reply
    assert "Run the cell again" in reply["evalue"]
    query = "select trial_id, attempt_id from trials order by 1"
    before = depthrate.open(tmp_path / "results").sql(query).fetchall()
    assert len(before) < 60, "it stopped on the way"
    (tmp_path / "slow.py").touch()
    assert answer(client, client.execute("sweep.run(workers=1)"))["status"] == "ok"
    after = depthrate.open(tmp_path / "results").sql(query).fetchall()
    assert len(after) == 60 and set(before) <= set(after), "nothing was lost, nothing done twice"
