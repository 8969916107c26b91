"""A connection to Ray, one of our own on this machine or a cluster's, and what its nodes have."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.metadata
import logging
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, NamedTuple

import depthrate.orchestrator.executors.ray.settings  # noqa: F401 - first: ray reads the environment

# isort: split
import ray
from ray.job_config import JobConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from depthrate.orchestrator.executors.local import WORKER_ENVIRONMENT
from depthrate.orchestrator.executors.ray.errors import LOCAL_RAY_HINT, RayError, short_error
from depthrate.tasks.python_process import SAFE_PATH

AUTH_MODE = "RAY_AUTH_MODE"
"""The environment variable by which Ray takes or asks for a token."""
PORT_TIMEOUT_S = 10.0
"""How long a head's port may take to accept a connection."""
NODE_ANSWER_TIMEOUT_S = 60.0
"""Longest wait for the nodes to answer what is installed on them."""
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}


class _JobConfig(JobConfig):
    """A job whose workers import what is installed: Ray would put the driver's working folder before that."""

    def _serialize(self) -> Any:
        self._py_driver_sys_path = []
        return super()._serialize()


class Session:
    """A connection to Ray: one of our own on this machine, or a cluster's."""

    def __init__(self, *, address: str | None, workers: int | None = None, gpus: int = 0):
        self._address, self._workers, self._gpus = address, workers, gpus
        self._folder: str | None = None
        self._auth_mode = os.environ.get(AUTH_MODE)
        """The mode before Ray starts here. Ray sets it, and a later connection to a cluster would inherit it."""
        self.is_connected = False
        """Whether it was started here, and ends with `close`."""

    def connect(self) -> Session:
        """Connect, or start what is asked for, and return this session; nothing happens where Ray is connected already.

        Raises:
            RayError: the cluster cannot be reached.
        """
        if ray.is_initialized():
            return self
        self._check_port()
        environment = WORKER_ENVIRONMENT | SAFE_PATH | {"DEPTHRATE_DRIVER_PID": "", "RAY_USAGE_STATS_ENABLED": "0"}
        with captured_stderr() as written:
            try:
                if self._address is None:
                    self._start(environment)
                else:
                    self._folder = tempfile.mkdtemp(prefix="dr-code-")
                    code = {"py_modules": [copy_package(self._folder)]}
                    runtime_env = {"env_vars": environment, **code}
                    ray.init(address=self._address, runtime_env=runtime_env, job_config=_JobConfig(), **_QUIET)
            except Exception as error:  # of a Ray that comes too late it is an Exception and no more
                why = self._connect_error(error, written())
                with contextlib.suppress(Exception):
                    ray.shutdown()  # what has started of it
                self._clean_up()
                raise RayError(why) from None
        self.is_connected = True
        return self

    def _check_port(self) -> None:
        """See that somebody listens where a host and a port are given; Ray would try for minutes.

        Raises:
            RayError: nobody does.
        """
        host, _, port = (self._address or "").rpartition(":")
        if not host or not port.isdigit():
            return
        try:
            socket.create_connection((host, int(port)), PORT_TIMEOUT_S).close()
        except OSError as error:
            raise RayError(
                f"no Ray cluster at {self._address!r}: nobody listens there ({error}); `ray status` there says where it is"
            ) from error

    def _connect_error(self, error: Exception, written: str) -> str:
        """Say why there is no connection; Ray only writes to its error output that a token is asked for."""
        if self._address is None:
            return f"no Ray could be started here: {short_error(error)}; {LOCAL_RAY_HINT}"
        if "Unauthenticated" in written or "authentication token" in str(error).lower():
            is_given = os.environ.get(AUTH_MODE) == "token"
            return (
                f"the Ray cluster at {self._address!r} is there and asks for a token, and "
                f"{'the one given here is another' if is_given else 'none is given here'}; set RAY_AUTH_MODE=token and, unless "
                "its head's token stands in ~/.ray/auth_token (where `ray start` finds it by itself), RAY_AUTH_TOKEN"
            )
        return f"no Ray cluster at {self._address!r}: {short_error(error)}; `ray status` shows what is there"

    def _start(self, environment: dict[str, str]) -> None:
        # short, because Ray's socket paths below it may have 107 bytes; our own, because /tmp/ray may be another user's
        self._folder = tempfile.mkdtemp(prefix="dr-ray-")
        with _protected_start():
            ray.init(
                address="local",
                num_cpus=self._workers,
                num_gpus=self._gpus,
                include_dashboard=False,
                _temp_dir=f"{self._folder}/r",  # Ray lets everybody write into its folder, so it stands in one of ours
                object_store_memory=100 * 2**20,  # nothing passes through it
                runtime_env={"env_vars": environment},
                job_config=_JobConfig(),
                **_QUIET,
            )

    def resources(self) -> dict[str, float]:
        """Return what the nodes have together: CPU, GPU."""
        return dict(ray.cluster_resources())

    def max_resources(self) -> dict[str, float]:
        """Return what the nodes may have together when an autoscaler has added all it may; what they have where none does."""
        there = self.resources()
        try:  # Ray has no public way to ask
            most = ray._private.state.state.get_max_resources_from_cluster_config() or {}
        except Exception:
            most = {}
        return {name: max(there.get(name, 0.0), float(most.get(name, 0.0))) for name in there | most}

    @property
    def head(self) -> str:
        """Where the head listens, as host:port."""
        return str(ray.get_runtime_context().gcs_address)

    def memory_per_cpu(self) -> float | None:
        """Return the bytes that each CPU's packs may use on the node with the least, as Ray knows it."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        shares = [node["memory"] / node["CPU"] for node in nodes if node.get("memory")]
        return min(shares, default=None)

    def abandon(self) -> None:
        """Leave a Ray that is gone without a word to it: every word would wait for a minute and then end this process."""
        atexit.unregister(ray.shutdown)
        self._clean_up()

    def close(self) -> None:
        """Disconnect, and end what was started."""
        if not self.is_connected:
            return
        try:
            ray.shutdown()
        finally:
            self._clean_up()

    def _clean_up(self) -> None:
        if os.environ.get(AUTH_MODE) != self._auth_mode:
            _restore_auth_mode(self._auth_mode)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _restore_auth_mode(mode: str | None) -> None:
    """Set the environment variable as it was, and have this process's Ray read it again.

    Ray reads the variable once per process. Without the second step a later connection to a cluster without tokens
    refuses every message of its workers, and actors never start.
    """
    if mode is None:
        del os.environ[AUTH_MODE]
    else:
        os.environ[AUTH_MODE] = mode
    with contextlib.suppress(ImportError, AttributeError):  # not public: an older Ray has no token mode by default
        raylet: Any = importlib.import_module("ray._raylet")
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()


@contextlib.contextmanager
def _protected_start() -> Iterator[None]:
    """Start processes that outlive a closed terminal, and of which none leaves gigabytes of core file if it aborts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN) if is_main else None
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
        if is_main:
            signal.signal(signal.SIGHUP, before)


@contextlib.contextmanager
def captured_stderr() -> Iterator[Callable[[], str]]:
    """Keep what native code writes to this process's error output, and yield what returns it."""
    with tempfile.TemporaryFile() as file:
        before = os.dup(2)
        sys.stderr.flush()
        os.dup2(file.fileno(), 2)
        try:
            yield lambda: os.pread(file.fileno(), 1_000_000, 0).decode(errors="replace")
        finally:
            sys.stderr.flush()
            os.dup2(before, 2)
            os.close(before)


def count_nodes(address: str, wanted: int, wait_s: float) -> int:
    """Wait until a cluster has as many nodes as wanted, and return how many it has."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            ray.init(address=address, **_QUIET)
            break
        except (ConnectionError, RuntimeError, ValueError, TimeoutError):
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)
    try:
        while True:
            there = sum(node["Alive"] for node in ray.nodes())
            if there >= wanted or time.monotonic() > deadline:
                return there
            time.sleep(0.5)
    finally:
        ray.shutdown()


def copy_package(folder: str) -> str:
    """Copy our package into a folder, to be sent to nodes on which it may not be installed, and return where it is.

    Ray follows no links, and in a checkout the package consists of them.
    """
    copy = Path(folder) / "depthrate"
    with as_file(files("depthrate")) as package:
        shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return str(copy)


def installed_versions() -> dict[str, str]:
    """Return the versions on which numbers and file formats depend."""
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("ray", "torch", "numpy", "pyarrow"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


class NodeCheck(NamedTuple):
    """What the nodes of a cluster answered."""

    differences: list[str]
    """In what the nodes differ from this machine, and which do not run tasks, in words."""
    unusable: list[str]
    """The ids of the nodes that do not run tasks."""


def check_nodes(wait_s: float = NODE_ANSWER_TIMEOUT_S) -> NodeCheck:
    """Ask all nodes at once what is installed on them, and compare it with what is installed here.

    A node that cannot run the question, for lack of memory say, or does not answer in time would run no pack either:
    it is left out.

    Args:
        wait_s: the longest wait for all answers together, in seconds.

    Raises:
        RayError: no node answers, or one lacks what every pack needs.
    """
    here = installed_versions()
    asked = {
        ray.remote(installed_versions)
        .options(
            num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        )
        .remote(): node["NodeID"]
        for node in ray.nodes()
        if node["Alive"]
    }
    answered, silent = ray.wait(list(asked), num_returns=len(asked), timeout=wait_s)
    differences, unusable = [], []
    for answer in silent:
        ray.cancel(answer, force=True)
        unusable.append((asked[answer], f"did not answer in {wait_s:.0f} s"))
    for answer in answered:
        node = f"node {asked[answer][:8]}"
        try:
            there = ray.get(answer)
        except ray.exceptions.RayError as error:
            unusable.append((asked[answer], short_error(error)))
            continue
        missing = [name for name in ("numpy", "pyarrow") if there[name] == "not installed"]
        if missing:
            raise RayError(f"Ray {node} lacks {', '.join(missing)}; install there what is installed here")
        differences += [
            f"{node} has {name} {there[name]}, here it is {here[name]}" for name in here if there[name] != here[name]
        ]
    left_out = [f"node {node_id[:8]} is left out, it runs no task: {why}" for node_id, why in unusable]
    if len(unusable) == len(asked):
        raise RayError(f"no node of the Ray cluster runs our code: {'; '.join(left_out[:3])}")
    return NodeCheck([*left_out, *differences], [node_id for node_id, _ in unusable])
