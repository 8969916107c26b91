"""What a launch leaves: checkpoints are deleted where they are, and a failing deletion is no failure."""

from pathlib import Path

import pytest

from depthrate.orchestrator.launch.launch import delete_checkpoints
from depthrate.storage.files.store import Store
from tests.support.here import printed
from tests.support.launches import OWN_TASKS


@pytest.mark.slow
def test_undeletable_checkpoint_is_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (sweep := tmp_path / "s.yaml").write_text(f"name: s\ntask: {OWN_TASKS}:power_law\ngrid: {{depth: [2, 3]}}\n")

    def refuse(self: Store, path: str) -> None:
        if path.startswith("checkpoints/"):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(Store, "delete", refuse)
    assert "all 2 trials are committed" in printed("run", sweep, "--store", tmp_path / "store", "--workers", 1)


def test_only_existing_checkpoints_are_deleted(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an object store each costs a request or two, and a large sweep has a hundred thousand packs."""
    for pack_id in ("p7", "p8"):
        folder.write(f"checkpoints/{pack_id}/pack.json", b"")
    deleted, delete = list[str](), Store.delete
    monkeypatch.setattr(Store, "delete", lambda self, path: (deleted.append(path), delete(self, path)))
    delete_checkpoints((f"p{number}" for number in range(1000) if number != 8), folder)
    assert deleted == ["checkpoints/p7"] and list(folder.list("checkpoints")) == ["checkpoints/p8/pack.json"]
