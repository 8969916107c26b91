"""The picture of the imports: arrows point down, and each library has one home."""

from __future__ import annotations

import ast
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
    "optuna": "orchestrator/search/studies.py",
    "plotly": "orchestrator/report",
    "pooch": "orchestrator/commands/data.py",
    "matplotlib": "orchestrator/report/export.py",
}
NEEDS_TORCH = {
    "tasks/collapse/pack.py",
    "tasks/measures/alignment.py",
    "tasks/measures/class_means.py",
    "tasks/measures/progressive.py",
    "tasks/measures/spectra.py",
    "tasks/networks/flat_parameters.py",
    "tasks/networks/operations.py",  # where a function is called, not where the module is imported
    "tasks/training/layers.py",
    "tasks/training/pack.py",
    "tasks/training/trainer.py",
}
FILES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]


def imports(path: Path) -> Iterator[str]:
    """Yield the modules a file imports at run time: what stands under `if TYPE_CHECKING` is for the type checker."""
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
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


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
