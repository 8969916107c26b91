"""An executor of the tests: packs one after another in the process that launches them."""

from collections import deque
from collections.abc import Sequence

from depthrate.orchestrator.executors.base import (
    AttemptEnd,
    AttemptSpec,
    Executor,
    ExecutorEntry,
    ExecutorRequest,
    JobCounts,
    Scheduler,
    SchedulerAnswer,
)
from depthrate.orchestrator.executors.options import Option
from depthrate.orchestrator.worker.__main__ import StopFlag, run_job


class OneByOne(Executor):
    """Packs one after another in this process."""

    device, workers, capacity = "cpu", 1, 1

    def __init__(self, nice: int):
        self._nice = nice
        self._waiting: deque[AttemptSpec] = deque()

    def summary(self) -> str:
        return f"one by one, {self._nice} times nice"

    def submit(self, jobs: Sequence[AttemptSpec]) -> None:
        self._waiting.extend(jobs)

    def running(self) -> dict[str, str]:
        return {}

    def poll(self, timeout_s: float) -> list[AttemptEnd]:
        if not self._waiting:
            return []
        job = self._waiting.popleft()
        run_job(job, StopFlag())
        return [AttemptEnd(job.attempt_id)]

    def stop(self) -> None: ...

    def close(self) -> None: ...


def open_one_by_one(request: ExecutorRequest) -> OneByOne:
    return OneByOne(request.options.executor_options["nice_level"])


jobs = SchedulerAnswer(JobCounts(2, 1, {"Play": 2}), [])
options = (Option("nice_level", int, "How nice it is.", default=3, minimum=1),)
scheduler = Scheduler("TOY", lambda store, sweep: jobs, lambda store, sweep: None)
TOY = ExecutorEntry(name="toy", open=open_one_by_one, options=options, scheduler=scheduler)
