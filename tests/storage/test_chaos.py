"""A short form of storage_chaos.py. DEPTHRATE_CHAOS_S=600 runs the long one."""

import os
from pathlib import Path

import pytest

from tests.support.s3_server import S3Server
from tests.support.storage_chaos import run_chaos

SECONDS = float(os.environ.get("DEPTHRATE_CHAOS_S", "12"))
pytestmark = pytest.mark.timeout(SECONDS * 12 + 240)


@pytest.mark.parametrize("place", ["folder", "s3"])
@pytest.mark.slow
def test_nothing_lost_doubled_or_misread(place: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    store = str(tmp_path / "store")
    if place == "s3":
        server: S3Server = request.getfixturevalue("s3")
        store, environment = server.new_url(), server.environment
    counts = run_chaos(store, SECONDS, seed=1, environment=environment)
    print(counts)
    assert not counts["faults_of_readers"] and not counts["faults_at_the_end"] and not counts["damage_at_the_end"]
    assert counts["trials_at_the_end"] >= counts["committed_trials"] > 20
    assert counts["kills"]["writer"] > 2 and counts["reads"] > 2 and counts["groups_compacted"] > 0
