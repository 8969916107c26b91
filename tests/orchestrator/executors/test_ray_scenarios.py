"""Failures on a real Ray of two nodes: an unhealthy node, a node lost under ASHA, a node low on memory."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.storage.attempts.searches import SearchRecords
from depthrate.storage.files.store import Store

pytest.importorskip("ray", reason="needs pip install 'depthrate[ray]'")
pytest.importorskip("ray.tune", reason="needs pip install 'depthrate[ray]'")

from tests.support.here import await_that
from tests.support.ray_nodes import OWN_TASKS, Nodes, launch, ray_nodes
from tests.support.search_tasks import ASHA_SEARCH

pytestmark = [pytest.mark.ray, pytest.mark.alone, pytest.mark.timeout(900)]
pytestmark += [pytest.mark.filterwarnings("ignore::ResourceWarning")]
SUPPORT = OWN_TASKS.parent


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """No node yet."""
    with ray_nodes() as made:
        yield made


def states(store: Store) -> list[tuple[str, str, str | None]]:
    """Return (host, state, kind of failure) of all attempts."""
    return results_of(store).sql("select host, state, error_kind from attempts").fetchall()


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="machines get names by root's unshare")
def test_a_node_on_which_packs_fail_is_avoided(folder: Store, nodes: Nodes, tmp_path: Path) -> None:
    nodes.start(1, "r1")
    nodes.start(1, "r2")
    error = "CUDA error: uncorrectable ECC error encountered"
    params = {"host": "r2", "error": error}
    run = launch(folder, nodes, tmp_path, task=f"{OWN_TASKS}:sick_at", params=params, grid={"depth": [*range(2, 14)]})
    _, output = run.communicate(timeout=600)
    assert run.returncode == 0, output
    trial_states = states(folder)
    assert {host for host, state, _ in trial_states if state == "done"} == {"r1"}
    assert results_of(folder).sql("select count(*) from trials").fetchall() == [(12,)]
    failed = [(host, kind) for host, state, kind in trial_states if state != "done"]
    assert 1 <= len(failed) <= 3 and set(failed) == {("r2", "hardware")}
    assert "failed on r2" in output and "Excluded" in output and error in output


def test_asha_goes_on_where_a_node_is_lost(folder: Store, nodes: Nodes, tmp_path: Path) -> None:
    """Its packs restart, and are compared again at each rung they reach."""
    nodes.start(1)
    lost = nodes.start(1)
    log = tmp_path / "log"
    params = {"log": str(log), "pause_s": 0.5}
    run = launch(folder, nodes, tmp_path, task=f"{SUPPORT}/search_tasks.py:climbs", params=params, search=ASHA_SEARCH)
    await_that(lambda: run.poll() is not None or _num_processes(log) == 2, 300)
    nodes.kill(lost, "raylet")
    _, output = run.communicate(timeout=600)
    assert run.returncode == 0 and "Traceback" not in output, output
    records = SearchRecords(folder, "s")
    records.refresh()
    finished = {x for (x,) in results_of(folder).sql("select x from results").fetchall()}
    left_at = {next(iter(report.values.values())): report.pruned_at for report in records.reports.values()}
    assert len(left_at) == 12 and {x for x, step in left_at.items() if step is None} == finished
    assert 0 < len(finished) < 12 and max(left_at) in finished, "the best is never left out"
    assert not [state for _, state, _ in states(folder) if state == "running"]


def _num_processes(log: Path) -> int:
    return len({line.split()[2] for line in log.read_text().splitlines()}) if log.exists() else 0


def test_node_out_of_memory_halves_packs(folder: Store, nodes: Nodes, tmp_path: Path) -> None:
    """Ray's memory monitor, which clusters enable, counts all processes of this machine."""
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total_gb, free_gb = (int(meminfo[name].split()[0]) / 2**20 for name in ("MemTotal", "MemAvailable"))
    if free_gb < 8:
        pytest.skip("needs 8 GB of unused memory")
    gb_each = min(2.0, free_gb / 6.4)
    share = (total_gb - free_gb + 3 * gb_each) / total_gb  # too little for four trials and enough for two
    watch = {"RAY_memory_monitor_refresh_ms": "250", "RAY_memory_usage_threshold": f"{share:.3f}"}
    nodes.start(1, **watch)
    params = {"depth": 2, "gb_each": gb_each}
    run = launch(folder, nodes, tmp_path, task=f"{OWN_TASKS}:large", params=params, seeds=4)
    printed, output = run.communicate(timeout=600)
    assert run.returncode == 0 and "Traceback" not in output, output
    query = "select len(trial_ids), state, error_kind from attempts order by started_at"
    first, *later = results_of(folder).sql(query).fetchall()
    assert first == (4, "lost", "out_of_memory") and " split in two: " in printed, printed
    # a half can go the same way, where others take the machine's memory meanwhile
    assert all(size <= 2 and (state == "done" or kind == "out_of_memory") for size, state, kind in later), later
    assert results_of(folder).sql("select count(*) from trials").fetchall() == [(4,)]
