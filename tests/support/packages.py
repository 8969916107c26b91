"""Packages as `pip install` leaves them: modules, and metadata that register objects by entry points."""

import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("orchestrator", "sweeps", "tasks", "storage", "slurm")
EntryPoints = Mapping[str, Mapping[str, str]]


def write_metadata(site: Path, name: str, entry_points: EntryPoints) -> None:
    """Write the metadata of an installed package into a folder of packages."""
    folder = site / f"{name}-0.1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    groups = [[f"[{name}]", *(f"{k} = {v}" for k, v in values.items())] for name, values in entry_points.items()]
    lines = [line for group in groups for line in group]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")


def own_entry_points() -> dict[str, dict[str, str]]:
    """Return the entry points that depthrate declares."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    return declared


def install_copy(site: Path, *left_out: str) -> Path:
    """Install depthrate into a folder of packages, without some of its folders and what is registered of them."""
    package = site / "depthrate"
    shutil.copytree(ROOT / "src/depthrate", package, ignore=shutil.ignore_patterns(*FOLDERS, "__pycache__"))
    for name in FOLDERS:
        shutil.copytree(ROOT / name, package / name, ignore=shutil.ignore_patterns("__pycache__"))
    modules = [f"depthrate.{folder.replace('/', '.')}." for folder in left_out]
    for folder in left_out:
        shutil.rmtree(package / folder)
    entry_points = {
        group: {name: value for name, value in values.items() if not value.startswith(tuple(modules))}
        for group, values in own_entry_points().items()
    }
    write_metadata(site, "depthrate", entry_points)
    return site
