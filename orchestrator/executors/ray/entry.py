"""Declaration of the executor `ray`: its options and its `open` function, which imports Ray."""

from depthrate.orchestrator.executors.base import ComputeTarget, ExecutorEntry, ExecutorError, ExecutorRequest
from depthrate.orchestrator.executors.options import Option
from depthrate.orchestrator.executors.slurm.entry import CLUSTER, PACKS_PER_GPU

ADDRESS = Option(name="address", kind="str", doc="Ray cluster: host:port or auto. Default: start a local Ray.")


def _open(request: ExecutorRequest) -> ComputeTarget:
    """Return an executor for a local Ray, an existing cluster, or (with --cluster) a Ray inside a SLURM allocation."""
    options = request.options
    address, cluster = options.executor_options[ADDRESS.name], options.executor_options[CLUSTER.name]
    if address is not None and address.startswith("ray://"):
        raise ExecutorError(
            f"address is {address!r}, expected host:port or auto: Ray Tune does not run through Ray Client. "
            "Run depthrate on a node of the cluster, with --address auto."
        )
    if cluster is not None and address is not None:
        raise ExecutorError(
            "--address connects to an existing Ray cluster and --cluster starts one with SLURM. Pass only one of them."
        )
    try:
        from depthrate.orchestrator.executors.ray.executor import open_cluster, open_local
    except ImportError as error:
        raise ExecutorError(f"--executor ray needs Ray ({error}). Install it: pip install 'depthrate[ray]'") from None
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
