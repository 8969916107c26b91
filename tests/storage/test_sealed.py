"""Small files with a digest, by which readers detect changes."""

from __future__ import annotations

import math

import pytest

from depthrate.orchestrator.analysis.columns import builtin_columns
from depthrate.orchestrator.launch.launch_plan import check_sweep, make_plan
from depthrate.storage.attempts.searches import SearchRecords
from depthrate.storage.files.json_objects import read_with_digest, with_digest
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.verify import verify
from depthrate.sweeps.load import sweep_of_spec

A = "20260101T000000_aaaaaaaaaaaa"
REPORTS = {"sweep": "s", "reports": {"t1": {"values": {"5": 0.25, "10": math.nan}, "pruned_at": 10}}}


def test_what_is_sealed_is_read_again() -> None:
    fields = {"b": [1, 2.5, None, "é"], "a": {"x": 1e-300}}
    assert read_with_digest(with_digest(fields)) == fields
    assert read_with_digest(b'{"a": 1}') == {"a": 1}, "an older version wrote no digest"
    with pytest.raises(ValueError, match="was changed after it was written"):
        read_with_digest(with_digest(fields).replace(b"2.5", b"3.5"))


def test_reports_of_trials_that_were_changed_do_not_count_and_are_named(store: Store) -> None:
    path = f"searches/sweep=s/reports/{A}.json"
    store.write(path, with_digest(REPORTS))
    records = SearchRecords(store, "s")
    records.refresh()
    assert records.reports["t1"].pruned_at == 10 and not verify(store, builtin_columns()).findings
    store.write(path, with_digest(REPORTS).replace(b"0.25", b"0.75"))
    records = SearchRecords(store, "s")
    records.refresh()
    assert not records.reports
    (finding,) = verify(store, builtin_columns()).findings
    assert finding.path == path and "was changed after it was written" in finding.what


def test_whose_checkpoint_it_is_counts_only_as_it_was_written(store: Store) -> None:
    spec = {"name": "s", "task": "collapse", "params": {"arch": "rn1"}, "grid": {"depth": [2]}, "seeds": 4}
    checked = check_sweep(sweep_of_spec(spec))
    ids = [trial.trial_id for trial in checked.trials]
    content = with_digest({"trial_ids": ids[:3], "wall_s": 1.0, "code_hash": None})
    store.write("checkpoints/p1/pack.json", content)
    assert ids[:3] in [pack.trial_ids for pack in make_plan(checked, store).packs]
    store.write("checkpoints/p1/pack.json", content.replace(b"1.0", b"2.0"))
    assert ids[:3] not in [pack.trial_ids for pack in make_plan(checked, store).packs]
    (finding,) = verify(store, builtin_columns()).findings
    assert "does not name the trials of its checkpoint (was changed after it was written)" in finding.what
