"""Results of edited code never mix silently with those of the code before."""

import io
import json
import shutil
import time
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

import depthrate
from depthrate.orchestrator.api.find_sweep import sweep_to_launch
from depthrate.orchestrator.attempts.record import Attempt
from depthrate.orchestrator.cli.app import app
from depthrate.orchestrator.code import permission
from depthrate.orchestrator.launch.launch_plan import check_sweep
from depthrate.storage.catalog.code import list_code_hashes, read_code
from depthrate.storage.catalog.specs import read_specs, write_spec
from depthrate.storage.commits.commit import METADATA_KEY
from depthrate.storage.files.parquet import trials_bytes
from depthrate.storage.files.store import Store
from depthrate.sweeps.load import sweep_of_spec
from depthrate.tasks.code.trust import STRICT_MODES
from depthrate.tasks.interface import TaskCode

LAW = """
import depthrate
from parts import SCALE

@depthrate.task(version=1)
def law(*, depth: int, seed: int = 0):
    return {"metrics": [{"layer": depth, "nc1": SCALE * depth ** -1.0}]}
"""
STEADY = """
from pathlib import Path
import depthrate
from parts import SCALE

@depthrate.task(version=1)
def law(*, depth: int, seed: int = 0):
    if depth == 3:  # somebody edits while it runs
        Path(__file__).write_text("raise SystemExit('edited')")
        Path(__file__).with_name("parts.py").write_text("SCALE = 7.0")
    return {"metrics": [{"layer": depth, "nc1": SCALE * depth ** -1.0}]}
"""


class Lab:
    """A folder with a task, a sweep and a store."""

    def __init__(self, folder: Path, depths: list[int]):
        self.folder, self.store = folder, Store(str(folder / "store"))
        (folder / "law.py").write_text(LAW)
        (folder / "parts.py").write_text("SCALE = 1.0\n")
        self.write_sweep(depths)

    def write_sweep(self, depths: list[int], task: str = "./law.py:law") -> None:
        content = {"name": "s", "task": task, "grid": {"depth": depths}, "fit": [{"metric": "nc1"}]}
        (self.folder / "s.yaml").write_text(yaml.safe_dump(content))

    def call(self, verb: str, *words: str) -> tuple[int, str]:
        what = [str(self.folder / "s.yaml")] if verb in ("run", "plan", "fit") else []
        result = CliRunner().invoke(app, [verb, *what, *words, "--store", self.store.url])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.output

    def run(self, *words: str) -> tuple[int, str]:
        return self.call("run", "--workers", "1", "--device", "cpu", *words)

    def nc1(self) -> dict[int, float]:
        rows = depthrate.open(self.store.url).sql("select depth, nc1 from results order by depth").fetchall()
        return {depth: round(nc1 * depth, 6) for depth, nc1 in rows}

    def num_attempts(self) -> int:
        return len([path for path in self.store.list("attempts") if path.endswith(".json")])


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a lab that was run."""
    lab = Lab(tmp_path_factory.mktemp("launched"), [2, 3, 4])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(lab.folder / "state"))
        code, output = lab.run()
    assert code == 0, output
    return lab.folder / "store"


@pytest.fixture
def lab(launched: Path, tmp_path: Path) -> Lab:
    shutil.copytree(launched, tmp_path / "store")
    return Lab(tmp_path, [2, 3, 4])


def test_edited_module_stops_the_launch(lab: Lab) -> None:
    (lab.folder / "parts.py").write_text("SCALE = 2.0\n")
    lab.write_sweep([2, 3, 4, 5])
    before = lab.store.list()
    code, output = lab.run()
    assert code == 2 and lab.store.list() == before, "nothing was started or written"
    for part in (
        "the code of task 'law:law' has changed. Done with other versions: 3 of 4 trials committed.",
        "parts.py (-1 +1 lines)",
        "-SCALE = 1.0",
        "+SCALE = 2.0",
        "--rerun",
        "--keep-results",
        "raise the version, @depthrate.task(version=2) in law.py, line 5",
    ):
        assert part in output, part
    assert "run would stop" in lab.call("plan")[1]


def test_rerun_and_restore_code(lab: Lab) -> None:
    (lab.folder / "parts.py").write_text("SCALE = 2.0\n")
    lab.write_sweep([2, 3, 4, 5])
    code, output = lab.run("--rerun")
    assert code == 0, output
    assert lab.nc1() == {2: 2, 3: 2, 4: 2, 5: 2}
    assert lab.call("compact", "--retain-hours", "0")[0] == 0 and lab.nc1() == {2: 2, 3: 2, 4: 2, 5: 2}
    assert lab.call("verify")[0] == 0
    assert "4 trials, 4 done" in lab.run()[1], "nothing is asked twice"
    (lab.folder / "parts.py").write_text("SCALE = 1.0\n")
    assert lab.run()[0] == 2
    attempts = lab.num_attempts()
    code, output = lab.run("--rerun")
    assert code == 0 and lab.nc1() == {2: 1, 3: 1, 4: 1, 5: 1}, output
    assert "4 trials, 3 done, 1 to run" in output, "what this very code gave is still there"
    assert lab.num_attempts() >= attempts


def test_accepted_code_is_named_in_fits(lab: Lab) -> None:
    (lab.folder / "law.py").write_text(LAW + "# a comment\n")
    lab.write_sweep([2, 3, 4, 5])
    code, output = lab.run("--keep-results")
    assert code == 0 and lab.nc1() == {2: 1, 3: 1, 4: 1, 5: 1}, output
    assert "were run by 2 versions of task 'law:law' (3 by" in output
    lab.write_sweep([2, 3, 4, 5, 6])
    assert lab.run()[0] == 0, "what was accepted is not asked again"
    (lab.folder / "law.py").write_text(LAW + "# another comment\n")
    assert lab.run()[0] == 2, "but a third version is"
    hashes = depthrate.open(lab.store.url).sql("select code_hash, count(*) from trials group by all").fetchall()
    assert sorted(count for _, count in hashes) == [2, 3] and {h for h, _ in hashes} == set(list_code_hashes(lab.store))


@pytest.mark.slow
def test_accepted_code_can_rerun(lab: Lab) -> None:
    (lab.folder / "parts.py").write_text("SCALE = 2.0\n")
    lab.write_sweep([2, 3, 4, 5])
    assert lab.run("--keep-results")[0] == 0 and lab.nc1() == {2: 1, 3: 1, 4: 1, 5: 2}
    code, output = lab.run("--rerun")
    assert code == 0 and lab.nc1() == {2: 2, 3: 2, 4: 2, 5: 2}, output
    assert "4 trials, 1 done, 3 to run" in output


def test_the_two_ways_contradict_each_other(lab: Lab) -> None:
    assert lab.run("--rerun", "--keep-results")[0] == 2


@pytest.mark.slow
def test_code_identity_ignores_its_location(lab: Lab) -> None:
    moved = lab.folder / "moved"
    moved.mkdir()
    for name in ("law.py", "parts.py"):
        (lab.folder / name).rename(moved / name)
    lab.write_sweep([2, 3, 4], "./moved/law.py:law")
    assert "3 trials, 3 done" in lab.run()[1]
    (moved / "law.py").rename(moved / "other.py")
    (moved / "parts.py").write_text("SCALE = 3.0\n")
    lab.write_sweep([2, 3, 4], "./moved/other.py:law")
    code, output = lab.run()
    assert code == 0 and "3 trials, 0 done" in output, "its identity is the file's stem: all of its trials are new"
    rows = depthrate.open(lab.store.url).sql("select task, depth * nc1 from results order by 1").fetchall()
    assert [(task, round(value)) for task, value in rows] == [("law:law", 1)] * 3 + [("other:law", 3)] * 3


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_edit_during_a_run_has_no_effect(tmp_path: Path, workers: str) -> None:
    lab = Lab(tmp_path, list(range(2, 42)))
    (tmp_path / "law.py").write_text(STEADY)
    code, output = lab.call("run", "--workers", workers, "--device", "cpu")
    assert code == 0, output
    assert set(lab.nc1().values()) == {1.0} and len(lab.nc1()) == 40
    results = depthrate.open(lab.store.url)
    packs, codes = results.sql("select count(distinct pack_id), count(distinct code_hash) from trials").fetchall()[0]
    assert packs > 1 and codes == 1
    (version,) = list_code_hashes(lab.store)
    assert read_code(lab.store, version) == {"law.py": STEADY.encode(), "parts.py": b"SCALE = 1.0\n"}
    (tmp_path / "law.py").write_text(LAW)
    assert lab.run()[0] == 2
    code, output = lab.run("--code-version", version[:8])
    assert code == 0 and "40 trials, 40 done" in output, "the kept version is run by its name"


def test_other_hosts_code_is_refused(lab: Lab) -> None:
    lab.write_sweep([2, 3, 4, 5])
    trial_id = json.loads(lab.call("plan", "--json")[1])["packs"][0]["trial_ids"][0]
    name = f"{time.strftime('%Y%m%dT%H%M%S')}_0123456789ab"
    other = Attempt(attempt_id=name, sweep="s", pack_id="p", trial_ids=[trial_id], device="cpu", host="elsewhere")
    other.code_hash = "0" * 32
    other.write(lab.store)
    code, output = lab.run()
    assert code == 2 and f"attempt {name} on elsewhere" in output and "its code is not in the store" in output
    assert "depthrate cancel s" in output and "--rerun" not in output, "while it runs, its results would not count"


@pytest.mark.slow
def test_checkpoint_of_other_code_is_ignored(tmp_path: Path) -> None:
    lab = Lab(tmp_path, [2])
    kept = "if (kept := context.load_checkpoint()): raise SystemError(kept)"
    source = LAW.replace("seed: int = 0):", f"seed: int = 0, context):\n    {kept}")
    stops = source.replace("    return", "    context.save_checkpoint(b'old')\n    raise KeyError\n    return")
    (tmp_path / "law.py").write_text(stops)
    assert lab.run()[0] == 1
    assert [path for path in lab.store.list("checkpoints") if path.endswith(".ckpt")]
    (tmp_path / "law.py").write_text(source)
    code, output = lab.run()
    assert code == 2 and "1 trial checkpointed" in output
    code, output = lab.run("--rerun")
    assert code == 0 and lab.nc1() == {2: 1.0}, output


@pytest.mark.slow
def test_unknown_code_is_reported(lab: Lab) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in lab.store.list("trials"):  # as of a task whose code is in an installed package
        table = pq.read_table(io.BytesIO(lab.store.read(path)))
        place = table.column_names.index("code_hash")
        nulls = table.set_column(place, "code_hash", pa.nulls(table.num_rows, pa.string()))
        metadata = {METADATA_KEY: table.schema.metadata[METADATA_KEY]}
        lab.store.write(path, trials_bytes(nulls.replace_schema_metadata(metadata)))
    (lab.folder / "parts.py").write_text("SCALE = 2.0\n")
    lab.write_sweep([2, 3, 4, 5])
    code, output = lab.run()
    assert code == 0 and "3 committed trials have no recorded code version" in output
    assert lab.nc1() == {2: 1, 3: 1, 4: 1, 5: 2}
    code, output = lab.run("--rerun")
    assert code == 0 and lab.nc1() == {2: 2, 3: 2, 4: 2, 5: 2}, output


@pytest.mark.slow
def test_altered_stored_code_is_not_executed(tmp_path: Path) -> None:
    lab = Lab(tmp_path, [2])
    assert lab.run()[0] == 0
    (version,) = list_code_hashes(lab.store)
    path = f"code/{version}/files/parts.py"
    lab.store.write(path, b"SCALE = 666.0\n")
    assert read_code(lab.store, version) is None
    code, output = lab.call("verify")
    assert code == 1 and f"code/{version}/index.json" in output
    assert lab.run("--code-version", version)[0] == 2
    lab.write_sweep([2, 3])
    assert lab.run()[0] == 0 and lab.nc1() == {2: 1, 3: 1}, "a launch keeps it anew"


def test_invalid_decision_is_ignored(lab: Lab) -> None:
    lab.store.write("decisions/sweep=s/000007-0123456789ab.json", b'{"kind": "rerun", "trial_ids": [[]]}')
    assert len(lab.nc1()) == 3
    assert "is not a decision" in lab.call("plan")[1]
    code, output = lab.call("verify", "--repair")
    assert code == 0 and "decisions/sweep=s/000007" in output and lab.store.list("decisions") == {}


@pytest.mark.parametrize("overrides", [{}, {"depth": [5]}])
def test_stored_sweeps_run_as_checked(lab: Lab, monkeypatch: pytest.MonkeyPatch, overrides: dict[str, object]) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(lab.folder / "state"))  # nothing is accepted
    monkeypatch.setenv(STRICT_MODES, "off")
    (lab.folder / "law.py").write_text(LAW.replace("-1.0", "-2.0"))
    spec = next(read_specs(lab.store))
    spec.spec["task"] = f"{lab.folder}/law.py:law"
    write_spec(lab.store, "s", sweep_of_spec(spec.spec).spec_hash(), spec.spec, [])
    read = permission.code_of_task

    def swapped(name: str) -> TaskCode | None:
        code = read(name)
        (lab.folder / "law.py").write_text("raise SystemExit('executed')")
        return code

    monkeypatch.setattr(permission, "code_of_task", swapped)
    checked = check_sweep(sweep_to_launch("s", overrides, lab.store.url))
    assert checked.task.code is not None and b"-2.0" in checked.task.code.contents["law.py"]
    assert checked.sweep.spec_hash() == sweep_of_spec(checked.sweep.spec()).spec_hash()
    with pytest.raises(SystemExit):  # a sweep file still names the current code
        check_sweep(sweep_of_spec(checked.sweep.spec()))
