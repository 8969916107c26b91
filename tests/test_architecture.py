"""The picture of the imports: arrows point down, in no circle, each library has one home."""

from __future__ import annotations

import ast
import functools
import graphlib
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from depthrate.sweeps.load import load_sweep
from depthrate.tasks.registry import registered_tasks

ROOT = Path(__file__).parents[1]
FOLDERS = ("orchestrator", "sweeps", "tasks", "storage", "slurm")
MAY_IMPORT = {"orchestrator": {"sweeps", "tasks", "storage", "slurm"}, "sweeps": {"tasks"}}
MAY_IMPORT |= {name: set() for name in ("tasks", "storage", "slurm")}
HOMES = {
    "torch": "tasks",
    "fsspec": "storage",
    "pyarrow": "storage",
    "duckdb": "storage",
    "submitit": "slurm",
    "ray": "orchestrator/executors/ray/",
    "msgspec": "sweeps",
    "optuna": ("orchestrator/search/", "orchestrator/export/optuna.py"),
    "pooch": "tasks/data/fetch.py",
    "matplotlib": "orchestrator/report/drawing/",
    "tensorboardX": "orchestrator/export/tensorboard.py",
    "wandb": "orchestrator/export/wandb.py",
    "anywidget": "orchestrator/notebook/explorer.py",
    "scipy": (
        "tasks/fits/",
        "tasks/training/polish/polisher.py",  # minimises an objective
        "tasks/papers/unconstrained/held_optimum.py",  # minimises an objective
        "tasks/papers/words/theory.py",  # finds a root
    ),
    "starlette": "orchestrator/serve/",
    "uvicorn": "orchestrator/serve",
}
FILES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
PAPERS = Path("tasks/papers")
PLACES = {file.relative_to(ROOT).with_suffix("") for file in FILES}
ROOMS = (  # of the two folders that have no flat module; from the bottom up: a room imports those before it
    "storage/files",
    "storage/tables",
    "storage/catalog",
    "storage/commits",
    "storage/attempts",
    "storage/query",
    "storage/maintenance",
    "orchestrator/analysis",
    "orchestrator/sheet",
    "orchestrator/console",
    "orchestrator/attempts",
    "orchestrator/executors/errors",
    "orchestrator/executors/base",
    "orchestrator/monitor",
    "orchestrator/code",
    "orchestrator/launch",
    "orchestrator/worker",
    "orchestrator/search",
    "orchestrator/executors/gpu_sharing",
    "orchestrator/executors/machine",
    "orchestrator/executors/local",
    "orchestrator/executors/slurm",
    "orchestrator/executors/ray",
    "orchestrator/executors/registry",
    "orchestrator/explorer",
    "orchestrator/report",
    "orchestrator/export",
    "orchestrator/api",
    "orchestrator/serve",
    "orchestrator/cli",
    "orchestrator/notebook",  # the last: its methods are the commands
)


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Return every node of a file."""
    return list(ast.walk(ast.parse(path.read_text())))


@functools.cache
def parsed(path: Path) -> tuple[list[ast.Import | ast.ImportFrom], set[int]]:
    """Return every import of a file, and the ids of those that stand under `if TYPE_CHECKING`."""
    imported = [node for node in nodes_of(path) if isinstance(node, ast.Import | ast.ImportFrom)]
    for_types = {
        id(inner)
        for node in nodes_of(path)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    return imported, for_types


def imports(path: Path) -> Iterator[str]:
    """Yield the modules a file imports at run time."""
    return (module for module, _ in named_imports(path))


def named_imports(path: Path, *, types: bool = False) -> Iterator[tuple[str, list[str]]]:
    """Yield (module, names taken from it) at run time; with `types` also what stands under `if TYPE_CHECKING`."""
    nodes, for_types = parsed(path)
    for node in nodes:
        if id(node) in for_types and not types:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        else:
            assert node.level == 0, f"{path}: relative import"
            yield node.module or "", [alias.name for alias in node.names]


def test_imports_point_down_and_libraries_stay_home() -> None:
    wrong = []
    for path in FILES:
        place = path.relative_to(ROOT)
        for module in imports(path):
            top, _, rest = module.partition(".")
            if top in FOLDERS:
                wrong.append(f"{place} imports {module}: the name is depthrate.{module}")
            other = rest.partition(".")[0]
            allowed = {"", "errors", "grouping", place.parts[0], *MAY_IMPORT[place.parts[0]]}
            if top == "depthrate" and other not in allowed:
                wrong.append(f"{place} imports {module}: an arrow up or across")
            if top in HOMES and not str(place).startswith(HOMES[top]):
                wrong.append(f"{place} imports {module}, whose home is {HOMES[top]}")
        wrong += [
            f"{place} imports {other}: the papers' tasks are plugins"
            for other in modules_of(path, types=True)
            if other.is_relative_to(PAPERS) and not place.is_relative_to(PAPERS)
        ]
    assert not wrong, "\n".join(wrong)


PLANS = """
import sys
from depthrate.orchestrator.launch.launch_plan import check_sweep, make_plan
from depthrate.storage.files.store import Store
from depthrate.sweeps.load import load_sweep

for name in sys.argv[2:]:
    make_plan(check_sweep(load_sweep(name)), Store(sys.argv[1]))
print({"torch", "scipy", "pandas"} & set(sys.modules))
"""
OF_EACH_TASK = {
    "next-token",
    "quickstart",
    "regression",
    "papers/lowrank/figure2-top",
    "papers/pfc/figure4-descent-small",
    "papers/pfc/figure4b-descent",
    "papers/words/words-theorem1",
}


def test_a_plan_of_each_task_does_without_torch(tmp_path: Path) -> None:
    assert {load_sweep(name).task for name in OF_EACH_TASK} == registered_tasks().keys()
    command = [sys.executable, "-c", PLANS, str(tmp_path / "store"), *sorted(OF_EACH_TASK)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "set()\n", done.stdout + done.stderr


def room(place: Path) -> int | None:
    """Return how high the room of a file stands; null for a folder's own `__init__`, and where there are no rooms."""
    if (place.name == "__init__.py" and len(place.parts) <= 2) or place == Path("orchestrator/executors/__init__.py"):
        return None
    if place.parts[0] not in ("orchestrator", "storage"):
        return None
    name = place.with_suffix("").as_posix()
    ranks = [rank for rank, room in enumerate(ROOMS) if name == room or name.startswith(f"{room}/")]
    assert len(ranks) == 1, f"{place} stands in no room of {', '.join(ROOMS)}"
    return ranks[0]


def modules_of(path: Path, *, types: bool = False) -> Iterator[Path]:
    """Yield the modules of ours that a file imports, also inside functions; with `types` also for the type checker alone."""
    for module, names in named_imports(path, types=types):
        if module.partition(".")[0] == "depthrate":
            place = Path(*module.split(".")[1:])
            for imported in (place, place / "__init__", *(place / name for name in names)):
                if imported in PLACES:
                    yield imported.with_suffix(".py")


def test_imports_run_in_no_circle_types_included() -> None:
    graph = {path.relative_to(ROOT): set(modules_of(path, types=True)) for path in FILES}
    assert sum(map(len, graph.values())) > 300
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail("imports run in a circle: " + " <- ".join(map(str, error.args[1])))


def test_rooms_import_those_below_them() -> None:
    wrong = []
    for path in FILES:
        place = path.relative_to(ROOT)
        for other in modules_of(path, types=True):
            mine, theirs = room(place), room(other)
            if mine is not None and theirs is not None and other.parts[0] == place.parts[0] and theirs > mine:
                wrong.append(f"{place} imports {other}: an arrow up")
    assert not wrong, "\n".join(wrong)


def package(place: Path) -> str:
    """Return the package of a file: the folder below one of the five, or a module that lies directly in one of them."""
    return "/".join(place.with_suffix("").parts[:2])


def test_no_two_packages_import_each_other() -> None:
    arrows = {
        (package(path.relative_to(ROOT)), package(other)) for path in FILES for other in modules_of(path, types=True)
    }
    assert len(arrows) > 150
    assert not {(one, other) for one, other in arrows if one < other and (other, one) in arrows}


STARTS_PROGRAMS = {
    "tasks/python_process.py": "Python",
    "tasks/native/build.py": "the compiler",
    "slurm/command.py": "commands of SLURM",
    "slurm/script.py": "the cluster file's Python, to check it",
    "orchestrator/executors/machine.py": "nvidia-smi",
    "orchestrator/executors/gpu_sharing.py": "the service that shares a GPU",
    "orchestrator/launch/launch.py": "git",
    "orchestrator/launch/notify.py": "what --notify names",
}
"""File -> the only program that it starts."""
MODULES_THAT_START = {"subprocess", "os", "multiprocessing", "asyncio", "pty", "concurrent"}
STARTS = re.compile(
    r"Popen|run|call|check_call|check_output|getoutput|getstatusoutput|system|popen|startfile|fork\w*|exec[vl]\w*"
    r"|spawn\w*|posix_spawnp?|Process|Pool|ProcessPoolExecutor|create_subprocess_\w+|get_context"
)


def process_starts(path: Path) -> Iterator[str]:
    """Yield each name by which a file starts a process, or takes this Python's path to start one by."""
    nodes = nodes_of(path)
    in_messages = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES_THAT_START:
            yield from (alias.name for alias in node.names if STARTS.fullmatch(alias.name))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and STARTS.fullmatch(node.func.attr):
            dotted = ast.unparse(node.func)
            if dotted.partition(".")[0] in MODULES_THAT_START:
                yield dotted
        is_python = isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable"
        if is_python and id(node) not in in_messages:
            yield "sys.executable"


def test_python_is_started_in_one_place() -> None:
    """So that none of our processes can forget to leave out what lies in the working folder."""
    found = {path.relative_to(ROOT).as_posix(): set(process_starts(path)) for path in FILES}
    assert {place: names for place, names in found.items() if names and place not in STARTS_PROGRAMS} == {}
    assert {place for place, names in found.items() if "sys.executable" in names} == {"tasks/python_process.py"}
    assert all(found[place] for place in STARTS_PROGRAMS), "each still starts what is said of it"


def test_api_prints_nothing() -> None:
    api = [path for path in FILES if path.relative_to(ROOT).as_posix().startswith("orchestrator/api/")]
    names = {name for path in api for _, names in named_imports(path, types=True) for name in names}
    assert not {name for name in names if name.startswith("print") or name in ("Console", "make_console")}
    calls = {ast.unparse(node.func) for path in api for node in nodes_of(path) if isinstance(node, ast.Call)}
    assert calls and "print" not in calls


def test_input_errors_share_one_class() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in FILES
        for node in nodes_of(path)
        if isinstance(node, ast.ClassDef) and "ValueError" in map(ast.unparse, node.bases)
    ]
    assert not wrong, "the command line takes these for bugs. Derive them from depthrate.errors.InputError."


def test_one_room_has_the_words_of_fits() -> None:
    """All that shows fits takes its words from a sheet. The code of a group's state is no word: the store has it."""
    wrong = []
    for path in FILES:
        nodes = nodes_of(path)
        docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        place = path.relative_to(ROOT).as_posix()
        if place.startswith("orchestrator/sheet/") or place == "orchestrator/analysis/preference.py":
            continue
        for node in nodes:
            if isinstance(node, ast.Constant) and id(node) not in docs and "power law" in str(node.value).lower():
                wrong.append(f"{place}:{node.lineno}: {node.value}")
    assert not wrong, "\n".join(wrong)


def test_each_room_says_what_it_is_for() -> None:
    for folder in {path.parent for path in FILES}:
        doc = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
        assert doc, f"{folder.relative_to(ROOT)}/__init__.py has no docstring"


def test_one_name_is_installed() -> None:
    """So that nobody's own `tasks.py` or `storage` package collides with ours."""
    text = importlib.metadata.distribution("depthrate").read_text("top_level.txt")
    assert text is not None and text.split() == ["depthrate"]


def test_every_folder_is_found() -> None:
    assert len(FILES) > 30 and {path.relative_to(ROOT).parts[0] for path in FILES} == set(FOLDERS)


def test_public_names() -> None:
    import depthrate

    assert depthrate.__all__ == sorted(depthrate.__all__)
    assert all(hasattr(depthrate, name) for name in depthrate.__all__)
    assert {"open", "task", "load", "Results", "Sweep", "Interrupted"} <= set(depthrate.__all__)
