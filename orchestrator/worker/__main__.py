"""A worker process: read attempts from stdin one by one, run them, and print each ended attempt to stdout.

Failures are written to the attempt's record in the store. The process exits at the end of stdin, after a checkpoint on SIGTERM,
or when its driver has exited.
"""

import gc
import logging
import os
import signal
import sys

from depthrate.orchestrator.attempts.spec import AttemptSpec
from depthrate.orchestrator.worker.attempt_runner import run_job
from depthrate.orchestrator.worker.context import StopFlag, raise_oom_score


def main() -> None:
    """Run the attempts that arrive as JSON lines on stdin, and print the id of each when it has ended."""
    raise_oom_score()
    answers = os.fdopen(os.dup(1), "w")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    stop = StopFlag()
    for number in (signal.SIGTERM, signal.SIGUSR2):  # SLURM signals every process of a job
        signal.signal(number, lambda *_: stop.set("stop requested"))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while not stop.is_set and (line := sys.stdin.readline()):
        job = AttemptSpec.from_json(line)
        run_job(job, stop)
        try:
            print(job.attempt_id, file=answers, flush=True)
        except BrokenPipeError:
            return  # the driver has exited. The store has all results.


if __name__ == "__main__":
    try:
        main()
    finally:
        gc.freeze()  # without this, the final collections traverse all of torch, which takes half a second
