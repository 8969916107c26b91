"""A compute process: takes packs from its input one by one, runs them, and says on its output that one ended.

What went wrong is told through the attempt's record in the store. It ends when its input does, when asked by SIGTERM
(after a checkpoint), or when the driver that started it is gone.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys

from depthrate.orchestrator.executors.base import AttemptSpec
from depthrate.orchestrator.worker.attempt_runner import run_job
from depthrate.orchestrator.worker.context import StopFlag


def main() -> None:
    """Run the jobs that come in, one JSON line each, and answer each with its attempt's name."""
    answers = os.fdopen(os.dup(1), "w")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    stop = StopFlag()
    for number in (signal.SIGTERM, signal.SIGUSR2):  # SLURM signals every process of a job
        signal.signal(number, lambda *_: stop.set("asked to stop"))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while not stop.is_set and (line := sys.stdin.readline()):
        job = AttemptSpec.from_json(line)
        run_job(job, stop)
        try:
            print(job.attempt_id, file=answers, flush=True)
        except BrokenPipeError:
            return  # the driver is gone; everything stands in the store


if __name__ == "__main__":
    try:
        main()
    finally:
        gc.freeze()  # the interpreter's last collections would walk through all of torch, half a second
