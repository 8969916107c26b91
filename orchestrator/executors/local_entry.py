"""The executor `local`, as it is declared."""

from __future__ import annotations

from depthrate.orchestrator.executors.executor import ExecutorEntry, ExecutorRequest, Machines


def _open(request: ExecutorRequest) -> Machines:
    """Return worker processes on this machine.

    Raises:
        MachineError: the device or the number of workers cannot be had.
    """
    from depthrate.orchestrator.executors.local import LocalExecutor
    from depthrate.orchestrator.executors.machine import choose_machine

    machine = choose_machine(request.device, request.workers)
    return LocalExecutor(machine.workers, machine.gpus, device=machine.device, memory_bytes=machine.memory_bytes)


LOCAL = ExecutorEntry(name="local", open=_open)
