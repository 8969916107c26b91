"""What is installed is one name, and it works from any folder."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow
FOLDERS = ("orchestrator", "sweeps", "tasks", "storage", "slurm")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this checkout, built from a copy so that nothing is left in it."""
    pytest.importorskip("setuptools", minversion="77", reason="needs pip install 'setuptools>=77'")
    copy, built = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("wheel")
    for name in (*FOLDERS, "src"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(built), "."]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = built.glob("*.whl")
    return found


def test_wheel_holds_one_name_and_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"depthrate"}, tops
    kinds = (".py", ".yaml", ".toml", ".gz", ".js", ".css")
    wanted = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in kinds]
    assert len(wanted) > 100
    assert {f"depthrate/{path.relative_to(ROOT)}" for path in wanted} <= names


def test_runs_beside_shadowing_folders(wheel: Path, tmp_path: Path) -> None:
    installed, here = tmp_path / "installed", tmp_path / "here"
    zipfile.ZipFile(wheel).extractall(installed)
    (here / "tasks").mkdir(parents=True)
    for name in ("storage.py", "tasks/__init__.py", "slurm.py"):
        (here / name).write_text("raise RuntimeError('the wrong one')\n")
    small = ["--set", "steps=20", "--set", "depth=[2]", "--set", "width=8", "--store", str(tmp_path / "store")]
    command = [sys.executable, "-m", "depthrate", "run", "quickstart", *small]
    environment = os.environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "all 3 trials are committed" in done.stdout, done.stdout + done.stderr
