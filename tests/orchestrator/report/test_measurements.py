"""A task declares each metric once; columns, checks, labels, figures and output follow."""

import contextlib
import csv
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import depthrate
from depthrate.orchestrator.analysis.columns import builtin_columns, columns_of
from depthrate.storage.tables.from_task import task_table
from depthrate.storage.tables.schema import CURVES, METRICS, Columns, TableError
from depthrate.tasks.interface import Task
from depthrate.tasks.metric import Metric
from depthrate.tasks.supervised.metrics import core_measurements
from tests.support.here import invoke
from tests.support.plain_task import PlainTask

ROOT = Path(__file__).parents[3]
TASK = '''
import depthrate

@depthrate.task(version=1, measurements=[
    depthrate.Metric("width_ratio", label="Width ratio", doc="a made-up law, depth^-rate"),
    depthrate.Metric("bend", label="Bend", doc="grows by a half a layer", axis="linear"),
    depthrate.Metric("shape", label="Shape of it", kind="vector", axis="linear"),
    depthrate.Metric("score", label="Score", per="step", axis="linear"),
    depthrate.Metric("never", label="Never there"),
])
def law(*, depth: int, rate: float = 0.5, seed: int = 0):
    """A law with a bend."""
    value = depth**-rate * (1 + 0.01 * seed)
    rows = [{"step": 2, "layer": l, "width_ratio": value * (1 + depth - l), "bend": 0.5 * l - 1, "shape": [1.0, 2.0, 4.0],
             "undeclared": 1.0 + l} for l in range(depth + 1)]
    return {"metrics": rows, "curves": [{"step": s, "score": 0.5 + 0.1 * s} for s in (0, 1, 2)]}
'''
SWEEP: dict[str, Any] = {"name": "own", "task": "./own_law.py:law", "grid": {"depth": [2, 4, 8]}, "seeds": 2}


def cli(folder: Path, *arguments: str) -> tuple[int, str]:
    with contextlib.chdir(folder):
        return invoke(*arguments)


def write(folder: Path, **more: Any) -> str:
    (folder / "own_law.py").write_text(TASK)
    (folder / "own.yaml").write_text(yaml.safe_dump(SWEEP | more))
    return "own.yaml"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sweep of the user's own task that has run, its store and its report."""
    folder = tmp_path_factory.mktemp("own")
    code, output = cli(folder, "run", write(folder, fit=[{"metric": "width_ratio"}]), "--store", "store")
    assert code == 0 and "width_ratio" in output, output
    code, output = cli(folder, "report", "own", "--store", "store", "-o", "r.html", "--figures", "figures")
    assert code == 0, output
    return folder


@pytest.mark.slow
def test_the_report_draws_what_the_task_declares(done: Path) -> None:
    drawn = sorted(path.stem.partition("-")[2][3:] for path in (done / "figures").glob("*.csv"))
    by_layer, by_step = ["bend", "width-ratio"], ["score"]  # the metrics have one step
    assert drawn == sorted([*by_layer, *by_step, "width-ratio-against-depth", "shape-of-it-last-layer"])
    text = (done / "r.html").read_text()
    assert "Width ratio: <strong>too few values (3 values of depth, at least 4 needed)" in text
    assert "Score at the last step: mean 0.700" in text


@pytest.mark.slow
def test_axes_are_those_declared(done: Path) -> None:
    (bend,), (ratio,) = ((done / "figures").glob(f"*-{name}.svg") for name in ("bend", "width-ratio"))
    assert ">Layer / depth<" in bend.read_text()
    ticks = [
        re.findall(r'text-anchor="end"[^>]*>([-.0-9]+)<', path.read_text().replace("−", "-")) for path in (bend, ratio)
    ]
    evenly = [len({round(float(b) - float(a), 6) for a, b in itertools.pairwise(texts)}) == 1 for texts in ticks]
    assert evenly == [True, False]
    (path,) = (done / "figures").glob("*-shape-of-it-last-layer.csv")
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert {(row["x"], row["y"]) for row in rows if row["mark"] == "series"} == {("1", "1"), ("2", "2"), ("3", "4")}


@pytest.mark.slow
def test_null_columns_have_declared_types(done: Path) -> None:
    results = depthrate.open(str(done / "store"))
    types = dict(results.sql("select column_name, column_type from (describe metrics)").fetchall())
    assert (types["never"], types["shape"], types["undeclared"]) == ("DOUBLE", "DOUBLE[]", "DOUBLE")
    assert results.sql("select count(*), count(never), count(nc2a) from results").fetchall() == [(6, 0, 0)]


@pytest.mark.slow
def test_fits_check_their_metric_before_anything_runs(tmp_path: Path) -> None:
    code, output = cli(tmp_path, "plan", write(tmp_path, fit=[{"metric": "with_ratio"}]), "--store", "store")
    assert code == 2 and "unknown metric 'with_ratio' in fit (did you mean 'width_ratio'?)" in output
    code, output = cli(tmp_path, "plan", write(tmp_path, fit=[{"metric": "shape"}]), "--store", "store")
    assert code == 2 and "unknown metric 'shape'" in output, "a vector has no rate"
    fits = [
        {"metric": "never"},
        {"metric": "nc1"},
        {"metric": "loss"},
    ]  # the last two: what `probe` and a loop may give
    code, output = cli(tmp_path, "plan", write(tmp_path, fit=fits), "--store", "store")
    assert code == 0, output


@pytest.mark.slow
def test_searches_check_their_objective_before_anything_runs(tmp_path: Path) -> None:
    search = {"sampler": "random", "trials": 3, "params": {"rate": {"low": 0.2, "high": 1.0}}}
    for objective, message in (("bendd", 'Did you mean "bend"'), ("log(score) + nc9", "(task 'own_law:law' measures")):
        sweep = write(tmp_path, search=search | {"objective": objective})
        code, output = cli(tmp_path, "run", sweep, "--store", "store")
        assert code == 2 and message in output, output
    sweep = write(tmp_path, search=search | {"objective": "bend + score"})
    code, output = cli(tmp_path, "run", sweep, "--store", "store")
    assert code == 0 and "9 complete" in output, output


@pytest.mark.slow
def test_tasks_prints_what_a_task_measures(done: Path) -> None:
    _, output = cli(done, "tasks", "./own_law.py:law")
    (line,) = [line for line in output.splitlines() if line.strip().startswith("bend")]
    assert re.split(r"\s{2,}", line.strip()) == ["bend", "Bend", "layer", "scalar", "linear", "grows by a half a layer"]


# What the store is told


def test_columns_and_types_are_permanent() -> None:
    """The order is checked too. Newer columns may be in between."""
    schemas = builtin_columns().schemas
    numbers = "nc1 nc1_pinv nc2a nc2b nc3 ncc_accuracy pfc2 rank stable_rank condition_number relative_position".split()  # noqa: SIM905
    first = [*METRICS.names, *numbers, "singular_values", "class_gram"]
    assert [name for name in schemas["metrics"].names if name in first] == first
    curves = ["loss", "objective", "objective_gap", "accuracy", "grad_norm", "lr"]
    first = [*CURVES.names, *curves]
    assert [name for name in schemas["curves"].names if name in first] == first
    assert {str(schemas["metrics"].field(name).type) for name in numbers} == {"double"}
    assert str(schemas["metrics"].field("class_gram").type) == "list<item: float>"


def own_task(*measurements: Metric) -> Task:
    schema: Any = {}
    return PlainTask(name="f", schema=schema, fused=False, measurements=measurements)


@pytest.mark.parametrize(
    ("measurement", "message"),
    [
        (Metric("layer"), "'layer' exists in every table"),
        (Metric("Layer"), "'Layer' exists in every table"),
        (Metric("NC1"), "'NC1' exists in every table"),
        (Metric("nc1", per="step"), "'nc1' of curves is declared as a scalar, but in metrics it is a scalar"),
        (Metric("nc1", kind="vector"), "declared as a vector, but in metrics it is a scalar"),
    ],
)
def test_columns_that_stand_for_something_else_are_refused(measurement: Metric, message: str) -> None:
    with pytest.raises(TableError, match=message):
        columns_of(own_task(measurement))


def test_matrices_come_as_rows_or_flat() -> None:
    columns = columns_of(own_task(Metric("m", kind="matrix")))
    rows = [{"m": [[1, 2], [3, float("nan")]]}, {"m": [1.0, 2.0, 3.0, 4.0]}, {}]
    column = task_table("metrics", rows, columns, trial_id="t", attempt_id="a")["m"]
    assert str(column.type) == "list<item: float>"
    assert column.to_pylist() == [[1, 2, 3, None], [1, 2, 3, 4], None]
    with pytest.raises(TableError, match="column 'm' holds 3, expected a list of numbers as declared"):
        task_table("metrics", [{"m": 3}], columns, trial_id="t", attempt_id="a")
    with pytest.raises(TableError, match=r"column 'm' holds \[\[1, 2\], \[3\]\], expected rows of one length"):
        task_table("metrics", [{"m": [[1, 2], [3]]}], columns, trial_id="t", attempt_id="a")


@pytest.mark.slow
def test_stepless_metric_is_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(
        "import depthrate\nimport torch\n\n\n@depthrate.task(version=1)\ndef falls(*, depth: int):\n"
        "    curves = [{'step': step, 'loss': 1 - step / 10} for step in range(10)]\n"
        "    return {'metrics': [{'layer': depth, 'nc1': torch.tensor(2.0)}], 'curves': curves}\n"
    )
    sweep = {"name": "falls", "task": "./task.py:falls", "grid": {"depth": [1, 2]}}
    (tmp_path / "falls.yaml").write_text(yaml.safe_dump(sweep))
    assert cli(tmp_path, "run", "falls.yaml", "--workers", "1")[0] == 0
    rows = depthrate.open(tmp_path / "results").sql("select last_loss, nc1 from results").fetchall()
    assert [value for row in rows for value in row] == pytest.approx([0.1, 2.0, 0.1, 2.0])


LOOP = """
import depthrate
import torch


@depthrate.task(version=1)
def loop(*, kind: str, seed: int = 0, context):
    model = torch.nn.Linear(4, 2)
    with context.training(model, torch.optim.SGD(model.parameters(), lr=0.1)) as run:
        for step in run.steps(3):
            run.log(step, loss=float(kind) if step else 1.0)
            run.log(step, split="test", loss=float("nan"))
            run.log(step, grad_norm=float("nan"))
    if kind != "1":
        torch.nn.init.constant_(model.weight, float(kind))
    x = torch.randn(8, 4)
    return {"metrics": depthrate.measure(model(x), torch.arange(8) % 2) and [{"nc1": 1.0}], "curves": run.curves}


@depthrate.task(version=1)
def returned(*, kind: str, seed: int = 0):
    import pandas as pd

    loss = {"1": 1.0, "nan": float("nan"), "inf": float("inf"), "none": None, "frame": float("nan")}[kind]
    if kind == "frame":
        curves = pd.DataFrame([{"step": 1, "loss": 2.0}, {"step": 1, "accuracy": 0.5}])
        return {"metrics": [{"nc1": loss}], "curves": curves}
    return {"metrics": [{"layer": 0, "nc1": None}, {"layer": 1, "nc1": 1.0, "nc2a": float("nan"), "loss": loss}]}
"""


@pytest.mark.slow
def test_infinite_last_loss_means_diverged(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(LOOP)
    for name, kinds in (("loop", ["1", "nan", "inf"]), ("returned", ["1", "nan", "inf", "none", "frame"])):
        sweep = {"name": name, "task": f"./mine.py:{name}", "grid": {"kind": kinds}}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(sweep))
        code, said = cli(tmp_path, "run", f"{name}.yaml", "--workers", "1")
        assert code == 0 and "2 of them diverged" in said, said
    trials = depthrate.open(tmp_path / "results").sql("select task, kind, status from trials").fetchall()
    ended = {row[:2] for row in trials if row[2] == "diverged"}
    assert ended == {(f"mine:{task}", kind) for task in ("loop", "returned") for kind in ("nan", "inf")}
    assert {row[2] for row in trials} == {"ok", "diverged"} and len(trials) == 8
    logged = depthrate.open(tmp_path / "results").sql(
        "select count(*) from curves c join trials t using (trial_id) where t.task = 'mine:loop' and t.status = 'diverged'"
    )
    assert logged.fetchall() == [(18,)], "what it logged is kept"


def test_nothing_declared_means_the_structure_alone() -> None:
    assert Columns().schemas["metrics"].names == METRICS.names


# One place


def sources() -> Iterator[Path]:
    for folder in ("storage", "orchestrator/report", "orchestrator/search"):
        yield from (ROOT / folder).rglob("*.py")


@pytest.mark.parametrize("path", [*sources()], ids=lambda path: str(path.relative_to(ROOT)))
def test_storage_report_and_search_name_no_measurement(path: Path) -> None:
    text = path.read_text()
    # `objective` is also what a search minimises, `loss`, `rank` and `lr` are words: as names they stand in quotes
    words = {"objective", "loss", "rank", "lr", "accuracy", "optimum", "prediction"}
    for name in (measurement.name for measurement in core_measurements()):
        found = re.search(rf"[\"']{name}[\"']" if name in words else rf"\b{name}\b", text)
        assert not found or (name == "objective" and "search" in str(path)), f"{path} names {name}"
