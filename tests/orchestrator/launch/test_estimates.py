"""Estimated durations of packs: the task's estimate, alone or corrected by measured packs."""

import dataclasses
import json
import statistics
from pathlib import Path

import pytest

from benchmarks.store_synthetic import PACK_S, write_pack
from depthrate.orchestrator.analysis.columns import builtin_columns
from depthrate.orchestrator.launch.estimates import (
    PACK_OVERHEAD_S,
    TRIAL_OVERHEAD_S,
    WORKER_START_S,
    Estimates,
    make_estimates,
)
from depthrate.orchestrator.launch.launch_plan import check_sweep, make_plan
from depthrate.storage.commits.commit import commit_trials
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact
from depthrate.sweeps.packing import Pack, estimated_wall_s, pack_trials
from depthrate.sweeps.spec import SweepSpec
from depthrate.tasks.interface import Engine, Task
from tests.support.here import printed


def sweep_of(seeds: int) -> SweepSpec:
    params = {"arch": "rn1", "depth": 34, "samples_per_class": 20, "steps": 100, "measure_steps": []}
    return SweepSpec(name="measured", task="collapse", params=params, grid={"width": [32, 64]}, seeds=seeds)


def store_with(url: str, cpu_s: float | None) -> Store:
    """Make a store in which each pack of the sweep's first seeds took one minute and `cpu_s` CPU seconds."""
    store, checked = Store(url), check_sweep(sweep_of(2))
    store.write_format()
    for number, pack in enumerate(pack_trials(checked.trials, checked.task)):
        write_pack(store, "measured", number, pack)
    for path in store.list("attempts"):
        record = json.loads(store.read(path)) | {"cpu_s": cpu_s}
        store.write(path, json.dumps(record).encode())
    return store


def whole_s(pack: Pack, task: Task, engine: Engine = Engine.EAGER) -> float:
    """Return the task's estimate of a pack, including the overhead besides training."""
    return PACK_OVERHEAD_S + TRIAL_OVERHEAD_S * len(pack.trials) + estimated_wall_s(pack, task, engine)


def estimates_of(store: Store, device: str = "cpu") -> tuple[Estimates, list[float], list[float]]:
    plan = make_plan(check_sweep(sweep_of(4)), store)
    estimates = make_estimates(plan, store, device)
    reckoned = [whole_s(pack, plan.checked.task) for pack in plan.packs]
    return estimates, reckoned, [estimates(pack) or 0.0 for pack in plan.packs]


def test_processor_time_corrects_wall_time(tmp_path: Path) -> None:
    slow, reckoned, corrected = estimates_of(store_with(str(tmp_path / "a"), cpu_s=PACK_S / 4))
    quick, _, of_quick = estimates_of(store_with(str(tmp_path / "b"), cpu_s=PACK_S / 8))
    assert len(slow.measured) == len(quick.measured) == 2
    assert corrected == pytest.approx([2 * estimated for estimated in of_quick])
    factor = statistics.median(
        PACK_S / 4 / estimated for estimated in reckoned
    )  # packs of the same trials as were measured
    assert corrected == pytest.approx([factor * estimated for estimated in reckoned])


def test_incomparable_packs_are_ignored(tmp_path: Path) -> None:
    store = store_with(str(tmp_path / "a"), cpu_s=None)
    estimates, reckoned, same = estimates_of(store)
    overhead_s = PACK_OVERHEAD_S + TRIAL_OVERHEAD_S * 2  # what is left of a pack
    assert same == pytest.approx([overhead_s + (estimated - overhead_s) / estimates.speed for estimated in reckoned])
    assert estimates.remark == "" and not estimates.measured
    assert not estimates_of(store_with(str(tmp_path / "b"), cpu_s=1.0), "cuda")[0].measured


def test_records_that_a_compaction_put_together_count_too(tmp_path: Path) -> None:
    store = store_with(str(tmp_path), cpu_s=PACK_S)
    before = estimates_of(store)[2]
    compact(store, grace_s=0)
    assert not [path for path in store.list("attempts") if path.endswith(".json")]
    assert estimates_of(store)[2] == pytest.approx(before)


def test_table_and_sentence_of_a_plan_agree(tmp_path: Path) -> None:
    store_with(str(tmp_path / "store"), cpu_s=PACK_S / 2)
    (tmp_path / "measured.yaml").write_text(
        "name: measured\ntask: collapse\nseeds: 4\ngrid: {width: [32, 64]}\n"
        "params: {arch: rn1, depth: 34, samples_per_class: 20, steps: 100, measure_steps: []}\n"
    )
    call = ["plan", str(tmp_path / "measured.yaml"), "--store", str(tmp_path / "store")]
    plan_json = json.loads(printed(*call, "--json"))
    estimated = [pack["estimated_core_s"] for pack in plan_json["packs"]]
    hours = (sum(estimated) + WORKER_START_S * min(plan_json["workers"], len(estimated))) / 3600
    assert plan_json["estimated_core_hours"] == pytest.approx(hours)
    assert plan_json["estimate_rests_on_packs"] == 2
    output = printed(*call)
    assert "based on the last 2 measured packs of task collapse" in " ".join(output.split())
    assert f" {float(f'{estimated[0]:.2g}'):g}" in output


def test_batched_packs_are_measured_separately(tmp_path: Path) -> None:
    store, checked = Store(str(tmp_path)), check_sweep(sweep_of(2))
    attempt, task = "20260101T000000_00000000000a", checked.task
    rows = [
        {"trial_id": trial.trial_id, "sweep": "measured", "task": task.name, "attempt_id": attempt, "device": "cuda"}
        | {"pack_id": pack.pack_id, "status": "ok", "params": json.dumps(trial.params)}
        | {"wall_s": 3 * whole_s(pack, task) / len(pack.trials)}
        for pack in pack_trials(checked.trials, task)
        for trial in pack.trials
    ]
    commit_trials(
        store, sweep="measured", attempt_id=attempt, part=0, trials=rows, tables={}, columns=builtin_columns()
    )
    estimates, reckoned, corrected = estimates_of(store, "cuda")
    assert [factor for _, factor in estimates.measured] == pytest.approx([3.0, 3.0])
    assert corrected == pytest.approx([3 * estimated for estimated in reckoned])


def test_estimate_follows_the_engine(tmp_path: Path) -> None:
    store = store_with(str(tmp_path), cpu_s=PACK_S / 4)
    plan = make_plan(check_sweep(sweep_of(4)), store)
    pack, task = plan.packs[0], plan.checked.task
    eager_s, native_s = (estimated_wall_s(pack, task, engine) for engine in (Engine.EAGER, Engine.NATIVE))
    assert native_s < eager_s / 2
    asks_natively = make_estimates(plan, store, "cpu", Engine.AUTO)
    without = dataclasses.replace(asks_natively, measured=(), by_engine={})
    assert without(pack) == pytest.approx(whole_s(pack, task) - eager_s + native_s / without.speed)
    native_whole_s = whole_s(pack, task, Engine.NATIVE)
    ran_eagerly = [(0.0, 7.0)]
    assert (
        dataclasses.replace(without, measured=ran_eagerly, by_engine={"eager": ran_eagerly})(pack) == 7 * native_whole_s
    )
    by_engine = {"eager": ran_eagerly, "native": [(0.0, 3.0)]}
    assert dataclasses.replace(without, measured=ran_eagerly, by_engine=by_engine)(pack) == 3 * native_whole_s


def test_measured_steps_replace_estimated_ones(tmp_path: Path) -> None:
    store = store_with(str(tmp_path), cpu_s=PACK_S / 4)
    plan = make_plan(check_sweep(sweep_of(4)), store)
    estimates = make_estimates(plan, store, "cpu", Engine.AUTO)
    calculated = dataclasses.replace(estimates, measured=(), by_engine={}, speed=1.0)
    rates = [calculated.steps_per_s(pack) or 0.0 for pack in plan.packs]
    assert len(rates) == 2 and 0 < rates[0] < rates[1], "the wider network is first"
    by_steps = estimates.with_measured_steps([(plan.packs[0], rates[0] / 2), (plan.packs[1], rates[1] / 3)])
    assert [by_steps.steps_per_s(pack) for pack in plan.packs] == pytest.approx([rates[0] / 2, rates[1] / 3])
    for pack, factor in zip(plan.packs, (2, 3), strict=True):
        overhead_s = PACK_OVERHEAD_S + TRIAL_OVERHEAD_S * len(pack.trials)
        estimated_s = estimated_wall_s(pack, plan.checked.task, Engine.NATIVE)
        assert by_steps(pack) == pytest.approx(overhead_s + factor * estimated_s)
    assert by_steps.remark == "based on the measured steps"
