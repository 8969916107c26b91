"""Progress of a launch that waits for peers or for a scheduler."""

import io
import json
import time
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from depthrate.orchestrator.attempts.liveness import STALLED_AFTER_S
from depthrate.orchestrator.launch.display import LaunchWatcher
from depthrate.orchestrator.launch.outcome import Progress
from depthrate.orchestrator.launch.peers import PeerLaunches
from depthrate.storage.attempts.claims import LEASE_S, RENEW_S
from depthrate.storage.files.paths import claim_path
from depthrate.storage.files.store import Store

PLAN: Any = SimpleNamespace(checked=SimpleNamespace(trials=[SimpleNamespace(params={})], task=None), done=[], packs=[])
PEER = "20260101T000000_aaaaaaaaaaaa"


def attempt(stalled_s: float) -> dict[str, Any]:
    now = time.time()
    times = {"started_at": now - 5000, "heartbeat_at": now, "progress_at": now - stalled_s}
    place = {"host": "n2", "pid": 77, "job_id": "5_1"}
    return {"attempt_id": "a", "sweep": "s", "step": 3, "num_steps": 9, **times, **place}


def progress(**fields: Any) -> Progress:
    lists: dict[str, Any] = {"packs_running": [], "packs_queued": [], "packs_submitted": []}
    return Progress(**{"trials_done": 0, "num_blocked": 1, **lists, **fields})


def lines_about(*attempts: dict[str, Any]) -> list[str]:
    """Return the lines that a launch prints while it waits for attempts of a peer."""
    watcher = LaunchWatcher(PLAN, Console(file=(output := io.StringIO()), width=300))
    for _ in range(2):
        watcher.update(progress(blocking_attempts=list(attempts)))
    return output.getvalue().splitlines()


def test_only_stalled_attempts_of_peers_have_advice() -> None:
    assert lines_about(attempt(0.0), attempt(STALLED_AFTER_S - 1)) == []
    (line,) = lines_about(attempt(STALLED_AFTER_S + 60))
    assert "on n2, pid 77, job 5_1" in line and "no progress for 16 min" in line
    assert "depthrate cancel s --force" in line


def test_the_summary_names_peers_and_reasons() -> None:
    watcher = LaunchWatcher(PLAN, Console(file=io.StringIO()))
    pack: Any = SimpleNamespace(pack_id="p", trials=[])
    watcher._seconds_left = lambda *_: None  # type: ignore[method-assign] - it needs a task
    reasons = {"JobHeldUser": 2, "ReqNodeNotAvail, UnavailableNodes:n2": 1}
    state = progress(packs_submitted=[pack] * 3, waiting_reasons=reasons, blocking_launches=["the launch on n2, pid 7"])
    text = watcher.summary(state)
    assert "3 submitted, 3 jobs waiting (JobHeldUser 2, ReqNodeNotAvail 1)" in text
    assert text.endswith("1 pack waiting for the launch on n2, pid 7")


def test_peer_wait_is_printed_at_once() -> None:
    watcher = LaunchWatcher(PLAN, Console(file=(output := io.StringIO()), width=300))
    for _ in range(2):
        watcher(progress(blocking_launches=["the launch on n2, pid 7"]))
    assert output.getvalue() == "0/1 trial, 1 pack waiting for the launch on n2, pid 7\n"


def test_silent_peer_shows_takeover_time(folder: Store) -> None:
    def described(silent_s: float) -> list[str]:
        claim = {"launch_id": PEER, "sweep": "s", "host": "n2", "pid": 7, "renewed_at": time.time() - silent_s}
        folder.write(claim_path(PEER, 1), json.dumps(claim | {"trials": {"t1": 1.0}}).encode())
        peers = PeerLaunches(folder, "s", "20260101T000000_bbbbbbbbbbbb")
        peers.poll()
        assert peers.describe_blocking(["t2"]) == []
        return peers.describe_blocking(["t1", "t2"])

    assert described(RENEW_S) == ["the launch on n2, pid 7"]
    (silent,) = described(60)
    assert silent in [
        f"the launch on n2, pid 7 (silent for {s} s, taken over in {LEASE_S - s:.0f} s)" for s in range(60, 70)
    ]
    assert described(LEASE_S + 1) == []
