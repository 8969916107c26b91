"""Possible disk states after a power cut during a verb: nothing is lost or duplicated, and calling it again completes
it.

DEPTHRATE_ALL_POINTS=1 checks every disk state. Without it, a sample is used.
"""

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from depthrate.orchestrator.executors import registry
from depthrate.storage.files.store import Store
from tests.support.crash_points import Trace, disk_of, disks_after_power_cuts, on_folder, write_disk
from tests.support.one_by_one import TOY
from tests.support.verbs import VERBS, Place, counting_trials, state

IS_ALL = bool(os.environ.get("DEPTHRATE_ALL_POINTS"))
DRAWS = 3
CUT_SAMPLE = 8
"""Number of disk states checked per verb in a sample."""


def state_without_hints(store: Store) -> dict[str, Any]:
    """Return a store's state without torn attempt records, which are hints that a repair moves aside."""
    content = state(store)
    content["findings"] = [finding for finding in content["findings"] if "is not an attempt record" not in finding]
    return content


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", VERBS)
def test_power_cut_then_retry(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.executors(), "toy", TOY)
    for module in ("storage.attempts.claims", "orchestrator.attempts.liveness"):  # after a power cut no process is left
        monkeypatch.setattr(f"depthrate.{module}.is_process_gone", lambda host, pid: True)
    verb, work = VERBS[name], tmp_path / "work"
    place = Place(work)
    work.mkdir()
    verb.begin(place)
    (work / "store").mkdir(exist_ok=True)
    before, trials = disk_of(work), counting_trials(place.store)
    trace = Trace(os.path.realpath(work))
    with on_folder(work, deadline=trace):
        verb.call(place)
    committed = counting_trials(place.store)
    verb.call(place)
    after = state_without_hints(place.store)
    disks = list(disks_after_power_cuts(before, trace.steps, random.Random(0), DRAWS))
    selected = disks if IS_ALL else random.Random(1).sample(disks, min(CUT_SAMPLE, len(disks)))
    for count, disk in selected:
        shutil.rmtree(work)
        write_disk(disk, work)
        place = Place(work)
        retained = committed if count == len(trace.steps) else trials - verb.removes
        where = f"after {count} of {len(trace.steps)} calls"
        assert counting_trials(place.store) >= retained, f"lost {where}"
        verb.call(place)
        assert state_without_hints(place.store) == after, where
    print(f"{name}: {len(selected)} of {len(disks)} disks after {len(trace.steps)} calls")


def test_durable_writes_survive_hinted_folders(tmp_path: Path) -> None:
    trace = Trace(os.path.realpath(tmp_path))
    store = Store(str(tmp_path / "store"))
    with on_folder(tmp_path, deadline=trace):
        store.write("a/b/hint", b"")
        store.write("a/b/kept", b"kept", durable=True)
    at_last = [d for n, d in disks_after_power_cuts({}, trace.steps, random.Random(0), DRAWS) if n == len(trace.steps)]
    assert at_last and all(disk.get("store/a/b/kept") == b"kept" for disk in at_last)
