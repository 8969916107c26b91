"""Inside a SLURM allocation, once on each of its nodes: start Ray there; the first node also runs the launch."""

from __future__ import annotations

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
from types import FrameType

from depthrate.orchestrator.executors.options import LaunchOptions
from depthrate.orchestrator.executors.slurm.job import requeue_job
from depthrate.orchestrator.executors.slurm.remote_launch import OPTIONS_FILE, launch_process
from depthrate.slurm import in_job
from depthrate.storage.attempts.records import read_loose_records
from depthrate.storage.files.paths import attempts_folder
from depthrate.storage.files.store import Store, StoreError
from depthrate.tasks.python_process import start_python

log = logging.getLogger("depthrate")
START_TIMEOUT_S = 300.0
"""Longest wait for the first node, and then for the others; SLURM may start tasks minutes apart."""
STOP_TIMEOUT_S = 20.0
GB = 2**30
RAY_ITSELF_GB = 1.0
"""What Ray's own processes take of a node's memory."""
OBJECT_STORE_BYTES = 100 * 2**20
"""Nothing passes through it."""


def run_ray_node(arguments: list[str]) -> None:
    """Run this node's part of the launch whose options lie in the job's folder, the only argument."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    folder = Path(arguments[0])
    options = LaunchOptions.from_json((folder / OPTIONS_FILE).read_text())
    # a worker that aborts when Ray ends would leave gigabytes in the user's folder
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    # SLURM sends its warning to every process: what is started from here on must not die of it
    for number in (signal.SIGUSR2, signal.SIGCONT):
        signal.signal(number, signal.SIG_IGN)
    if options.data is not None:
        os.environ["DEPTHRATE_DATA"] = options.data  # Ray's workers have this environment
    os.environ["DEPTHRATE_JOB_ID"] = in_job.job_id()
    meeting = _Rendezvous(folder)
    if int(os.environ["SLURM_PROCID"]) == 0:
        _run_first(meeting, folder, options)
    else:
        _run_other(meeting)


class _Rendezvous:
    """Two files in the job's folder, by which the other nodes find the first and learn that all is over."""

    def __init__(self, folder: Path):
        self._address_file = folder / f"ray-{in_job.job_id()}-{in_job.restart_count()}.json"
        self._end_file = self._address_file.with_suffix(".over")

    def publish(self, address: str, token: str, folder: str) -> None:
        """Tell the other nodes where Ray is, what it wants to hear from them, and where it keeps its files everywhere."""
        draft = self._address_file.with_suffix(".new")
        draft.touch(mode=0o600)
        draft.write_text(json.dumps([address, token, folder]))
        draft.rename(self._address_file)

    def await_first(self) -> tuple[str, str, str]:
        """Wait for the first node and return (address, token, folder)."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._address_file.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the first node did not start Ray within {START_TIMEOUT_S:.0f} s; see its log")
            time.sleep(0.5)
        address, token, folder = json.loads(self._address_file.read_text())
        return address, token, folder

    def close(self) -> None:
        """Tell the other nodes that all is over."""
        self._end_file.touch()
        self._address_file.unlink(missing_ok=True)

    @property
    def is_over(self) -> bool:
        """Whether the first node is done."""
        return self._end_file.exists()


class _RayNode:
    """Ray's processes on this node."""

    def __init__(self, token: str, folder: str, *arguments: str):
        self.folder = folder
        gpus = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        words = ["start", "--block", "--disable-usage-stats", *arguments]
        words += [f"--num-cpus={os.environ.get('SLURM_CPUS_PER_TASK') or 1}", f"--num-gpus={len(gpus)}"]
        words += [f"--object-store-memory={OBJECT_STORE_BYTES}"]
        if memory_mb := os.environ.get("SLURM_MEM_PER_NODE"):
            words.append(f"--memory={max(0.1 * GB, int(memory_mb) * 2**20 - RAY_ITSELF_GB * GB):.0f}")
        # any free ports: other jobs, of others too, may have Ray on the same node
        words += ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"]
        self.process = start_python(
            *("ray.scripts.scripts", *words),
            variables=ray_environment(token),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def await_port(self, host: str, port: int) -> None:
        """Wait until the head listens.

        Raises:
            RuntimeError: it ended, or took too long.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1.0):
                return
            time.sleep(0.2)
        raise RuntimeError("Ray did not start on the first node; why is said above")

    def stop(self) -> None:
        """End Ray on this node."""
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


def ray_environment(token: str) -> dict[str, str]:
    """Return the environment of everything that speaks with this allocation's Ray; without the token nobody else may."""
    given = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
    # memory is SLURM's to watch: Ray would kill workers because of what other jobs on the node take
    return os.environ | given | {"RAY_memory_monitor_refresh_ms": "0"}


def _run_other(meeting: _Rendezvous) -> None:
    address, token, folder = meeting.await_first()
    Path(folder).mkdir(mode=0o700, exist_ok=True)  # Ray's own folder in it is the same on every node
    node = _RayNode(token, folder, f"--address={address}")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the first node says when it is time
    while not meeting.is_over and node.process.poll() is None:
        time.sleep(0.5)
    node.stop()


def _run_first(meeting: _Rendezvous, job_folder: Path, options: LaunchOptions) -> None:
    address, token = f"{_find_address()}:{_free_port()}", secrets.token_hex(32)
    os.environ |= ray_environment(token)
    host, _, port = address.rpartition(":")
    # short, because Ray's socket paths below it may have 107 bytes; our own, because /tmp/ray may be another user's
    folder = tempfile.mkdtemp(prefix="dr-ray-", dir="/tmp")
    words_of_head = [
        "--head",
        f"--temp-dir={folder}/r",  # Ray lets everybody write into its folder, so it stands in one of ours
        "--include-dashboard=false",
        f"--node-ip-address={host}",
        f"--port={port}",
    ]
    if importlib.util.find_spec("grpc"):  # then Ray serves its client too, for which two heads would take the same port
        words_of_head.append(f"--ray-client-server-port={_free_port()}")
    node = _RayNode(token, folder, *words_of_head)
    try:
        node.await_port(host, int(port))
        meeting.publish(address, token, node.folder)
        _await_nodes(address)
        inside = replace(options, executor_options={**options.executor_options, "address": address})
        file = job_folder / f"launch-{in_job.job_id()}-{in_job.restart_count()}.json"
        file.write_text(inside.to_json())
        _Launch(file, inside).run()
    finally:
        meeting.close()
        node.stop()


def _await_nodes(address: str) -> None:
    from depthrate.orchestrator.executors.ray.session import count_nodes

    asked = int(os.environ.get("SLURM_JOB_NUM_NODES") or 1)
    there = count_nodes(address, asked, START_TIMEOUT_S)
    if there < asked:
        log.warning("%d of %d nodes have come; going on without the others", there, asked)


class _Launch:
    """`depthrate run` on the first node."""

    def __init__(self, file: Path, options: LaunchOptions):
        self._files, self._started_at = Store(str(options.store)), time.time()
        self._sweep = str(json.loads(Path(options.sweep).read_text())["name"])
        self._stop_signal: signal.Signals | None = None
        self._process = launch_process(file)
        for number in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def run(self) -> None:
        """Wait for its end; where time was too short, go back into the queue."""
        code = self._process.wait()
        log.info("depthrate run ended with code %d", code)
        if self._stop_signal is not None and code != 0:
            requeue_job(self._stop_signal, "the launch goes on", has_progressed=self._has_progressed())

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stop_signal is None:
            self._stop_signal = signal.Signals(number)
            self._process.send_signal(signal.SIGTERM)

    def _has_progressed(self) -> bool:
        """Whether an attempt of this job saved anything since it started."""
        try:
            paths = [path for path in self._files.list(attempts_folder(self._sweep)) if path.endswith(".json")]
            records = [record for _, record in read_loose_records(self._files, paths)]
        except (OSError, StoreError) as error:
            log.warning("store not read: %s", error)
            return True
        ours = [r for r in records if r.get("job_id") == in_job.job_id() and (r["started_at"] or 0) >= self._started_at]
        return any(record.get("checkpoints") or record.get("trials_done") for record in ours)


def _find_address() -> str:
    """Return the address under which other nodes reach this one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 1))  # sends nothing: it only chooses the interface
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostbyname(socket.gethostname())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
