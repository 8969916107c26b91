"""The picture of the imports: arrows point down, in no circle, each library has one home; and nothing grows too large."""

from __future__ import annotations

import ast
import graphlib
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("orchestrator", "sweeps", "tasks", "storage", "slurm")
MAY_IMPORT = {
    "orchestrator": {"sweeps", "tasks", "storage", "slurm"},
    "sweeps": {"tasks"},
    "tasks": set(),
    "storage": set(),
    "slurm": set(),
}
HOMES = {
    "torch": "tasks",
    "fsspec": "storage",
    "pyarrow": "storage",
    "duckdb": "storage",
    "submitit": "slurm",
    "ray": "orchestrator/executors/ray_",
    "optuna": "orchestrator/search",
    "pooch": "orchestrator/commands/data.py",
    "matplotlib": "orchestrator/report/drawing/",
}
NEEDS_TORCH = {
    "tasks/collapse/pack.py",
    "tasks/dufm/descent.py",
    "tasks/dufm/pack.py",
    "tasks/dufm/starts.py",
    "tasks/measures/alignment.py",
    "tasks/measures/class_means.py",
    "tasks/measures/geodesic.py",
    "tasks/measures/labelled.py",
    "tasks/measures/measure.py",
    "tasks/measures/norms.py",
    "tasks/measures/progressive.py",
    "tasks/measures/spectra.py",
    "tasks/measures/stream.py",
    "tasks/mufm/descent.py",
    "tasks/mufm/pack.py",
    "tasks/networks/convolutions.py",  # where a function is called, not where the module is imported
    "tasks/networks/flat_parameters.py",
    "tasks/networks/module.py",  # where a function is called, not where the module is imported
    "tasks/networks/module_layers.py",
    "tasks/networks/module_report.py",
    "tasks/networks/module_seconds.py",
    "tasks/networks/operations.py",  # where a function is called, not where the module is imported
    "tasks/networks/smooth_relu.py",
    "tasks/own/loop.py",
    "tasks/own/pack.py",
    "tasks/own/probe.py",
    "tasks/training/checkpoint.py",
    "tasks/training/compiled_step.py",
    "tasks/training/computing.py",
    "tasks/training/continuation.py",
    "tasks/training/divergence.py",
    "tasks/training/held_out.py",
    "tasks/training/layers.py",
    "tasks/training/lbfgs.py",
    "tasks/training/pack.py",
    "tasks/training/polish.py",
    "tasks/training/rates.py",
    "tasks/training/replayed_step.py",
    "tasks/training/smoothed_objective.py",
    "tasks/training/step.py",
    "tasks/training/step_cache.py",
    "tasks/training/step_program.py",
    "tasks/training/trainer.py",
    "tasks/training/training.py",
    "tasks/words/geometry.py",
    "tasks/words/measure.py",
    "tasks/words/pack.py",
    "tasks/words/sentences.py",
    "tasks/words/trainer.py",
}
LONGEST_FUNCTION, LONGEST_FILE = 60, 350
LONG_FUNCTIONS: set[str] = set()
LONG_FILES: set[str] = set()
"""What is longer today; nothing may be added."""
FILES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]


def imports(path: Path) -> Iterator[str]:
    """Yield the modules a file imports at run time."""
    return (module for module, _ in named_imports(path))


def named_imports(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (module, names taken from it) at run time: what stands under `if TYPE_CHECKING` is for the type checker."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or "", [alias.name for alias in node.names]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down_and_libraries_stay_home(path: Path) -> None:
    place = path.relative_to(ROOT)
    for module in imports(path):
        top, _, rest = module.partition(".")
        assert top not in FOLDERS, f"{place} imports {module}: the name is depthrate.{module}"
        if top == "depthrate" and (other := rest.partition(".")[0]) != place.parts[0]:
            assert other in MAY_IMPORT[place.parts[0]], f"{place} imports {module}: an arrow up or across"
        if top in HOMES:
            assert str(place).startswith(HOMES[top]), f"{place} imports {module}, whose home is {HOMES[top]}"


def layer(place: Path) -> int:
    """Return how high a file of orchestrator/ stands: its core, what serves one purpose, commands, then what calls them."""
    if place.parent.name == "orchestrator":
        return 4 if place.name in ("cli.py", "command_groups.py", "__main__.py") else 1
    if place.parts[1] == "notebook":
        return 4
    if place.parts[1] == "commands":
        return 3
    return 1 if place == Path("orchestrator/executors/executor.py") else 2  # the contract belongs to the core


def modules_of(path: Path) -> Iterator[Path]:
    """Yield the files of ours that a file imports, also inside functions."""
    known = {each.relative_to(ROOT).with_suffix("") for each in FILES}
    for module, names in named_imports(path):
        if module.partition(".")[0] == "depthrate":
            place = Path(*module.split(".")[1:])
            for found in (place, place / "__init__", *(place / name for name in names)):
                if found in known:
                    yield found.with_suffix(".py")


def test_imports_run_in_no_circle() -> None:
    graph = {path.relative_to(ROOT): set(modules_of(path)) for path in FILES}
    assert sum(map(len, graph.values())) > 300
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail("imports run in a circle: " + " <- ".join(map(str, error.args[1])))


@pytest.mark.parametrize("path", sorted((ROOT / "orchestrator").rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_stand_on_what_serves_them_and_that_on_the_core(path: Path) -> None:
    place = path.relative_to(ROOT)
    for other in modules_of(path):
        if other.parts[0] == "orchestrator":
            assert layer(other) <= layer(place), f"{place} imports {other}: an arrow up"


def test_no_function_is_long() -> None:
    found = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and (length := node.end_lineno - node.lineno + 1) > LONGEST_FUNCTION:
                found[f"{path.relative_to(ROOT)}:{node.name}"] = length
    assert found.keys() <= LONG_FUNCTIONS, f"over {LONGEST_FUNCTION} lines: {found}; part them"
    assert found.keys() == LONG_FUNCTIONS, "some are short now: take them out of LONG_FUNCTIONS, which may only shrink"


def test_no_file_is_long() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in FILES}
    found = {place: length for place, length in lengths.items() if length > LONGEST_FILE}
    assert found.keys() <= LONG_FILES, f"over {LONGEST_FILE} lines: {found}; part them"
    assert found.keys() == LONG_FILES, "some are short now: take them out of LONG_FILES, which may only shrink"


def test_one_name_is_installed() -> None:
    """So that nobody's own `tasks.py` or `storage` package collides with ours."""
    text = importlib.metadata.distribution("depthrate").read_text("top_level.txt")
    assert text is not None and text.split() == ["depthrate"]


def test_every_folder_is_found() -> None:
    assert len(FILES) > 30 and {path.relative_to(ROOT).parts[0] for path in FILES} == set(FOLDERS)


@pytest.mark.parametrize("path", sorted((ROOT / "tasks").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_what_plans_read_is_torch_free(path: Path) -> None:
    place = str(path.relative_to(ROOT))
    assert place in NEEDS_TORCH or "torch" not in {module.partition(".")[0] for module in imports(path)}


def test_public_names() -> None:
    import depthrate

    assert depthrate.__all__ == sorted(depthrate.__all__) and all(
        hasattr(depthrate, name) for name in depthrate.__all__
    )
    assert {"open", "task", "load_sweep", "Results", "Sweep", "Interrupted"} <= set(depthrate.__all__)
