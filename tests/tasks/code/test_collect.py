"""What belongs to a task's code is found by reading, and what is executed is what was read."""

import sys
import traceback
from pathlib import Path

import pytest

from depthrate.tasks.code.collect import TooManyFilesError, collect_code
from depthrate.tasks.interface import TaskError
from depthrate.tasks.loading import load_task
from tests.support.training_context import Context

pytestmark = pytest.mark.usefixtures("clean_imports")


def write(folder: Path, files: dict[str, str]) -> None:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)


BESIDE = {
    "model.py": "from layers.linear import VALUE\nimport numpy",
    "layers/__init__.py": "from . import base",
    "layers/base.py": "",
    "layers/linear.py": "from .deep.er import VALUE",
    "layers/deep/er.py": "VALUE = 3",
    "layers/unused.py": "",
    "unused.py": "",
    "random.py": "raise SystemExit",
    "notes.txt": "",
}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import numpy, os, random, depthrate", []),
        ("import model", ["layers/__init__.py", "layers/base.py", "layers/deep/er.py", "layers/linear.py", "model.py"]),
        ("def f():\n    import unused", ["unused.py"]),
        ("try:\n    import unused\nexcept ImportError: pass", ["unused.py"]),
        ("import importlib\nimportlib.import_module('unused')", ["unused.py"]),
        ("from layers.deep import er", ["layers/__init__.py", "layers/base.py", "layers/deep/er.py"]),
        ("import layers", ["layers/__init__.py", "layers/base.py"]),
        (
            "from layers import *",
            ["layers/__init__.py", "layers/base.py", "layers/deep/er.py", "layers/linear.py", "layers/unused.py"],
        ),
        (
            "import importlib\nfor name in 'ab':\n    importlib.import_module(name)",
            [path for path in sorted(BESIDE) if path.endswith(".py") and path != "random.py"],
        ),
        ("def f(:", []),
    ],
)
def test_code_is_file_and_imports(source: str, found: list[str], tmp_path: Path) -> None:
    write(tmp_path, {**BESIDE, "my_task.py": source})
    code = collect_code(tmp_path / "my_task.py", tmp_path)
    assert sorted(code.contents) == sorted([*found, "my_task.py"]) and code.main == "my_task.py"


def test_an_installed_package_has_itself_alone(tmp_path: Path) -> None:
    files = {"mine/__init__.py": "", "mine/more.py": "", "other.py": ""}
    write(tmp_path, files | {"mine/laws.py": "import other\nfrom mine import more"})
    code = collect_code(tmp_path / "mine/laws.py", tmp_path, siblings=False)
    assert sorted(code.contents) == ["mine/__init__.py", "mine/laws.py", "mine/more.py"]


def test_computed_names_collect_nothing(tmp_path: Path) -> None:
    many = {f"m{index}.py": "" for index in range(1100)}
    write(tmp_path, many | {"my_task.py": "import importlib\nimportlib.import_module(x)"})
    with pytest.raises(TooManyFilesError, match="more than 1000 files .* separate folder"):
        collect_code(tmp_path / "my_task.py", tmp_path)


TASK = """
import depthrate
from model import WIDTH
from helpers.more import VALUE

@depthrate.task(version=1)
def law(*, depth: int):
    import late
    if depth == 9:
        raise RuntimeError("nine")
    return {"metrics": [{"layer": depth, "nc1": WIDTH + VALUE + late.PART}]}
"""
PARTS = {"my_task.py": TASK, "model.py": "WIDTH = 100", "helpers/more.py": "VALUE = 20", "late.py": "PART = 3"}


def measured(task) -> float:
    (result,) = task.run([{"depth": 1}], Context(["t"]))
    return float(result.tables["metrics"][0]["nc1"])


def test_collected_code_is_executed(tmp_path: Path) -> None:
    write(tmp_path, PARTS)
    task = load_task(f"{tmp_path}/my_task.py:law")
    files = task.code.contents
    write(tmp_path, {name: "1 / 0" for name in PARTS})
    assert measured(task) == 123, "also what is imported while it runs"
    again = load_task(f"{tmp_path}/my_task.py:law", files=files)
    assert measured(again) == 123 and again.code == task.code
    write(tmp_path, {**PARTS, "helpers/more.py": "VALUE = 40"})
    changed = load_task(f"{tmp_path}/my_task.py:law")
    assert measured(changed) == 143 and changed.code != task.code
    kept = load_task(f"{tmp_path}/my_task.py:law", files=files)
    assert measured(kept) == 123, "two versions of one folder do not mix"


def test_it_runs_where_its_folder_is_not(tmp_path: Path) -> None:
    write(tmp_path / "here", PARTS)
    files = load_task(f"{tmp_path}/here/my_task.py:law").code.contents
    assert measured(load_task(f"{tmp_path}/gone/my_task.py:law", files=files)) == 123


def test_tracebacks_show_the_lines_that_ran(tmp_path: Path) -> None:
    write(tmp_path, PARTS)
    task = load_task(f"{tmp_path}/my_task.py:law")
    (tmp_path / "my_task.py").write_text("# edited\n" * 20)
    with pytest.raises(RuntimeError) as caught:
        list(task.run([{"depth": 9}], Context(["t"])))
    assert 'raise RuntimeError("nine")' in "".join(traceback.format_exception(caught.value))


def test_unforeseen_module_is_refused(tmp_path: Path) -> None:
    source = TASK.replace("import late\n", 'eval("__imp" + "ort__(\'late\')")\n    late = None\n')
    write(tmp_path, {**PARTS, "my_task.py": source})
    task = load_task(f"{tmp_path}/my_task.py:law")
    assert "late.py" not in task.code.contents
    with pytest.raises(ImportError, match="not part of that code. Write `import late`"):
        measured(task)


def test_module_task_collects_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    source = TASK.replace("from model", "from mine.model").replace("from helpers", "from mine.helpers")
    mine = {f"mine/{path}": content for path, content in PARTS.items()}
    write(tmp_path, mine | {"mine/__init__.py": "", "late.py": "PART = 3"})
    (tmp_path / "mine/my_task.py").write_text(source)
    task = load_task("mine.my_task:law")
    assert task.name == "my_task:law" and task.code.main == "mine/my_task.py"
    assert {"late.py", "mine/__init__.py", "mine/model.py", "mine/helpers/more.py"} < set(task.code.contents)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("mine", "late")]:
        del sys.modules[name]
    write(tmp_path, {"mine/model.py": "1 / 0", "late.py": "1 / 0"})
    assert measured(load_task("mine.my_task:law", files=task.code.contents)) == 123


def test_code_without_the_tasks_own_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="only model.py"):
        load_task(f"{tmp_path}/my_task.py:law", files={"model.py": b""})
