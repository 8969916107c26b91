"""Worker processes on the local machine, one per core or GPU. Each runs one pack after another."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from depthrate.orchestrator.attempts.options import Option
from depthrate.orchestrator.attempts.spec import AttemptSpec
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.executors.base import AttemptEnd, Executor, ExecutorEntry, ExecutorRequest
from depthrate.orchestrator.executors.gpu_sharing import has_service, shared_gpus
from depthrate.tasks.python_process import start_python

WORKER_ENVIRONMENT = {
    # One thread per worker: results are bitwise reproducible, and more threads per process are no faster.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Spinning threads slow training 3 to 30 times on shared cores.
    "OMP_WAIT_POLICY": "PASSIVE",
    # Reuse heap memory for the buffers of a training step, instead of mapping and unmapping it each time.
    "MALLOC_MMAP_THRESHOLD_": "33554432",
    "MALLOC_TRIM_THRESHOLD_": "268435456",
    "MALLOC_TOP_PAD_": "67108864",
}
NICE = Option(name="nice", kind="int", doc="Niceness of workers, 0 to 19 (nice(1)).", default=0, minimum=0)
OUTPUT_WAIT_S = 2.0
"""Time in seconds to wait for the last output of a worker that has exited."""


@dataclass
class _Worker:
    process: subprocess.Popen[str]
    errors: IO[bytes]
    job: AttemptSpec | None = None
    gone_at: float | None = None
    """Time at which the process was first found to have exited while its output was still open."""
    kill_reason: str = ""
    """Reason for killing it, if the driver did."""


class LocalExecutor(Executor):
    """Runs packs in local worker processes and replaces workers that exit."""

    takes_batches = True
    is_local = True

    def __init__(
        self,
        workers: int,
        gpus: Sequence[str] = (),
        *,
        device: str = "cpu",
        memory_bytes: float | None = None,
        nice: int = 0,
    ):
        self.workers = self.capacity = workers
        self.device, self.memory_bytes, self._nice = device, memory_bytes, nice
        self._gpus, self._visible_gpus, self._excluded = gpus, gpus, frozenset[str]()
        self.num_nodes = self._num_gpus = max(1, len(set(gpus)))
        self._slots = workers
        """Slots for the packs of the launch on all GPUs. `capacity` counts only GPUs that are not excluded."""
        self.gpu_share = min(1.0, len(gpus) / workers) if gpus else 1.0
        self._sharing = contextlib.ExitStack()
        self._workers: dict[int, _Worker] = {}
        self._messages: queue.Queue[tuple[int, subprocess.Popen[str], str | None]] = queue.Queue()

    def summary(self) -> str:
        """Return a string with the number of workers and their device."""
        text = f"{counted(self.workers, 'worker process', 'worker processes')} on {self.device}"
        if (sharing := self._packs_per_gpu(self.workers)) < 2:
            return text
        how = "through NVIDIA's MPS" if has_service(self._gpus, sharing) else "in turn, without NVIDIA's MPS"
        return f"{text}, {sharing} per GPU {how}"

    def _packs_per_gpu(self, workers: int) -> int:
        return -(-workers // self._num_gpus) if self._gpus else 1

    def start(self, num_packs: int | None) -> None:
        """Limit the workers to the number of packs, unless a search adds more."""
        self._slots = self.workers if num_packs is None else min(self.workers, num_packs)
        self.capacity = self._slots
        self._visible_gpus = self._sharing.enter_context(shared_gpus(self._gpus, self._packs_per_gpu(self._slots)))

    def nodes_by_attempt(self) -> dict[str, str]:
        """Map attempts to GPUs. Return {} on CPUs, where the machine is a single node."""
        busy = [(slot, worker.job) for slot, worker in self._workers.items()]
        return {job.attempt_id: node for slot, job in busy if job is not None and (node := self._node_of(slot))}

    def exclude_nodes(self, nodes: Sequence[str]) -> None:
        """Start nothing more on these GPUs."""
        self._excluded = frozenset(nodes)
        self.capacity = max(1, sum(self._node_of(slot) not in self._excluded for slot in range(self._slots)))

    def terminate(self, attempt_id: str, reason: str) -> bool:
        """Kill the worker of an attempt, even if the process is suspended."""
        for worker in self._workers.values():
            if worker.job is not None and worker.job.attempt_id == attempt_id:
                worker.kill_reason = reason
                worker.process.kill()
                return True
        return False

    def _node_of(self, slot: int) -> str:
        return f"GPU {self._gpus[slot % len(self._gpus)]}" if self._num_gpus > 1 else ""

    def submit(self, jobs: Sequence[AttemptSpec]) -> None:
        """Give each job to an idle worker, starting one if needed. Enough slots must be free."""
        for job in jobs:
            idle = [s for s in range(self._slots) if s not in self._workers or self._workers[s].job is None]
            assert idle, "submitted more jobs than there are workers"
            # An excluded GPU is the last choice, and a GPU on which this pack failed is the second to last.
            slot = min(idle, key=lambda s: (self._node_of(s) in self._excluded, self._node_of(s) in job.avoid, s))
            if slot in self._workers and self._workers[slot].process.poll() is not None:
                self._forget(slot)
            worker = self._workers.get(slot) or self._start(slot)
            worker.job = job
            assert worker.process.stdin is not None
            try:
                worker.process.stdin.write(job.to_json() + "\n")
                worker.process.stdin.flush()
            except OSError:
                pass  # the worker has just exited, and its reader thread reports that

    def running(self) -> dict[str, str]:
        """Return the started attempts, whose IDs never change with this executor."""
        return {worker.job.attempt_id: worker.job.attempt_id for worker in self._workers.values() if worker.job}

    def poll(self, timeout_s: float) -> list[AttemptEnd]:
        """Wait up to `timeout_s` and return the attempts that ended since the last call."""
        messages = []
        try:
            messages.append(self._messages.get(timeout=timeout_s))
            while True:
                messages.append(self._messages.get_nowait())
        except queue.Empty:
            ends = [self._parse_message(slot, process, line) for slot, process, line in messages]
        return [end for end in (*ends, *self._dead_workers()) if end is not None]

    def _dead_workers(self) -> Iterator[AttemptEnd | None]:
        """Yield the ends of workers that have exited while a child process still has their output open."""
        for slot, worker in list(self._workers.items()):
            if worker.job is not None and worker.process.poll() is not None:
                worker.gone_at = worker.gone_at or time.monotonic()
                if time.monotonic() - worker.gone_at > OUTPUT_WAIT_S:
                    yield self._parse_message(slot, worker.process, None)

    def stop(self, *, is_hopeless: bool = False) -> None:
        """Ask all workers to save a checkpoint and exit."""
        for worker in self._workers.values():
            if worker.process.poll() is None:
                worker.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Let idle workers exit and kill busy ones."""
        for worker in self._workers.values():
            if worker.job is not None:
                worker.process.kill()
            elif worker.process.stdin is not None:
                worker.process.stdin.close()  # an idle worker exits at the end of its input
        for slot in list(self._workers):
            try:
                self._workers[slot].process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._workers[slot].process.kill()
            self._forget(slot)
        self._sharing.close()

    def _start(self, slot: int) -> _Worker:
        variables = WORKER_ENVIRONMENT | {"DEPTHRATE_DRIVER_PID": str(os.getpid())}
        if self._gpus:
            variables["CUDA_VISIBLE_DEVICES"] = self._visible_gpus[slot % len(self._gpus)]
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with its worker
        process = start_python(
            "depthrate.orchestrator.worker",
            variables=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # Ctrl-C reaches only the driver, which then asks the workers to stop
        )
        if self._nice:  # before the process starts threads, which inherit the niceness
            with contextlib.suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + self._nice)
        self._workers[slot] = _Worker(process, errors)
        threading.Thread(target=self._read_messages, args=(slot, process), daemon=True).start()
        return self._workers[slot]

    def _read_messages(self, slot: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:  # closed in this thread, because closing it elsewhere would wait for this thread
            for line in process.stdout:
                self._messages.put((slot, process, line.strip()))
        self._messages.put((slot, process, None))

    def _parse_message(self, slot: int, process: subprocess.Popen[str], line: str | None) -> AttemptEnd | None:
        """Translate a worker's message: a line names the ended attempt, None means that the worker exited."""
        worker = self._workers.get(slot)
        if worker is None or worker.process is not process:
            return None
        if line is not None:
            if worker.job is None or line != worker.job.attempt_id:
                return None
            worker.job = None
            return AttemptEnd(line, node=self._node_of(slot))
        job, exit_message = worker.job, _exit_message(worker)
        self._forget(slot)
        return (
            None
            if job is None
            else AttemptEnd(job.attempt_id, worker.kill_reason or exit_message, node=self._node_of(slot))
        )

    def _forget(self, slot: int) -> None:
        worker = self._workers.pop(slot)
        worker.errors.close()
        with contextlib.suppress(OSError):
            if worker.process.stdin is not None:
                worker.process.stdin.close()


def _exit_message(worker: _Worker) -> str:
    """Describe the exit of a worker, with the tail of its stderr."""
    code = worker.process.wait()
    message = f"worker was killed by signal {-code}" if code < 0 else f"worker exited with code {code}"
    worker.errors.seek(0)
    tail = worker.errors.read()[-2000:].decode(errors="replace").strip()
    return f"{message}: {tail}" if tail else message


def _open(request: ExecutorRequest) -> Executor:
    """Return an executor for worker processes on the local machine."""
    from depthrate.orchestrator.executors.machine import choose_machine

    machine = choose_machine(request.options.device, request.options.workers)
    return LocalExecutor(
        machine.workers,
        machine.gpus,
        device=machine.device,
        memory_bytes=machine.memory_bytes,
        nice=request.options.executor_options[NICE.name],
    )


LOCAL = ExecutorEntry(name="local", open=_open, options=(NICE,))
