"""Code that runs once on each node of a SLURM allocation: start Ray, and run the launch on the first node."""

import contextlib
import importlib.util
import json
import logging
import os
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from depthrate.orchestrator.executors.options import LaunchOptions
from depthrate.orchestrator.executors.slurm.job import requeue_job
from depthrate.orchestrator.executors.slurm.remote_launch import OPTIONS_FILE, InnerLaunch
from depthrate.slurm import in_job
from depthrate.storage.attempts.records import read_loose_records
from depthrate.storage.files.paths import attempt_path
from depthrate.storage.files.store import Store, StoreError
from depthrate.tasks.python_process import start_python

log = logging.getLogger("depthrate")
START_TIMEOUT_S = 300.0
"""Longest wait in seconds for the first node, and then for the other nodes. SLURM may start tasks minutes apart."""
STOP_TIMEOUT_S = 20.0
"""Time in seconds that Ray has to exit before it is killed."""
GB = 2**30
RAY_ITSELF_GB = 1.0
"""Memory of Ray's own processes per node, in GB."""
OBJECT_STORE_BYTES = 100 * 2**20
"""Size of Ray's object store, which is not used."""


def run_ray_node(arguments: list[str]) -> None:
    """Run this node's part of a launch. The only argument is the job's folder, which contains the options."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    in_job.mark_started()
    folder = Path(arguments[0])
    options = LaunchOptions.from_json((folder / OPTIONS_FILE).read_text())
    # A worker that aborts when Ray exits would leave a core file of gigabytes in the user's folder.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    # SLURM sends its warning to every process. Child processes inherit that they ignore it.
    for number in (signal.SIGUSR2, signal.SIGCONT):
        signal.signal(number, signal.SIG_IGN)
    if options.data is not None:
        os.environ["DEPTHRATE_DATA"] = options.data  # Ray's workers inherit the environment
    os.environ["DEPTHRATE_JOB_ID"] = in_job.job_id()
    rendezvous = _Rendezvous(folder)
    if int(os.environ["SLURM_PROCID"]) == 0:
        _run_first(rendezvous, folder, options)
    else:
        _run_other(rendezvous)


class _Rendezvous:
    """Two files in the job's folder, through which the other nodes find the first node and detect its end."""

    def __init__(self, folder: Path):
        self._address_file = folder / f"ray-{in_job.job_id()}-{in_job.restart_count()}.json"
        self._end_file = self._address_file.with_suffix(".over")

    def publish(self, address: str, token: str, folder: str) -> None:
        """Publish Ray's address, its token and the path of its folder on every node."""
        draft = self._address_file.with_suffix(".new")
        draft.touch(mode=0o600)
        draft.write_text(json.dumps([address, token, folder]))
        draft.rename(self._address_file)

    def await_first(self) -> tuple[str, str, str]:
        """Wait for the first node and return (address, token, folder)."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._address_file.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the first node did not start Ray within {START_TIMEOUT_S:.0f} s. Check its log.")
            time.sleep(0.5)
        address, token, folder = json.loads(self._address_file.read_text())
        return address, token, folder

    def close(self) -> None:
        """Signal the end to the other nodes."""
        self._end_file.touch()
        self._address_file.unlink(missing_ok=True)

    @property
    def is_over(self) -> bool:
        """Whether the first node has finished."""
        return self._end_file.exists()


class _RayNode:
    """Ray's processes on this node."""

    def __init__(self, token: str, folder: str, *arguments: str):
        self.folder = folder
        gpus = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        command = ["start", "--block", "--disable-usage-stats", *arguments]
        command += [f"--num-cpus={os.environ.get('SLURM_CPUS_PER_TASK') or 1}", f"--num-gpus={len(gpus)}"]
        command += [f"--object-store-memory={OBJECT_STORE_BYTES}"]
        if memory_mb := os.environ.get("SLURM_MEM_PER_NODE"):
            command.append(f"--memory={max(0.1 * GB, int(memory_mb) * 2**20 - RAY_ITSELF_GB * GB):.0f}")
        # any free ports, because other jobs may run Ray on the same node
        command += ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"]
        self.process = start_python(
            *("ray.scripts.scripts", *command),
            variables=ray_environment(token),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def await_port(self, host: str, port: int) -> None:
        """Wait until the head listens."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1.0):
                return
            time.sleep(0.2)
        raise RuntimeError("Ray did not start on the first node. See its messages above.")

    def stop(self) -> None:
        """Stop Ray on this node."""
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


def ray_environment(token: str) -> dict[str, str]:
    """Return the environment of all processes that connect to this allocation's Ray. The token denies access to other users."""
    variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
    # SLURM limits the memory. Ray would kill workers because of the memory of other jobs on the node.
    return os.environ | variables | {"RAY_memory_monitor_refresh_ms": "0"}


def _run_other(rendezvous: _Rendezvous) -> None:
    address, token, folder = rendezvous.await_first()
    Path(folder).mkdir(mode=0o700, exist_ok=True)  # Ray needs the same path on every node
    node = _RayNode(token, folder, f"--address={address}")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the first node decides when to stop
    while not rendezvous.is_over and node.process.poll() is None:
        time.sleep(0.5)
    node.stop()


def _run_first(rendezvous: _Rendezvous, job_folder: Path, options: LaunchOptions) -> None:
    address, token = f"{_find_address()}:{_free_port()}", secrets.token_hex(32)
    os.environ |= ray_environment(token)
    host, _, port = address.rpartition(":")
    # Short, because socket paths have at most 107 bytes. Private, because /tmp/ray may belong to another user.
    folder = tempfile.mkdtemp(prefix="dr-ray-", dir="/tmp")
    head_arguments = [
        "--head",
        f"--temp-dir={folder}/r",  # Ray's folder is world-writable, so it is placed inside a private folder
        "--include-dashboard=false",
        f"--node-ip-address={host}",
        f"--port={port}",
    ]
    if importlib.util.find_spec("grpc"):  # Ray then serves Ray Client too, on the same port for every head
        head_arguments.append(f"--ray-client-server-port={_free_port()}")
    node = _RayNode(token, folder, *head_arguments)
    try:
        node.await_port(host, int(port))
        rendezvous.publish(address, token, node.folder)
        from depthrate.orchestrator.executors.ray.session import count_nodes

        requested = int(os.environ.get("SLURM_JOB_NUM_NODES") or 1)
        if (joined := count_nodes(address, requested, START_TIMEOUT_S)) < requested:
            log.warning("only %d of %d nodes joined Ray. Continuing without the others.", joined, requested)
        inner_options = replace(options, executor_options={**options.executor_options, "address": address})
        file = job_folder / f"launch-{in_job.job_id()}-{in_job.restart_count()}.json"
        file.write_text(inner_options.to_json())
        _Launch(file, inner_options).run()
    finally:
        rendezvous.close()
        node.stop()


class _Launch(InnerLaunch):
    """Runs `depthrate run` on the first node."""

    def __init__(self, file: Path, options: LaunchOptions):
        super().__init__(file)
        self._files, self._started_at = Store(str(options.store)), time.time()
        self._sweep = str(json.loads(Path(options.sweep).read_text())["name"])

    def run(self) -> None:
        """Wait for the launch to exit, and requeue the job if time ran out."""
        code = self._run_once()
        log.info("depthrate run exited with code %d", code)
        if self._stop_signal is not None and code != 0:
            requeue_job(self._stop_signal, "the launch resumes", has_progressed=self._has_progressed())

    def _has_progressed(self) -> bool:
        """Return whether an attempt of this start of the job saved anything."""
        try:
            paths = [path for path in self._files.list(attempt_path.folder(self._sweep)) if path.endswith(".json")]
            records = [record for _, record in read_loose_records(self._files, paths)]
        except (OSError, StoreError) as error:
            log.warning("cannot read the store: %s", error)
            return True
        job_id, started_at = in_job.job_id(), self._started_at
        records = [r for r in records if r.get("job_id") == job_id and (r["started_at"] or 0) >= started_at]
        return any(record.get("checkpoints") or record.get("trials_done") for record in records)


def _find_address() -> str:
    """Return the IP address of this node for other nodes."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 1))  # this sends nothing and only selects the interface
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostbyname(socket.gethostname())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
