"""What showing a trial's curves while it trains costs: the same packs with and without, in turn, in processor seconds.

    python benchmarks/live.py [--rounds 5] [--seconds 20]

Two packs: 16 trials of the built-in trainer, eager, and a loop of the user's own that logs six numbers at every step. Rounds
alternate between the sides. Printed are the medians, and what the code that shows them took by itself, which the noise of the
machine does not hide. LOG.md has what was measured.
"""

import argparse
import math
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import depthrate
from depthrate.orchestrator.attempts.options import JobOptions
from depthrate.orchestrator.attempts.record import new_attempt_id
from depthrate.orchestrator.attempts.spec import AttemptSpec
from depthrate.orchestrator.worker import live_curve_writer
from depthrate.orchestrator.worker.attempt_runner import run_job
from depthrate.orchestrator.worker.context import StopFlag
from depthrate.orchestrator.worker.live_curve_writer import LiveCurves
from depthrate.storage.files.data_folder import open_data_folder
from depthrate.tasks.interface import Engine
from depthrate.tasks.loading import load_task


@depthrate.task(version=1)
def loop(*, seconds: float, width: int = 64, seed: int = 0, context: Any) -> dict[str, Any]:
    """Train a small network as fast as it goes, and log every step."""
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(128, width), torch.arange(128) % 10
    ends_at = time.process_time() + seconds
    with context.training(model, optimizer) as run:
        for step in run.steps(10**9):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            run.log(step, loss=loss, accuracy=0.5, lr=0.01, one=1.0, two=2.0, three=3.0)
            if time.process_time() >= ends_at:
                break
    return {"metrics": [{"layer": 1, "nc1": 1.0}], "curves": run.curves[-1:]}


def main() -> None:
    """Run both packs and print a row each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="of the processor that a pack takes, about")
    given = parser.parse_args()
    print("pack           steps   without (cpu s)   with (cpu s)   ratio   of its own (cpu s)   share   writes   kB")
    steps = _steps_in(given.seconds)
    fused = {"arch": "rn1", "depth": 4, "width": 64, "samples_per_class": 10, "steps": steps, "measure_steps": [0]}
    _compare("built-in x16", "collapse", [{**fused, "seed": seed} for seed in range(16)], given.rounds, steps)
    _compare("own loop", f"{Path(__file__).resolve()}:loop", [{"seconds": given.seconds}], given.rounds, None)


def _steps_in(seconds: float) -> int:
    """Return how many steps of the built-in trainer take about so long."""
    params = {"arch": "rn1", "depth": 4, "width": 64, "samples_per_class": 10, "steps": 200, "measure_steps": [0]}
    begin = time.process_time()
    _run("collapse", [{**params, "seed": seed} for seed in range(16)], shows=False)
    begin = time.process_time()
    _run("collapse", [{**params, "seed": seed} for seed in range(16)], shows=False)
    return max(200, int(200 * seconds / (time.process_time() - begin)))


def _compare(name: str, task: str, trials: list[dict[str, Any]], rounds: int, steps: int | None) -> None:
    without, with_, own, writes, sizes = [], [], [], [], []
    for _ in range(rounds):
        without.append(_run(task, trials, shows=False)[0])
        cpu_s, own_s, written = _run(task, trials, shows=True)
        with_.append(cpu_s)
        own.append(own_s / cpu_s)
        writes.append(len(written))
        sizes.append(max(written, default=0) / 1e3)
    a, b, share = statistics.median(without), statistics.median(with_), statistics.median(own)
    print(
        f"{name:13} {steps or 0:6}   {a:15.2f}   {b:12.2f}   {b / a:5.3f}   {share * b:18.3f}   {share:5.2%}   "
        f"{statistics.median(writes):6.0f}   {max(sizes):.0f}",
        flush=True,
    )


def _run(task: str, trials: list[dict[str, Any]], *, shows: bool) -> tuple[float, float, list[int]]:
    """Run a pack; return its processor seconds, those of what shows its curves, and the bytes of each of its writes."""
    own_s, written, real = 0.0, list[int](), LiveCurves.write_if_due

    def timed(self: LiveCurves) -> None:
        nonlocal own_s
        began = time.thread_time()
        real(self)
        own_s += time.thread_time() - began
        sizes = list(self._store.list("live").values())
        if sizes and (not written or written[-1] != sizes[0]):
            written.append(sizes[0])

    loaded = load_task(task)
    with tempfile.TemporaryDirectory() as folder:
        options = JobOptions(
            store=folder,
            data=open_data_folder().url,
            device="cpu",
            checkpoint_seconds=1e9,
            git_sha=None,
            git_dirty=None,
        )
        options = replace(options, engine=Engine.EAGER)
        job = AttemptSpec(
            attempt_id=new_attempt_id(),
            sweep="live",
            task=task,
            pack_id="p",
            trial_ids=[f"t{number}" for number in range(len(trials))],
            params=[loaded.schema.fill(params) for params in trials],
            options=options,
        )
        every_s = live_curve_writer.MIN_WRITE_INTERVAL_S if shows else math.inf
        began = time.process_time()
        with (
            mock.patch.object(live_curve_writer, "MIN_WRITE_INTERVAL_S", every_s),
            mock.patch.object(LiveCurves, "write_if_due", timed),
        ):
            attempt = run_job(job, StopFlag())
        assert attempt.error is None, attempt.error
        return time.process_time() - began, own_s, written


if __name__ == "__main__":
    main()
