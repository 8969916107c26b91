"""A short form of store_mutations.py. DEPTHRATE_MUTATIONS=2000 runs the long one."""

import os
from pathlib import Path

import pytest

from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.verify import verify
from tests.support.store_mutations import fuzz, make_store, seen

COUNT = int(os.environ.get("DEPTHRATE_MUTATIONS", "100"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 + 10 * COUNT)]


def test_mutations_stay_inside_and_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("depthrate.storage.maintenance.verify.YOUNG_S", -10.0)  # `fuzz` sets it
    counts, faults = fuzz(COUNT, 1, tmp_path / "place")
    print(counts)
    assert not faults, "\n".join(faults)
    assert counts["matters"] > COUNT / 5


def test_the_store_that_is_changed_is_sound(tmp_path: Path) -> None:
    store, _ = make_store(tmp_path / "place")
    assert not verify(Store(store.root)).findings and len(seen(store)["trials"]) == 4, "t9 is to be run again"
