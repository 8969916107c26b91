"""A store written by the last version without `format.json` (commit 07de987): read, upgraded, compacted, verified.

It holds `law` (compacted), `tuned` (a search, compacted), `wide` (which shares trials with law; the results of one were
removed), `gone` (removed, restorable), own columns and a tag. `store_before_format.json` is what that version read from it.
"""

import json
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

import depthrate
from depthrate.orchestrator.cli.app import app
from depthrate.storage.files.format import FORMAT

HERE = Path(__file__).parent
THEN = json.loads((HERE / "fixtures" / "store_before_format.json").read_text())
QUERY = "select sweep, depth, seed, trial_id, nc1, bend, note, tags from results order by all"


@pytest.fixture
def before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(HERE / "support"))  # where its task lies
    with tarfile.open(HERE / "fixtures" / "store_before_format.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "store"


def call(store: Path, *words: str) -> str:
    done = CliRunner().invoke(app, [*words, "--store", str(store)])
    assert done.exit_code == 0, done.output
    return done.output


def read(store: Path) -> list[dict[str, object]]:
    answer = depthrate.open(store).sql(QUERY)
    return [dict(zip(answer.columns, row, strict=True)) for row in answer.fetchall()]


def test_it_is_read_verified_upgraded_and_compacted_with_nothing_lost(before: Path) -> None:
    assert read(before) == THEN and "all as committed" in call(before, "verify")
    assert "has format 1" in call(before, "upgrade") and "Nothing to do" in call(before, "upgrade")
    assert json.loads((before / "format.json").read_text())["format"] == FORMAT
    call(
        before, "compact", "--retain-hours", "1e9"
    )  # what was removed when this store was made can still be brought back
    assert read(before) == THEN and "all as committed" in call(before, "verify")
    call(before, "sweeps", "restore", "gone")
    call(before, "trials", "restore", "--all")
    restored = {(row["depth"], row["seed"]) for row in read(before)}
    assert restored == {(row["depth"], row["seed"]) for row in THEN} | {(21, 0), (13, 0)}
    call(before, "compact", "--retain-hours", "0")
    call(before, "compact", "--retain-hours", "0")
    assert {(row["depth"], row["seed"]) for row in read(before)} == restored
    assert "all as committed" in call(before, "verify")
    told = json.loads(call(before, "plan", "wide", "--json"))
    assert (told["num_trials"], told["num_done"]) == (4, 4)
