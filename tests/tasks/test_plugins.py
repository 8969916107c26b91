"""Registered objects: found by name, imported on request, refused with the package that provides them."""

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from depthrate.tasks import plugins, registry
from depthrate.tasks.interface import TaskError
from depthrate.tasks.loading import load_task
from depthrate.tasks.plugins import PluginError
from depthrate.tasks.registry import find_task, registered_task, registered_tasks, task_names
from tests.support.packages import install_copy, own_entry_points, write_metadata

GROUP = registry.GROUP
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_imports: None) -> Iterator[Install]:
    """Install a package with one module; what it registers is seen until the test ends."""

    def forget() -> None:
        for cached in (plugins._entry_points, plugins._installed, plugins._source_tree_entries, find_task):
            cached.cache_clear()

    def install(code: str, name: str = "outside", **entry_points: str) -> None:
        (tmp_path / f"{name}.py").write_text(dedent(code))
        write_metadata(tmp_path, name, {GROUP: entry_points})
        forget()

    monkeypatch.syspath_prepend(str(tmp_path))
    yield install
    monkeypatch.undo()
    forget()


TASK = """
    import depthrate

    @depthrate.task(version=3)
    def swing(length: float, seed: int = 0) -> dict:
        return {"metrics": [{"period": length**0.5}]}
"""


def test_registered_function_of_a_package(install: Install) -> None:
    install(TASK, pendulum="outside:swing")
    assert task_names() == (*own_entry_points()[GROUP], "pendulum") and "outside" not in sys.modules
    task = load_task("pendulum")
    assert (task.name, task.version, task.code) == ("pendulum", 3, None)
    assert find_task("pendulum") is not None and "pendulum" in registered_tasks()
    assert "pendulum" not in registry.builtin_task_names()
    with pytest.raises(TaskError, match="'pendulum'"):
        load_task("pendulun")


@pytest.mark.parametrize(
    ("code", "value"),
    [("raise RuntimeError('half installed')", "outside:TASK"), ("TASK = 1", "outside:TASK"), ("", "outside:TASK")],
    ids=["fails", "no task", "nothing there"],
)
def test_faulty_plugin_is_named(install: Install, caplog: pytest.LogCaptureFixture, code: str, value: str) -> None:
    install(code, pendulum=value)
    with pytest.raises(PluginError, match=r"depthrate\.tasks 'pendulum'"):
        registered_task("pendulum")
    with caplog.at_level(logging.WARNING, logger="depthrate"):
        assert find_task("pendulum") is None and set(registered_tasks()) == set(own_entry_points()[GROUP])
    assert caplog.text.count("'pendulum'") == 2


def test_a_task_is_registered_by_its_own_name(install: Install) -> None:
    install("from depthrate.tasks.supervised.task import COLLAPSE as TASK", pendulum="outside:TASK")
    with pytest.raises(PluginError, match="named 'collapse'"):
        registered_task("pendulum")


def test_two_packages_cannot_register_one_name(install: Install) -> None:
    install(TASK, collapse="outside:swing")
    with pytest.raises(PluginError, match=r"registered twice, as depthrate\..* and as outside:swing"):
        task_names()


def test_source_copy_names_missing_metadata(tmp_path: Path) -> None:
    site = install_copy(tmp_path)
    code = """
        from depthrate.tasks.supervised.task import COLLAPSE
        from depthrate.tasks.plugins import PluginError
        from depthrate.tasks.loading import load_task
        assert load_task("collapse") is COLLAPSE
    """
    for path in (site / "depthrate-0.1.0.dist-info").iterdir():
        if path.name == "entry_points.txt":
            path.unlink()
    missing = """
        try:
            load_task("words")
        except PluginError as error:
            assert "pip install" in str(error)
        else:
            raise AssertionError
    """
    without = dedent(code).replace('assert load_task("collapse") is COLLAPSE', "") + dedent(missing)
    assert _run(site, without) == ""
    (site / "depthrate/pyproject.toml").write_text((plugins.PROJECT_FILE).read_text())
    assert _run(site, dedent(code)) == "", "a source tree declares them itself"


def _run(site: Path, code: str) -> str:
    alone = {"PYTHONPATH": str(site), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], env=alone, capture_output=True, text=True, check=False)
    return done.stderr
