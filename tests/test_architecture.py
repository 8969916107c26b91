"""The picture of the imports: arrows point down, and each library has one home."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("orchestrator", "sweeps", "tasks", "storage", "slurm")
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
    "ray": "orchestrator/ray_executor.py",
    "optuna": "orchestrator/search.py",
    "plotly": "orchestrator/report",
    "pooch": "orchestrator/data.py",
    "matplotlib": "orchestrator/report_export.py",
}
TORCH_FREE = (
    "schema",
    "task",
    "theory",
    "data_files",
    "image_files",
    "reviews",
    "datasets",
    "collapse_schema",
    "collapse_cost",
    "collapse_task",
    "fit",
    "fit_models",
    "fit_intervals",
    "least_squares",
)
FILES = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]


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
        top = module.partition(".")[0]
        if top in PACKAGES and top != place.parts[0]:
            assert top in MAY_IMPORT[place.parts[0]], f"{place} imports {module}: an arrow up or across"
        if top in HOMES:
            assert str(place).startswith(HOMES[top]), f"{place} imports {module}, whose home is {HOMES[top]}"


def test_every_package_is_found() -> None:
    assert len(FILES) > 30 and {path.relative_to(ROOT).parts[0] for path in FILES} == set(PACKAGES)


def test_schemas_are_torch_free() -> None:
    for name in TORCH_FREE:
        assert "torch" not in {module.partition(".")[0] for module in imports(ROOT / "tasks" / f"{name}.py")}


def test_public_names() -> None:
    import depthrate

    assert depthrate.__all__ == sorted(depthrate.__all__)
    assert {"open", "task", "load_sweep", "Results", "Sweep", "Interrupted"} <= set(depthrate.__all__)
