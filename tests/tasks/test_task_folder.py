"""What lies beside a task file is imported as beside a script, and two folders do not mix."""

import sys
from pathlib import Path

import pytest

from depthrate.tasks.interface import TaskError
from depthrate.tasks.loading import load_task
from tests.support.training_context import Context

TASK = """
import depthrate
from model import WIDTH

@depthrate.task(version=1)
def law(*, depth: int):
    return {"metrics": [{"layer": depth, "nc1": float(WIDTH)}]}

@depthrate.task(version=1)
def late(*, depth: int):
    from helpers.more import VALUE
    return {"metrics": [{"layer": depth, "nc1": float(VALUE)}]}
"""


pytestmark = pytest.mark.usefixtures("clean_imports")


def make(folder: Path, width: int) -> Path:
    """Write a task file, and what it imports, beside it."""
    (folder / "helpers").mkdir(parents=True)
    (folder / "my_task.py").write_text(TASK)
    (folder / "model.py").write_text(
        f"WIDTH = {width}\nwith open('{folder}/model.py.log', 'a') as log: log.write('x')\n"
    )
    (folder / "helpers" / "more.py").write_text(f"VALUE = {10 * width}\n")  # no __init__.py
    return folder / "my_task.py"


def measured(path: Path, function: str = "law") -> float:
    task = load_task(f"{path}:{function}")
    (result,) = task.run([{"depth": 1}], Context())
    return float(result.tables["metrics"][0]["nc1"])


@pytest.mark.slow
def test_equal_module_names_stay_apart(tmp_path: Path) -> None:
    first, second = make(tmp_path / "first", 1), make(tmp_path / "second", 2)
    assert [measured(path) for path in (first, second, first, second)] == [1, 2, 1, 2]
    assert [measured(path, "late") for path in (first, second, first)] == [10, 20, 10], "imported while it runs"
    assert (tmp_path / "first" / "model.py.log").read_text() == "x", "executed once"
    assert not {str(tmp_path / "first"), str(tmp_path / "second")} & set(sys.path), "what was read is imported"


def test_neighbours_follow_the_standard_library(tmp_path: Path) -> None:
    path = make(tmp_path / "task", 1)
    for name, content in {"random": "raise OSError", "model_zoo": "HERE = 1", "yaml_of_mine": "HERE = 1"}.items():
        (path.parent / f"{name}.py").write_text(content)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "model_zoo.py").write_text("HERE = 0")
    (elsewhere / "plain").mkdir()
    (elsewhere / "plain" / "__init__.py").write_text("HERE = 0")
    (path.parent / "plain").mkdir()  # a folder of pictures, say
    sys.path.insert(0, str(elsewhere))  # as PYTHONPATH does
    path.write_text("import random, model_zoo, plain\n" + TASK + "assert model_zoo.HERE and not plain.HERE\n")
    assert measured(path) == 1


def test_existing_path_entry_stays(tmp_path: Path) -> None:
    first, second = make(tmp_path / "first", 1), make(tmp_path / "second", 2)
    sys.path.append(str(first.parent))
    assert [measured(first), measured(second)] == [1, 2] and str(first.parent) in sys.path


@pytest.mark.parametrize(
    ("files", "parts"),
    [
        (
            {"my_task": "import depthrate\n\nfrom modle import MLP\n", "model": "MLP = 1"},
            [
                "my_task.py, line 3: `from modle import MLP`: no module named 'modle' (did you mean 'model'?)",
                "{folder} (the task file's folder)",
                "Add modle.py",
            ],
        ),
        (
            {"my_task": "import model\n", "model": "x = 1\nimport nowhere.at_all\n"},
            ["model.py, line 2: `import nowhere.at_all`: no module named 'nowhere'", "Add nowhere.py"],
        ),
        (
            {"my_task": "from model import MPL\n", "model": "MLP = 1"},
            ["my_task.py, line 1: `from model import MPL`: cannot import name 'MPL' from 'model' ({folder}/model.py)"],
        ),
        (
            {"my_task": "from profile import MLP\n", "profile": "MLP = 1"},
            ["line 1: `from profile import MLP`", "'profile' is a standard library module"],
        ),
        ({"my_task": "import model\n", "model": "\n1 / 0\n"}, ["model.py, line 2: `1 / 0`: ZeroDivisionError"]),
        ({"my_task": "import model\n", "model": "def f(:"}, ["1: `import model`: SyntaxError", "(model.py, line 1)"]),
    ],
)
def test_import_errors_name_line_and_fix(files: dict[str, str], parts: list[str], tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / f"{name}.py").write_text(content)
    with pytest.raises(TaskError) as caught:
        load_task(f"{tmp_path}/my_task.py:law")
    for part in parts:
        assert part.format(folder=tmp_path) in str(caught.value)
