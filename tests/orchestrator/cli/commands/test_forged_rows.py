"""Rows of commits that no worker of ours wrote: every command answers, or says in one sentence what is wrong."""

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner

from depthrate.orchestrator.cli.app import app
from depthrate.orchestrator.launch.launch_plan import check_sweep
from depthrate.storage.catalog.specs import write_spec
from depthrate.storage.files.parquet import trials_bytes
from depthrate.storage.files.store import Store
from depthrate.sweeps.load import sweep_of_spec
from tests.support.here import TINY
from tests.support.tests_rows import commit

A = "20260101T000000_aaaaaaaaaaaa"
FORGED: list[tuple[str, str | None]] = [
    *(("params", value) for value in ("", "{", "[]", "{}", '{"depth": "x"}', '{"depth": -1, "steps": 0}', "9" * 5000)),
    *(("versions", value) for value in (None, "", "{", "[]", "3")),
    *(("host", value) for value in (None, "\x1b[2J")),
    *(("device", None), ("git_sha", "\x1b]0;x\x07"), ("status", "wonderful"), ("pack_id", None), ("task", "other")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("column", "value"), FORGED)
def test_every_command_goes_on(
    column: str, value: str | None, folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(yaml.safe_dump(TINY))
    checked = check_sweep(sweep_of_spec(TINY))
    ids = [trial.trial_id for trial in checked.trials]
    write_spec(folder, "tiny", checked.sweep.spec_hash(), checked.sweep.spec(), ids)
    commit(folder, A, ids[:2], sweep="tiny", params=dict(checked.trials[0].params))
    (path,) = folder.list("trials")
    table = pq.read_table(io.BytesIO(folder.read(path)))
    known = {"task": "collapse", "task_version": checked.task.version, "wall_s": 1.0, "steps": 40, "versions": "{}"}
    for name, content in (known | {column: value}).items():
        at = table.schema.get_field_index(name)
        field = table.schema.field(at)
        table = table.set_column(at, field, pa.array([content] * table.num_rows, field.type))
    folder.write(path, trials_bytes(table))
    for words in (
        *(["status"], ["plan", "tiny.yaml"], ["query", "select * from results"], ["fit", "tiny"], ["logs", ids[0]]),
        *(["report", "tiny", "-o", "r.html"], ["verify"], ["compact", "--retain-hours", "0"]),
        ["status", "--json"],
    ):
        result = CliRunner().invoke(app, [*words, "--store", folder.root])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code in (0, 1, 2) and "\x1b" not in result.output and "\x07" not in result.output, words
        if "--json" in words and result.exit_code == 0:
            json.loads(result.stdout)
