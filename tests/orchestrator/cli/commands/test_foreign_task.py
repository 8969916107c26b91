"""A store that others write does not choose whose code is executed."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from depthrate.orchestrator.launch.launch_plan import check_sweep
from depthrate.storage.catalog.code import store_code
from depthrate.storage.catalog.specs import write_spec
from depthrate.storage.files.store import Store
from depthrate.sweeps.load import load_sweep
from depthrate.tasks.code import load
from tests.support.here import invoke
from tests.support.tests_rows import commit

LAW = """
from pathlib import Path
import depthrate

Path(__file__).with_name("executed").touch()

@depthrate.task(version=1)
def law(*, depth: int):
    return {"metrics": [{"layer": depth, "nc1": 1 / depth}]}
"""
STRANGER = 65533
BY_NAME = [
    ["fit", "s"],
    ["plan", "s"],
    ["run", "s", "--device", "cpu"],
    ["report", "s", "-o", "r.html"],
    ["debug", "1"],
    ["export", "s", "sqlite:///x.db"],
]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="files of several users are made by root")


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a task, a sweep, and a store in which it was launched and committed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "law.py").write_text(LAW)
    content = {"name": "s", "task": "./law.py:law", "grid": {"depth": [2, 3, 4]}, "fit": [{"metric": "nc1"}]}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(content))
    checked, store = check_sweep(load_sweep("s.yaml")), Store("store")
    write_spec(store, "s", checked.sweep.spec_hash(), checked.sweep.spec(), checked.trials.ids)
    for number, trial in enumerate(checked.trials):
        commit(store, f"20260101T000000_{number:012d}", [trial.trial_id], sweep="s", params=dict(trial.params))
    (tmp_path / "executed").unlink()
    load._run_file.cache_clear()  # whoever loads the task executes its file again
    return tmp_path


def call(*arguments: str) -> tuple[int, str]:
    return invoke(*arguments, "--store", "store")


def strangers_module(lab: Path) -> None:
    (lab / "parts.py").write_text("")
    (lab / "law.py").write_text(f"import parts\n{LAW}")
    os.chown(lab / "parts.py", STRANGER, STRANGER)


def link_to_a_strangers_file(lab: Path) -> None:
    strangers_module(lab)
    (lab / "parts.py").rename(lab / "theirs.py")
    (lab / "parts.py").symlink_to("theirs.py")


def sticky_home(lab: Path) -> None:
    """As on a scratch disk."""
    lab.chmod(0o1777)


ATTACKS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a module beside it is a stranger's": (strangers_module, "/parts.py belongs to another user (id 65533)"),
    "a link to a stranger's file": (link_to_a_strangers_file, "/theirs.py belongs to another user (id 65533)"),
    "the file is a stranger's": (
        lambda lab: os.chown(lab / "law.py", STRANGER, 0),
        "/law.py belongs to another user (id 65533)",
    ),
    "mode 666": (lambda lab: (lab / "law.py").chmod(0o666), "/law.py can be written by everybody (mode 666)"),
    "a writable folder": (lambda lab: lab.chmod(0o777), " can be written by everybody (mode 777)"),
    "a sticky folder": (sticky_home, " can be written by everybody (mode 1777)"),
}


@needs_root
@pytest.mark.parametrize(("attack", "words"), ATTACKS.values(), ids=ATTACKS)
def test_others_code_is_not_executed(attack: Callable[[Path], None], words: str, launched: Path) -> None:
    attack(launched)
    for command in BY_NAME:
        code, output = call(*command)
        assert code == 2 and "sweep 's' in the store names the code" in output, command
        assert f"{words}. Give the sweep's file instead of its name, or review" in output
        assert not (launched / "executed").exists(), command


@needs_root
def test_named_sweep_file_runs_another_users_code(launched: Path) -> None:
    """As root does in a container, where files belong to the user outside it; another user is asked, see test_trust.py."""
    strangers_module(launched)
    assert call("fit", "s.yaml")[0] == 0 and (launched / "executed").exists()


def test_custom_file_runs_from_its_store(launched: Path) -> None:
    assert call("fit", "s")[0] == 0 and (launched / "executed").exists()


def test_shared_code_runs_as_trusted(launched: Path) -> None:
    (launched / "store").chmod(0o777)
    code, output = call("fit", "s")
    assert code == 2 and f"{launched}/store can be written by everybody (mode 777)" in output
    assert not (launched / "executed").exists()
    content_hash = output.partition("depthrate trust ")[2].split()[0]
    code, output = accept(content_hash)
    assert code == 0 and f"code/{content_hash}/law.py" in output
    assert call("fit", "s")[0] == 0 and (launched / "executed").exists()
    (launched / "executed").unlink()
    (launched / "law.py").write_text(LAW + "# edited\n")
    assert call("fit", "s")[0] == 2 and not (launched / "executed").exists(), "only that very code was accepted"
    assert accept("0" * 32)[0] == 2 and accept("../x")[0] == 2


def test_who_launches_code_has_accepted_it(launched: Path) -> None:
    (launched / "store").chmod(0o777)
    shutil.rmtree(launched / "store/trials")
    assert call("run", "s.yaml", "--workers", "1", "--device", "cpu")[0] == 0
    (launched / "executed").unlink()
    load._run_file.cache_clear()
    assert call("fit", "s")[0] == 0 and (launched / "executed").exists()


def test_stored_code_needs_its_full_hash(launched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = load_sweep("s.yaml").load_task()
    assert task.code is not None
    version = store_code(Store("store"), task.code.main, task.code.contents)
    assert version == task.code.content_hash, "one name for a version, in a store and where it is unpacked"
    assert call("plan", "s.yaml", "--code-version", version[:8])[0] == 0
    (launched / "store").chmod(0o777)
    code, output = call("plan", "s.yaml", "--code-version", version[:8])
    assert code == 2 and f"the full hash to run it: --code-version {version}" in output
    assert call("plan", "s.yaml", "--code-version", version)[0] == 0
    Store("store").write(f"code/{version}/files/law.py", b"raise SystemExit")
    assert call("plan", "s.yaml", "--code-version", version)[0] == 2


def test_shared_module_is_not_imported(launched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the checked bytes are executed, in a folder of their own
    (launched / "laws.py").write_text(LAW.replace("Path(__file__)", f"Path({str(launched / 'laws.py')!r})"))
    monkeypatch.syspath_prepend(str(launched))
    write_spec(Store("store"), "t", "0" * 16, {"name": "t", "task": "laws:law", "grid": {"depth": [2, 3]}}, ["t"])
    assert call("plan", "t")[0] == 0 and (launched / "executed").exists()
    (launched / "executed").unlink()
    del sys.modules["laws"]
    (launched / "store").chmod(0o777)
    for task in ("laws:law", "antigravity:law"):
        write_spec(Store("store"), "t", "0" * 16, {"name": "t", "task": task, "grid": {"depth": [2, 3]}}, ["t"])
        code, output = call("plan", "t")
        assert code == 2 and "is not executed: " in output
    assert not (launched / "executed").exists() and "antigravity" not in sys.modules


def accept(content_hash: str) -> tuple[int, str]:
    return invoke("trust", content_hash)


def test_status_executes_nothing(launched: Path) -> None:
    assert call("status")[0] == 0 and call("logs", "")[0] == 0
    assert not (launched / "executed").exists()


def test_working_folder_shadows_no_installed_module(launched: Path) -> None:
    (launched / "yaml.py").write_text(f"open({str(launched / 'executed')!r}, 'w')")
    command = [sys.executable, "-m", "depthrate", "plan", "s.yaml", "--store", "store"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    (launched / "law.py").write_text(LAW.replace("Path(__file__)", "# Path(__file__)"))
    done = subprocess.run(command, cwd=launched, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (launched / "executed").exists()
