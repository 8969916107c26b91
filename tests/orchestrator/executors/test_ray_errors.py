"""Ray's failure files are read as text, never unpickled."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

from ray import cloudpickle
from ray.air.execution._internal import actor_manager
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayActorError, RayTaskError

from depthrate.orchestrator.executors.ray.errors import describe_exit, error_of, kind_of, outlive_memory_kills

pytestmark = pytest.mark.ray


class Attack:
    """Runs something when it is unpickled."""

    def __init__(self, path: Path):
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._path),)


def failed(folder: Path, *errors: object) -> Any:
    """Return a trial of Tune's that failed with these errors, one after the other."""
    lines = [
        f"Failure # {number} (occurred at 2026-01-01_00-00-00)\n{error}\n" for number, error in enumerate(errors, 1)
    ]
    (folder / "error.txt").write_text("".join(lines))
    (folder / "error.pkl").write_bytes(cloudpickle.dumps(Attack(folder / "attacked")))
    return SimpleNamespace(error_file=str(folder / "error.txt"), pickled_error_file=str(folder / "error.pkl"))


def in_worker(text: str) -> RayTaskError:
    shown = f"Traceback (most recent call last):\n  File x\n{text}\n"
    return RayTaskError("Worker.train", shown, ValueError(text), proctitle="ray::Worker")


def test_errors_load_no_pickle(tmp_path: Path) -> None:
    error = error_of(failed(tmp_path, "another one", in_worker("ValueError: boom")))
    assert "ValueError: boom" in str(error) and "another one" not in str(error) and "Failure #" not in str(error)
    assert kind_of(error) == "task" and not (tmp_path / "attacked").exists()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (in_worker("OutOfMemoryError: Task was killed due to the node running low on memory."), "out_of_memory"),
        (ActorDiedError(), "worker_lost"),
        (ActorDiedError(in_worker("RuntimeError: no")), "worker_lost"),
        (
            "The actor died unexpectedly before finishing this task. The actor died because its node has died.",
            "node_lost",
        ),
        ("", "worker_lost"),
    ],
)
def test_error_text_gives_its_kind(error: object, kind: str, tmp_path: Path) -> None:
    assert kind_of(error_of(failed(tmp_path, error))) == kind


def test_equal_deaths_share_a_line(tmp_path: Path) -> None:
    def died(actor: str) -> str:
        text = f"The actor died.\n\tclass_name: Some\n\tactor_id: {actor}\n\tip: 10.0.0.1\nIt never ran.\n"
        return describe_exit(error_of(failed(tmp_path, text)))

    assert died("b5743633f75d040d") == died("36817ff3d050be57") == "RuntimeError: The actor died. It never ran."
    message = describe_exit(error_of(failed(tmp_path, in_worker("ValueError: boom"))))
    assert "boom" in message and "\n" not in message and "Traceback" not in message


def test_what_was_not_kept_is_said(tmp_path: Path) -> None:
    for path in (None, str(tmp_path / "nothing")):
        assert str(error_of(SimpleNamespace(error_file=path))) == "Ray stored no error"  # type: ignore[arg-type]


def test_out_of_memory_is_a_death(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Exception] = []

    class Manager:
        def _actor_task_failed(self, tracked_actor_task: object, exception: Exception) -> None:
            heard.append(exception)

    monkeypatch.setattr(actor_manager, "RayActorManager", Manager)
    outlive_memory_kills()
    outlive_memory_kills()  # each launch of a process asks for it
    other = in_worker("ValueError: boom")
    Manager()._actor_task_failed(tracked_actor_task=None, exception=OutOfMemoryError("running low on memory"))
    Manager()._actor_task_failed(None, OutOfMemoryError("running low on memory"))
    Manager()._actor_task_failed(None, exception=other)
    assert all(isinstance(error, RayActorError) and kind_of(error) == "out_of_memory" for error in heard[:2])
    assert heard[2] is other


@pytest.mark.parametrize("lacks", ["method", "class", "module"])
def test_foreign_internals_stay(lacks: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="depthrate")
    if lacks == "method":
        monkeypatch.delattr(actor_manager.RayActorManager, "_actor_task_failed")
    elif lacks == "class":
        monkeypatch.delattr(actor_manager, "RayActorManager")
    else:
        monkeypatch.setitem(sys.modules, actor_manager.__name__, None)
    outlive_memory_kills()
    assert "ends all packs of a launch" in caplog.text
