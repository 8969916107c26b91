"""`plan` finds before the training what could not be stored or fitted after it."""

import contextlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.support.here import invoke, printed, refused

SWEEP = "name: s\ntask: collapse\nparams: {arch: rn1, dataset: digits, width: 8, steps: 5}\n"


def plan(folder: Path, *arguments: str) -> tuple[int, str]:
    return invoke("plan", folder / "s.yaml", "--store", folder / "store", *arguments)


@pytest.mark.parametrize("closed", ["", "store/trials"])
def test_unwritable_store_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str) -> None:
    (tmp_path / "s.yaml").write_text(f"{SWEEP}grid: {{depth: [2, 3]}}\n")
    assert plan(tmp_path)[0] == 0
    (folder := tmp_path / closed).mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder)  # root may write everywhere
    for sweep in (tmp_path / "s.yaml", "papers/pfc"):
        assert f"no permission to write to {folder}" in refused("plan", sweep, "--store", tmp_path / "store")


@pytest.mark.parametrize(
    ("grid", "fit", "is_thin"),
    [
        ("{depth: [2, 3]}", "{metric: nc1, x: depth}", True),
        ("{depth: [2, 3, 5]}", "{metric: nc1, x: depth}", False),
        ("{depth: [2]}", "{metric: nc1, x: depth}", True),
        ("{depth: [2, 3, 5], lr: [0.1, 0.2]}", "{metric: nc1, x: depth, by: [lr]}", False),
        ("{depth: [2, 3, 5], lr: [0.1, 0.2]}", "{metric: nc1, x: lr, by: [depth]}", True),
        ("{depth: [2, 3, 5]}", "{metric: nc1, x: depth // 2 + 1}", True),
    ],
)
def test_few_values_for_a_fit(tmp_path: Path, grid: str, fit: str, is_thin: bool) -> None:
    (tmp_path / "s.yaml").write_text(f"{SWEEP}grid: {grid}\nfit: [{fit}]\n")
    code, output = plan(tmp_path, "--json")
    remarks = json.loads(output)["remarks"]
    assert code == 0 and len(remarks) == is_thin and all("Use 3 or more" in remark for remark in remarks)
    assert ("Use 3 or more" in plan(tmp_path)[1]) == is_thin


X = np.arange(60 * 4, dtype=np.float32).reshape(60, 1, 2, 2) - 20
KINDS = np.array(["cat", "dog", "owl"])


@pytest.mark.parametrize(
    ("task", "data", "params", "expected"),
    [
        ("collapse", {"y": np.arange(60) % 3}, "", "{x}, 3 classes (equal): 0: 20, 1: 20, 2: 20, hash {hash}"),
        (
            "collapse",
            {"y": KINDS.repeat([30, 20, 10]), "x_test": X[:3], "y_test": KINDS},
            "",
            "{x}, 3 classes (unequal, 10 to 30): cat: 30, dog: 20, owl: 10. 3 test samples [1, 2, 2] of float32 from -20 "
            "to -9, 3 classes (equal): cat: 1, dog: 1, owl: 1, hash {hash}",
        ),
        (
            "collapse",
            {"y": np.arange(60) % 12},
            ", samples_per_class: 2",
            "{x}, 12 classes (equal): "
            + "".join(f"{k}: 5, " for k in range(9))
            + "..., 11: 5, hash {hash}. Used: 2 of each class",
        ),
        ("regression", {"y": X.reshape(60, -1)[:, :2]}, "", "{x}, 2 numbers per target, hash {hash}"),
    ],
)
def test_a_plan_describes_custom_data(
    tmp_path: Path, task: str, data: dict[str, np.ndarray], params: str, expected: str
) -> None:
    np.savez(tmp_path / "d.npz", x=X, **data)
    sweep = SWEEP.replace("digits", "./d.npz").replace("}", params + "}").replace("collapse", task)
    (tmp_path / "s.yaml").write_text(f"{sweep}grid: {{depth: [2, 3]}}\n")
    code, output = plan(tmp_path, "--json")
    (line,) = json.loads(output)["data"]
    described = "d.npz: 60 training samples [1, 2, 2] of float32 from -20 to 219"
    assert code == 0 and line == expected.format(x=described, hash=line.split("hash ")[1][:16])
    assert line.replace(" ", "") in "".join(plan(tmp_path)[1].split())


Z = np.random.default_rng(0).normal(size=(60, 3))
TIMES = Z * [300, 1, 1] + [1.7e9, 0, 0]


@pytest.mark.parametrize(
    ("form", "task", "x", "params", "hidden"),
    [
        (
            "file",
            "collapse",
            TIMES,
            "",
            "With normalize: global, 3 of its 3 inputs (time, a, b) vary by less than 1e-05",
        ),
        ("function", "collapse", TIMES, "", "3 of its 3 inputs (time, a, b)"),
        ("stream", "collapse", TIMES, "", "3 of its 3 inputs (time, a, b)"),
        ("file", "regression", TIMES.astype(np.int64), "", "3 of its 3 inputs"),
        ("file", "collapse", TIMES, ", normalize: none", "With normalize: none, 3 of its 3 inputs (time, a, b) vary"),
        ("file", "collapse", TIMES, ", dtype: float64", "3 of its 3 inputs (time, a, b)"),
        ("file", "collapse", TIMES, ", normalize: per_feature", None),
        ("file", "collapse", Z * [1e7, 1, 1], "", "2 of its 3 inputs (a, b)"),
        ("file", "collapse", Z * [1e3, 1, 0], "", None),
        ("file", "collapse", np.eye(60, 3) * [255, 1, 0], "", None),
    ],
)
def test_a_plan_names_columns_and_inputs_that_normalisation_hides(
    tmp_path: Path, form: str, task: str, x: np.ndarray, params: str, hidden: str | None
) -> None:
    table = pd.DataFrame(x, columns=["time", "a", "b"]).assign(y=np.arange(60) % 3)
    table.to_parquet(tmp_path / "d.parquet")
    (tmp_path / "data.py").write_text(
        "import pathlib, pandas\n"
        "def make():\n"
        "    table = pandas.read_parquet(pathlib.Path(__file__).parent / 'd.parquet')\n"
        "    return table.drop(columns='y'), table['y']\n"
    )
    dataset = "./d.parquet" if form == "file" else "./data.py:make"
    params += ", stream: true, batch_size: 8" if form == "stream" else ""
    sweep = SWEEP.replace("digits", f'"{dataset}"').replace("}", params + "}").replace("collapse", task)
    (tmp_path / "s.yaml").write_text(f"{sweep}grid: {{depth: [2, 3]}}\n")
    (line,) = json.loads(plan(tmp_path, "--json")[1])["data"]
    assert ", columns time, a, b, hash" in line
    assert ("so a network hardly sees them. Set normalize: per_feature" in line) == (hidden is not None)
    assert hidden is None or hidden in line


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ("", "digits: 1,797 training samples [1, 8, 8], 10 classes (unequal)"),
        (", samples_per_class: 20", "digits: 200 training samples [1, 8, 8], 10 classes (equal)"),
    ],
)
def test_a_plan_describes_published_data(tmp_path: Path, params: str, expected: str) -> None:
    (tmp_path / "s.yaml").write_text(SWEEP.replace("}", params + "}") + "grid: {depth: [2, 3]}\n")
    assert json.loads(plan(tmp_path, "--json")[1])["data"] == [expected]


def test_a_plan_describes_streamed_data(tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    np.save(tmp_path / "big" / "x.npy", X)
    np.save(tmp_path / "big" / "y.npy", np.arange(60) % 7)
    params = "dataset: ./big, stream: true, batch_size: 8"
    (tmp_path / "s.yaml").write_text(SWEEP.replace("dataset: digits", params) + "grid: {depth: [2, 3]}\n")
    (line,) = json.loads(plan(tmp_path, "--json")[1])["data"]
    assert "60 training samples [1, 2, 2] of float32, streamed, 7 classes (unequal, 8 to 9): 0: 9, " in line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fit: [{metric: nc1, layer: 9}]", "layer is 9, expected 0 to 5"),
        ("fit: [{metric: nc1, layer: -7}]", "layer is -7, expected 0 to 5"),
        ("fit: [{metric: nc1, layer: 5}]", "at most 1 of 3 values of depth"),
        ("fit: [{metric: nc1, x_min: 5}]", "at most 1 of 3 values of depth"),
        ("fit: [{metric: nc1, x: depth - 3}]", "at most 1 of 3 values of depth - 3"),
        ("fit: [{metric: nc1, over: data_seed}]", "over is data_seed, which has one value"),
        ("fit: [{metric: nc1}, {metric: nc1, x: depth, by: []}]", "is in the sweep twice. Keep one"),
        ("seeds: [0, 0, 1]", "repeats a seed"),
        ("seeds:", "seeds is empty, expected a count"),
        ("depth: 3", "belongs under params: `params: {depth: ...}`"),
        ("exclude: [{dept: 3}]", "'dept' in exclude (did you mean 'depth'?). Nearest: depth, "),
    ],
)
def test_impossible_fits_and_seeds_are_refused(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "s.yaml").write_text(f"{SWEEP}grid: {{depth: [2, 3, 5]}}\n{text}\n")
    code, output = plan(tmp_path)
    assert code == 2 and expected in output


POSSIBLE = (
    *("layer: 3", "layer: -3", "x_min: 3", "x: depth - 2", "over: depth, x: width", "where: weight_decay > 0"),
    *('where: "nc1 > 0 and depth in (2, 3)"', "where: status = 'ok'"),
)


@pytest.mark.parametrize("fit", POSSIBLE)
def test_possible_fits_pass(tmp_path: Path, fit: str) -> None:
    (tmp_path / "s.yaml").write_text(f"{SWEEP}grid: {{depth: [2, 3, 5]}}\nfit: [{{metric: nc1, {fit}}}]\n")
    assert plan(tmp_path)[0] == 0


def test_empty_seeds_of_set_are_refused(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(f"{SWEEP}grid: {{depth: [2, 3]}}\nseeds: 2\n")
    code, output = plan(tmp_path, "--set", "seeds=")
    assert code == 2 and "seeds is empty" in output


def test_trials_without_positive_x_are_named(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(f"{SWEEP}grid: {{depth: [2, 3, 5]}}\nfit: [{{metric: nc1, x: depth - 2}}]\n")
    assert "leaves out trials with depth - 2 = 0, not above 0" in " ".join(plan(tmp_path)[1].split())


@pytest.mark.parametrize("command", [["status"], ["sweeps", "list"], ["query", "select 1"], ["fit", "s"], ["verify"]])
def test_folder_that_is_no_store_is_refused(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "thesis.tex").touch()
    assert "is not a store: it holds thesis.tex" in refused(*command, "--store", tmp_path)


def test_objective_typo_shows_the_columns_with_values(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(
        "import depthrate\n@depthrate.task(version=1)\ndef t(*, depth: int, seed: int = 0, context):\n"
        "    return {'metrics': [{'layer': depth, 'height': 1.0}]}\n"
    )
    search = "search: {trials: 2, sampler: random, params: {depth: [1, 2]}, objective: heigth}"
    (tmp_path / "s.yaml").write_text(f"name: s\ntask: ./t.py:t\n{search}\n")
    output = printed("run", tmp_path / "s.yaml", "--workers", "1", "--store", tmp_path / "store", code=2)
    shown = " ".join(output.split())
    assert "the first 2 random" in shown
    assert 'Did you mean "height"?' in shown
    assert "Columns with a value: trial_id, sweep" in shown


SLOW = """
import time
import numpy as np

def make():
    time.sleep(1)
    return np.random.default_rng(0).normal(size=(20, 4)), np.arange(20) % 2
"""


@pytest.mark.slow
def test_slow_plan_shows_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data.py").write_text(SLOW)
    Path("s.yaml").write_text(SWEEP.replace("digits", '"./data.py:make"') + "grid: {depth: [2]}\n")
    script = "from depthrate.orchestrator.cli import launch_output\nlaunch_output.SLOW_NOTICE_AFTER_S = {}\nimport depthrate\n"
    script += "depthrate.load('s.yaml').plan()\n"
    for patience_s, is_terminal, is_said in ((0.2, True, True), (0.2, False, False), (60.0, True, False)):
        master, slave = pty.openpty() if is_terminal else os.pipe()
        command = [sys.executable, "-c", script.format(patience_s)]
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=slave)
        os.close(slave)
        said = b""
        with contextlib.suppress(OSError):  # how a terminal ends
            while part := os.read(master, 4096):
                said += part
        os.close(master)
        assert running.wait() == 0 and (b"reading the sweep, its code and its data" in said) == is_said, said
