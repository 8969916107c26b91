"""The executor `ray`, as it is declared: its options, and what they open; Ray itself is imported only then."""

from __future__ import annotations

from depthrate.orchestrator.executors.base import ComputeTarget, ExecutorEntry, ExecutorError, ExecutorRequest
from depthrate.orchestrator.executors.options import Option
from depthrate.orchestrator.executors.slurm.entry import CLUSTER, PACKS_PER_GPU

ADDRESS = Option("address", str, "A Ray cluster, as in host:6379 or auto; default: a Ray of our own.")


def _open(request: ExecutorRequest) -> ComputeTarget:
    """Return a Ray of our own on this machine, a cluster's, or (with --cluster) one inside a SLURM allocation.

    Raises:
        ValueError: `ExecutorError`, `RayError`, `MachineError` or `SlurmError` for what is not there or does not fit.
    """
    options = request.options
    address, cluster = options.executor_options[ADDRESS.name], options.executor_options[CLUSTER.name]
    if address is not None and address.startswith("ray://"):
        raise ExecutorError(
            f"address {address!r} is Ray's client, which Ray Tune cannot feed; run on a node, with auto"
        )
    if cluster is not None and address is not None:
        raise ExecutorError(
            "--address is a Ray cluster that is there, --cluster has one started by SLURM; give one of them"
        )
    try:
        from depthrate.orchestrator.executors.ray.executor import open_cluster, open_local
    except ImportError as error:
        raise ExecutorError(f"--executor ray needs Ray ({error}); install it: pip install 'depthrate[ray]'") from None
    if cluster is not None:
        from depthrate.orchestrator.executors.ray.allocation import open_allocation

        return open_allocation(request, cluster)
    packs_per_gpu = options.executor_options[PACKS_PER_GPU.name] or 1
    if address is not None:
        return open_cluster(address, options.device, options.workers, packs_per_gpu)
    return open_local(options.device, options.workers, packs_per_gpu)


RAY = ExecutorEntry(
    name="ray",
    open=_open,
    options=(CLUSTER, ADDRESS, PACKS_PER_GPU),
    detach="ray --cluster",
    compares_running_trials=True,
)
