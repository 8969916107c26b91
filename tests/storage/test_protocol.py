"""Random schedules of writers, compactions and readers, with kills, lagging listings and clocks that disagree.

DEPTHRATE_SEEDS=5000 tries more. A failure reports its seed and prints the schedule.
"""

import os

import pytest

from tests.support.storage_simulation import Simulation, settle, simulate

SEEDS = int(os.environ.get("DEPTHRATE_SEEDS", "16"))
pytestmark = pytest.mark.timeout(200)


@pytest.mark.parametrize("lag", [False, True], ids=["", "lagging listings"])
@pytest.mark.parametrize("first", range(0, SEEDS, 8))
@pytest.mark.slow
def test_any_schedule(first: int, lag: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("depthrate.storage.query.results.MAX_SCANS", 50)
    monkeypatch.setattr(
        "depthrate.storage.commits.snapshot.MAX_SCANS", 50
    )  # compactions without a grace period take files away all the time
    for seed in range(first, min(first + 8, SEEDS)):
        settled = settle(simulate(seed, lag=lag))
        loose = settled["snapshot"].num_loose()
        assert sum(loose.values()) <= 1, "all that is there was put together"


@pytest.mark.slow
def test_the_same_seed_gives_the_same_schedule() -> None:
    assert simulate(3, lag=False).trace == simulate(3, lag=False).trace


@pytest.mark.slow
def test_killed_writer_leaves_all_or_nothing() -> None:
    for point in range(12):
        simulation = Simulation(seed=point)
        simulation.writer(["t1", "t2"])
        (writer,) = simulation.actors
        steps = 0
        step = simulation.step

        def dying(what: str) -> object:
            nonlocal steps
            steps += 1
            writer.dies = steps > point
            return step(what)

        simulation.step = dying  # type: ignore[method-assign, assignment]
        simulation.run(kill=0)
        settled = settle(simulation)
        assert settled["trials"] in (set(), {"t1", "t2"})
        assert settled["trials"] >= simulation.committed
