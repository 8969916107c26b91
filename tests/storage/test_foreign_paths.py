"""The content of a store never determines a path: entries that lead elsewhere are reported and not followed."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.executors.slurm.submissions import Submission, SubmittedPack, read_submissions
from depthrate.orchestrator.launch.launch_plan import check_sweep, make_plan
from depthrate.storage.attempts.records import read_records
from depthrate.storage.catalog.specs import newest_specs
from depthrate.storage.commits.commit import METADATA_KEY
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files import paths
from depthrate.storage.files.parquet import open_parquet, trials_bytes
from depthrate.storage.files.paths import ForeignNameError, identity, is_job_folder, is_safe
from depthrate.storage.files.protocol import InvalidFileError
from depthrate.storage.files.store import Store, StoreError
from depthrate.storage.maintenance.compact import compact
from depthrate.storage.maintenance.repair import repair
from depthrate.storage.maintenance.verify import verify
from depthrate.sweeps.load import load_sweep
from tests.support.tests_rows import A, B, commit

ELSEWHERE = ("../x", "..", ".", "", "/etc", "a/b", ".hidden", "a\x00b", "a\nb", "x" * 300, 7, None)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_names_cannot_leave_their_folder(name: Any) -> None:
    for make in (
        lambda: paths.spec_path(name, "h"),
        lambda: paths.table_path("trials", name, A, None),
        lambda: paths.table_path("trials", "s", name, None),
        lambda: paths.attempt_path("s", name),
        lambda: paths.log_path("s", name),
        lambda: paths.checkpoint_path.folder(name),
        lambda: paths.checkpoint_path("p", name),
        lambda: paths.fits_path(name),
        lambda: paths.batch_path("s", name, 1, "d"),
        lambda: paths.reports_path("s", name),
        lambda: paths.cancel_path(name),
        lambda: paths.submission_path("s", name),
        lambda: paths.trial_ids_path("s", name),
        lambda: paths.manifest_path("s", name),
    ):
        with pytest.raises(ForeignNameError, match="is invalid, expected letters"):
            make()


@pytest.mark.parametrize("path", ["../x", "a/../x", "/etc/passwd", "a//b", "./a", "a/.", "a/..", "a\x00"])
def test_store_refuses_outside_paths(store: Store, path: str) -> None:
    assert not is_safe(path)
    for act in (store.read, store.delete, lambda p: store.write(p, b""), lambda p: store.move(p, "a")):
        with pytest.raises(StoreError, match="leads out of store"):
            act(path)


@pytest.mark.parametrize("act", ["write", "delete", "move from", "move to", "delete_many"])
def test_outside_links_are_never_followed(folder: Store, act: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "p1").mkdir(parents=True)
    (outside / "p1" / "pack.ckpt").write_bytes(b"mine")
    Path(folder.root).mkdir()
    (Path(folder.root) / "checkpoints").symlink_to(outside)
    folder.write("a", b"a")
    acts: dict[str, Callable[[], object]] = {
        "write": lambda: folder.write("checkpoints/p1/pack.ckpt", b"theirs"),
        "delete": lambda: folder.delete("checkpoints/p1"),
        "delete_many": lambda: folder.delete_many(["checkpoints/p1/pack.ckpt"]),
        "move from": lambda: folder.move("checkpoints/p1/pack.ckpt", "b"),
        "move to": lambda: folder.move("a", "checkpoints/p1/pack.ckpt"),
    }
    with pytest.raises(OSError, match="a link leads out of store"):
        acts[act]()
    assert (outside / "p1" / "pack.ckpt").read_bytes() == b"mine"


def test_links_and_pipes_are_skipped(folder: Store, tmp_path: Path) -> None:
    commit(folder, A, ["t1"])
    before = folder.list()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x.parquet").write_bytes(b"")
    (Path(folder.root) / "metrics" / "sweep=s" / "away").symlink_to(tmp_path / "outside")
    (Path(folder.root) / "metrics" / "up").symlink_to(folder.root)
    os.mkfifo(Path(folder.root) / "curves" / "sweep=s" / "notes")
    assert folder.list() == before and not verify(folder).findings
    os.mkfifo(Path(folder.root) / "curves" / "sweep=s" / "pipe.parquet")  # at the path of a store's file
    (finding,) = verify(folder).findings
    assert (finding.path, finding.kind) == ("curves/sweep=s/pipe.parquet", "damaged") and "named pipe" in finding.what


def test_linked_files_are_not_copied(folder: Store, tmp_path: Path) -> None:
    secret = tmp_path / "id_ed25519"
    secret.write_text("a private key")
    for attempt, trial in ((A, "t1"), (B, "t2")):
        commit(folder, attempt, [trial])
    log, tagged = (Path(folder.root, path) for path in (f"attempts/sweep=s/{A}.log", "tags/20260101T000000_0.json"))
    tagged.parent.mkdir()
    for link in (log, tagged):
        link.symlink_to(secret)
    compact(folder, grace_s=0)
    written = [path for path in folder.list() if path.endswith((".parquet", ".json"))]
    written.remove("tags/20260101T000000_0.json")
    assert not any(b"private" in folder.read(path) for path in written)
    for path in (log, tagged):
        with pytest.raises(InvalidFileError, match="link out of .*id_ed25519.* expected a file"):
            folder.read(str(path.relative_to(folder.root)))
    assert take_snapshot(folder).trial_ids() == {"t1", "t2"} and secret.read_text() == "a private key"


def with_metadata(content: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Change a commit's entries for its files, leaving everything else intact."""
    with open_parquet(content) as parquet:
        table, metadata = parquet.read(), json.loads(parquet.metadata.metadata[METADATA_KEY])
    change(metadata["files"])
    return trials_bytes(table.replace_schema_metadata({METADATA_KEY: json.dumps(metadata)}), is_commit=True)


@pytest.mark.parametrize("named", ["../outside/keys.txt", "{outside}/keys.txt", f"metrics/sweep=s/{B}.parquet"])
def test_foreign_files_make_a_commit_corrupt(folder: Store, named: str, tmp_path: Path) -> None:
    commit(folder, A, ["t1"])
    commit(folder, B, ["t2"])
    keys = tmp_path / "outside" / "keys.txt"
    keys.parent.mkdir()
    keys.write_text("secret")
    path = f"trials/sweep=s/{A}.parquet"

    def point_elsewhere(files: dict[str, Any]) -> None:
        files["metrics"]["path"] = named.format(outside=keys.parent)

    folder.write(path, with_metadata(folder.read(path), point_elsewhere))
    assert take_snapshot(folder).trial_ids() == {"t2"}
    verification = verify(folder)
    (finding,) = verification.findings
    assert finding.path == path and "is not a file of this commit" in finding.what
    result = repair(folder, verification)
    assert result.moved == [path] and keys.read_text() == "secret" and take_snapshot(folder).trial_ids() == {"t2"}


def manifest_of(store: Store) -> tuple[str, dict[str, Any]]:
    (path,) = store.list("manifest")
    return path, json.loads(store.read(path))


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a file outside": lambda m: m["files"]["metrics"][0].update(path="../keys.txt"),
    "an absolute file": lambda m: m["files"]["metrics"][0].update(path="/etc/hostname"),
    "a file of another table": lambda m: m["files"]["metrics"][0].update(path=m["files"]["curves"][0]["path"]),
    "commits elsewhere": lambda m: m["replaces"].update(commits=["../../keys"]),
    "compactions elsewhere": lambda m: m["replaces"].update(compactions=["../x"]),
    "attempts elsewhere": lambda m: m["replaces"].update(attempts={"../../x": 3}),
    "logs elsewhere": lambda m: m["replaces"].update(logs=["../../../etc/passwd"]),
    "another sweep": lambda m: m.update(sweep="../x"),
    "another compaction": lambda m: m.update(compaction_id="../x"),
    "no time": lambda m: m.update(created_at=float("-inf")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_foreign_manifest_entries_are_ignored(folder: Store, change: str) -> None:
    commit(folder, A, ["t1"])
    commit(folder, B, ["t2"])
    compact(folder)
    path, fields = manifest_of(folder)
    CHANGES[change](fields)
    fields.pop("sha256")  # as an attacker would
    folder.write(path, json.dumps(fields).encode())
    assert take_snapshot(folder).trial_ids() == {"t1", "t2"}, "what it replaced is still there"
    assert path in {finding.path for finding in verify(folder).findings}
    before = folder.list()
    compact(folder, grace_s=0, at_least=100)
    assert folder.list() == before, "nothing is deleted on its word"


def test_records_speak_of_their_own_attempt_alone(folder: Store) -> None:
    commit(folder, A, ["t1"])
    record = {"attempt_id": "../../../../tmp/x", "sweep": "s", "trial_ids": ["t9"], "state": "running", "started_at": 1}
    folder.write(f"attempts/sweep=s/{B}.json", json.dumps(record).encode())
    assert [record["attempt_id"] for record in read_records(folder, take_snapshot(folder))] == [A]
    assert [finding.path for finding in verify(folder).findings] == [f"attempts/sweep=s/{B}.json"]


def test_submission_stays_in_its_folder(folder: Store, tmp_path: Path) -> None:
    name = f"depthrate-s-{A}"
    good = Submission(name, "s", "lab", f"/scratch/me/s/{name}", [[SubmittedPack(A, "p", ["t"])]], ["7_0"])
    good.write(folder)
    (path,) = folder.list("jobs")
    assert read_submissions(folder, ["s"]) == [good] and not verify(folder).findings
    for wrong in (
        {"folder": str(tmp_path)},
        {"folder": f"/home/me/../you/s/{name}"},
        {"folder": f"/scratch/me/other/{name}"},
        {"name": "../x"},
        {"sweep": "../s"},
        {"packs": [[{"attempt_id": "../x", "pack_id": "p", "trial_ids": []}]]},
        {"packs": [[{"attempt_id": A, "pack_id": "../p", "trial_ids": []}]]},
        {"job_ids": ["7; rm -r ~"]},
        {"packs": None},
        {"folder": None},
    ):
        folder.write(path, json.dumps(vars(good) | {"packs": [[vars(good.packs[0][0])]]} | wrong).encode())
        assert read_submissions(folder, ["s"]) == [], wrong
    assert not is_job_folder("/home/me/s/notes", "s", "notes"), "no launch names its jobs so"


def test_checkpoint_belongs_to_its_folder(folder: Store, tiny_sweep: Path) -> None:
    folder.write("checkpoints/p1/pack.json", b'{"trial_ids": ["../../x"], "wall_s": 1}')
    plan = make_plan(check_sweep(load_sweep(str(tiny_sweep))), folder)
    assert plan.num_pending == 4 and not plan.stale_checkpoints
    (finding,) = verify(folder).findings
    assert finding.path == "checkpoints/p1/pack.json" and "does not name the trials of its checkpoint" in finding.what


def test_spec_belongs_to_its_folder(folder: Store) -> None:
    folder.write("sweeps/s/0123.json", b'{"spec": {"name": "../x"}, "launched_at": "2026"}')
    assert newest_specs(folder) == {} and [f.path for f in verify(folder).findings] == ["sweeps/s/0123.json"]


def test_foreign_keys_stay_untouched() -> None:
    store = Store("memory://foreign-keys")
    commit(store, A, ["t1"])
    store.fs.store["/foreign-keys/checkpoints/../x/pack.json"] = store.fs.store[
        f"/foreign-keys/trials/sweep=s/{A}.parquet"
    ]
    verification = verify(store)
    assert [f.kind for f in verification.findings] == ["foreign"] and "leads elsewhere" in verification.findings[0].what
    before = dict(store.fs.store)
    assert repair(store, verification).moved == [] and dict(store.fs.store) == before
    assert results_of(store).sql("select count(*) from trials").fetchall() == [(1,)]
    store.fs.store.clear()


def test_what_identities_may_be() -> None:
    for name in (A, "compact_x", "quick-start.v2", f"depthrate-s-{A}", "0", "7_0"):
        assert identity(name) == name
