"""Declaration of the executor `ray`: its options and its `open` function, which imports Ray."""

from depthrate.orchestrator.attempts.options import Option
from depthrate.orchestrator.executors.base import Executor, ExecutorEntry, ExecutorRequest
from depthrate.orchestrator.executors.errors import ExecutorError
from depthrate.orchestrator.executors.slurm.entry import PACKS_PER_GPU

ADDRESS = Option(name="address", kind="str", doc="Ray cluster: host:port or auto. Default: start a local Ray.")


def _open(request: ExecutorRequest) -> Executor:
    """Return an executor for a local Ray or an existing cluster."""
    options = request.options
    address = options.executor_options[ADDRESS.name]
    if address is not None and address.startswith("ray://"):
        raise ExecutorError(
            f"address is {address!r}, expected host:port or auto: Ray Tune does not run through Ray Client. "
            "Run depthrate on a node of the cluster, with --address auto."
        )
    try:
        from depthrate.orchestrator.executors.ray.executor import open_cluster, open_local
    except ImportError as error:
        raise ExecutorError(f"--executor ray needs Ray ({error}). Install it: pip install 'depthrate[ray]'") from None
    packs_per_gpu = options.executor_options[PACKS_PER_GPU.name] or 1
    if address is not None:
        return open_cluster(address, options.device, options.workers, packs_per_gpu)
    return open_local(options.device, options.workers, packs_per_gpu)


RAY = ExecutorEntry(
    name="ray",
    open=_open,
    options=(ADDRESS, PACKS_PER_GPU),
    compares_running_trials=True,
)
