"""A store of any size in seconds: invented numbers, but the real trials, packs, tables and writer.

    python -m benchmarks.store_synthetic --trials 1000 --store /some/folder

Everything is drawn from the pack's own seed, times and host included: two runs write the same rows.
"""

import argparse
import hashlib
import json
import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from depthrate.orchestrator.analysis.columns import builtin_columns
from depthrate.orchestrator.attempts.record import Attempt
from depthrate.storage.catalog.specs import write_spec
from depthrate.storage.commits.commit import commit_trials
from depthrate.storage.files.store import Store
from depthrate.storage.tables.from_task import task_table
from depthrate.storage.tables.states import AttemptState
from depthrate.sweeps.expand import expand
from depthrate.sweeps.packing import Pack, pack_trials
from depthrate.sweeps.spec import SweepSpec
from depthrate.sweeps.trial import Trial

DEPTH, CLASSES, STEPS = 34, 10, 8000
WIDTHS, WEIGHT_DECAYS = (32, 64, 96, 128), (5.0e-4, 1.0e-3, 2.0e-3, 5.0e-3, 1.0e-2)
CURVE_STEPS = np.unique(np.geomspace(1, STEPS, 22).round().astype(int))[-20:]
FIRST_START = datetime(2026, 1, 1, tzinfo=UTC)
PACK_S = 60.0
PACKS_A_TASK = 50
"""Packs a writing process takes at once."""
VERSIONS = json.dumps(
    {"python": "3.11", "depthrate": "0.1.0", "torch": "2.13.0", "numpy": "2.4.6", "pyarrow": "26.0.1"}
)


def synthetic_sweep(num_trials: int) -> SweepSpec:
    """Return a sweep of `num_trials` trials, rounded up to whole seeds."""
    shapes = len(WIDTHS) * len(WEIGHT_DECAYS)
    return SweepSpec(
        name=f"synthetic-{num_trials}",
        task="collapse",
        # one measured step a trial: its last
        params={"arch": "rn1", "depth": DEPTH, "samples_per_class": 20, "steps": STEPS, "measure_steps": []},
        grid={"width": list(WIDTHS), "weight_decay": list(WEIGHT_DECAYS)},
        seeds=-(-num_trials // shapes),
    )


def synthetic_packs(sweep: SweepSpec, trials: Sequence[Trial]) -> list[Pack]:
    """Return the packs that a launch on two cores would form: 16 trials of one shape each, or a few less."""
    return pack_trials(trials, sweep.load_task(), workers=2)


def pack_values(pack: Pack) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return plausible columns of metrics [P, layers, ...] and of curves [P, steps], the same for the same pack."""
    rng = np.random.default_rng(int(pack.pack_id, 16))
    num, layers = len(pack.trials), DEPTH + 1

    def noisy(curve: np.ndarray, share: float = 0.05) -> np.ndarray:
        values: np.ndarray = curve * np.exp(share * rng.standard_normal((num, len(curve))))
        return values

    layer = np.maximum(np.arange(layers), 1.0)
    rate = layer**-0.5
    singular = np.sort(rng.gamma(4.0, size=(num, layers, CLASSES)), axis=-1)[..., ::-1] * rate[:, None]
    half = rng.standard_normal((num, layers, CLASSES, CLASSES), dtype=np.float32)
    gram = (half + half.swapaxes(-1, -2)) / 2
    metrics = {
        "nc1": noisy(0.33 * rate),
        "nc1_pinv": noisy(0.36 * rate),
        "nc2a": noisy(0.5 * layer**-1.2),
        "nc2b": noisy(0.4 * layer**-1.1),
        "nc3": noisy(0.15 * rate),
        "ncc_accuracy": np.clip(noisy(1 - 0.3 * rate, 0.01), 0, 1),
        "pfc2": noisy(0.2 * rate),
        "rank": rng.integers(CLASSES - 1, CLASSES + 1, (num, layers)).astype(np.float64),
        "stable_rank": noisy(3 + 6 * (1 - rate)),
        "condition_number": singular[..., 0] / singular[..., -1],
        "relative_position": np.sort(rng.random((num, layers)), axis=-1),
        "singular_values": singular,
        "class_gram": gram.reshape(num, layers, -1),
    }
    for name in ("nc3", "relative_position"):
        metrics[name][:, 0] = np.nan  # not defined at the input
    objective = 0.2 + CURVE_STEPS**-0.4
    curves = {
        "loss": noisy(objective - 0.1),
        "objective": noisy(objective),
        "objective_gap": noisy(objective - 0.19),
        "accuracy": np.clip(noisy(1 - 0.9 * CURVE_STEPS**-0.3, 0.01), 0, 1),
        "grad_norm": noisy(CURVE_STEPS**-0.5),
        "lr": np.tile(0.1 * (1 + np.cos(np.pi * CURVE_STEPS / STEPS)), (num, 1)),
    }
    return metrics, curves


def write_pack(store: Store, sweep_name: str, number: int, pack: Pack) -> None:
    """Leave in the store what a worker leaves of one pack: its attempt's record, then the data, then the commit."""
    started = FIRST_START + timedelta(seconds=number * PACK_S)
    ended = started + timedelta(seconds=PACK_S)
    attempt_id = f"{started:%Y%m%dT%H%M%S}_{hashlib.sha256(pack.pack_id.encode()).hexdigest()[:12]}"
    metrics, curves = pack_values(pack)
    layer, last = np.arange(DEPTH + 1), np.arange(DEPTH + 1) == DEPTH
    each = []
    for index, trial in enumerate(pack.trials):
        at_end = {"step": np.full(DEPTH + 1, STEPS), "layer": layer, "is_last": last}
        content = {
            "metrics": at_end | {name: _column(values[index]) for name, values in metrics.items()},
            "curves": {"step": CURVE_STEPS} | {name: values[index] for name, values in curves.items()},
        }
        each.append(
            {
                name: task_table(name, columns, builtin_columns(), trial_id=trial.trial_id, attempt_id=attempt_id)
                for name, columns in content.items()
            }
        )
    Attempt(
        attempt_id=attempt_id,
        sweep=sweep_name,
        pack_id=pack.pack_id,
        trial_ids=pack.trial_ids,
        device="cpu",
        state=AttemptState.DONE,
        started_at=started.timestamp(),
        heartbeat_at=ended.timestamp(),
        ended_at=ended.timestamp(),
        host="synthetic",
        pid=1,
        step=STEPS,
        num_steps=STEPS,
        trials_done=len(pack.trials),
    ).write(store)
    commit_trials(
        store,
        sweep=sweep_name,
        attempt_id=attempt_id,
        part=None,
        trials=[_trial_row(sweep_name, attempt_id, pack, trial, ended) for trial in pack.trials],
        tables={name: [tables[name] for tables in each] for name in ("metrics", "curves")},
        columns=builtin_columns(),
    )


def _column(values: np.ndarray) -> Any:
    return values if values.ndim == 1 else list(values)


def _trial_row(sweep_name: str, attempt_id: str, pack: Pack, trial: Trial, ended: datetime) -> dict[str, Any]:
    return {
        "trial_id": trial.trial_id,
        "sweep": sweep_name,
        "task": trial.task,
        "task_version": trial.task_version,
        "attempt_id": attempt_id,
        "pack_id": pack.pack_id,
        "status": "ok",
        "committed_at": ended,
        "wall_s": PACK_S / len(pack.trials),
        "steps": STEPS,
        "device": "cpu",
        "peak_memory_gb": 0.6,
        "git_sha": "0" * 40,
        "git_dirty": False,
        "versions": VERSIONS,
        "host": "synthetic",
        "params": json.dumps(dict(trial.params), sort_keys=True),
    }


def write_packs(url: str, sweep_name: str, first: int, packs: Sequence[Pack]) -> None:
    """Write packs number `first` and following; a process of the pool runs this."""
    store = Store(url)
    for number, pack in enumerate(packs, start=first):
        write_pack(store, sweep_name, number, pack)


def write_store(url: str, num_trials: int, processes: int = 2) -> dict[str, Any]:
    """Write the whole store and return what it took."""
    sweep = synthetic_sweep(num_trials)
    trials = expand(sweep)
    packs = synthetic_packs(sweep, trials)
    store = Store(url)
    store.write_format()
    started = time.perf_counter()
    write_spec(store, sweep.name, sweep.spec_hash(), sweep.spec(), [trial.trial_id for trial in trials])
    context = multiprocessing.get_context("spawn")  # fsspec's event loop does not survive a fork
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        starts = range(0, len(packs), PACKS_A_TASK)
        tasks = [pool.submit(write_packs, url, sweep.name, at, packs[at : at + PACKS_A_TASK]) for at in starts]
        for task in tasks:
            task.result()
    seconds = time.perf_counter() - started
    listing = store.list()
    return {
        "trials": len(trials),
        "packs": len(packs),
        "seconds": seconds,
        "trials_per_s": len(trials) / seconds,
        "files": len(listing),
        "bytes": sum(listing.values()),
    }


def main() -> None:
    """Write one store and print what it took as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--store", required=True, help="any fsspec URL that is empty")
    parser.add_argument("--trials", type=int, required=True)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    print(json.dumps(write_store(arguments.store, arguments.trials, arguments.processes)))


if __name__ == "__main__":
    main()
