"""Connection to a local Ray or a Ray cluster, and the resources and versions of its nodes."""

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
from collections.abc import Iterator
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
from depthrate.orchestrator.worker.attempt_runner import installed_versions
from depthrate.orchestrator.worker.heartbeat import captured_output
from depthrate.tasks.python_process import SAFE_PATH

AUTH_MODE = "RAY_AUTH_MODE"
"""Environment variable that switches Ray's token authentication."""
PORT_TIMEOUT_S = 10.0
"""Time limit for a connection to the head's port, in seconds."""
NODE_ANSWER_TIMEOUT_S = 60.0
"""Longest wait for the versions installed on the nodes, in seconds."""
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}


class _JobConfig(JobConfig):
    """A job whose workers import installed packages first. Ray would put the driver's working folder before them."""

    def _serialize(self) -> Any:
        self._py_driver_sys_path = []
        return super()._serialize()


class Session:
    """A connection to a local Ray or to a Ray cluster."""

    def __init__(self, *, address: str | None, workers: int | None = None, gpus: int = 0):
        self._address, self._workers, self._gpus = address, workers, gpus
        self._folder: str | None = None
        self._auth_mode = os.environ.get(AUTH_MODE)
        """Mode before Ray starts in this process. Ray sets it, and a later connection to a cluster would inherit it.
        """
        self.is_connected = False
        """True once this session has connected, so that `close` disconnects."""

    def connect(self) -> Session:
        """Connect or start Ray, and return this session. Do nothing if Ray is connected already.

        Raises:
            RayError: Ray cannot be started or reached.
        """
        if ray.is_initialized():
            return self
        self._check_port()
        environment = WORKER_ENVIRONMENT | SAFE_PATH | {"DEPTHRATE_DRIVER_PID": "", "RAY_USAGE_STATS_ENABLED": "0"}
        with captured_output((2,)) as stderr:
            try:
                if self._address is None:
                    self._start(environment)
                else:
                    self._folder = tempfile.mkdtemp(prefix="dr-code-")
                    runtime_env = {"env_vars": environment, "py_modules": [copy_package(self._folder)]}
                    ray.init(address=self._address, runtime_env=runtime_env, job_config=_JobConfig(), **_QUIET)
            except Exception as error:  # a start that times out raises a plain Exception
                text = os.pread(stderr.fileno(), 1_000_000, 0).decode(errors="replace")
                message = self._connect_error(error, text)
                with contextlib.suppress(Exception):
                    ray.shutdown()  # after a partial start
                self._clean_up()
                raise RayError(message) from None
        self.is_connected = True
        return self

    def _check_port(self) -> None:
        """Check that an address with host and port accepts connections. Ray would retry for minutes."""
        host, _, port = (self._address or "").rpartition(":")
        if not host or not port.isdigit():
            return
        try:
            socket.create_connection((host, int(port)), PORT_TIMEOUT_S).close()
        except OSError as error:
            raise RayError(
                f"no Ray cluster at {self._address!r}: {error}. Run `ray status` on a node of the cluster for its address."
            ) from error

    def _connect_error(self, error: Exception, stderr: str) -> str:
        """Return a message about a failed connection. Ray reports a missing token only on stderr."""
        if self._address is None:
            return f"Ray cannot be started: {short_error(error).rstrip('.')}. {LOCAL_RAY_HINT}"
        if "Unauthenticated" in stderr or "authentication token" in str(error).lower():
            problem = "has a different token" if os.environ.get(AUTH_MODE) == "token" else "requires a token"
            return (
                f"the Ray cluster at {self._address!r} {problem}. Set RAY_AUTH_MODE=token and, unless the head's token is in "
                "~/.ray/auth_token (the default of `ray start`), RAY_AUTH_TOKEN."
            )
        return f"no Ray cluster at {self._address!r}: {short_error(error).rstrip('.')}. Check it with `ray status`."

    def _start(self, environment: dict[str, str]) -> None:
        # Short, because socket paths have at most 107 bytes. Private, because /tmp/ray may belong to another user.
        self._folder = tempfile.mkdtemp(prefix="dr-ray-")
        with _protected_start():
            ray.init(
                address="local",
                num_cpus=self._workers,
                num_gpus=self._gpus,
                include_dashboard=False,
                _temp_dir=f"{self._folder}/r",  # Ray's folder is world-writable, so it is placed inside a private folder
                object_store_memory=100 * 2**20,  # not used
                runtime_env={"env_vars": environment},
                job_config=_JobConfig(),
                **_QUIET,
            )

    def max_resources(self) -> dict[str, float]:
        """Return the total resources once an autoscaler has added all nodes, or the current resources without an autoscaler."""
        current = ray.cluster_resources()
        try:  # Ray has no public function for this
            limits = ray._private.state.state.get_max_resources_from_cluster_config() or {}
        except Exception:
            limits = {}
        return {name: max(current.get(name, 0.0), float(limits.get(name, 0.0))) for name in current | limits}

    @property
    def head(self) -> str:
        """Address of the head, as host:port."""
        return str(ray.get_runtime_context().gcs_address)

    def memory_per_cpu(self) -> float | None:
        """Return Ray's memory in bytes per CPU on the node with the least, or None if unknown."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        shares = [node["memory"] / node["CPU"] for node in nodes if node.get("memory")]
        return min(shares, default=None)

    def abandon(self) -> None:
        """Abandon a lost Ray without calling it, because each call would wait for a minute and then abort this process."""
        atexit.unregister(ray.shutdown)
        atexit.register(_exit_without_ray)  # registered last, so it runs first
        self._clean_up()

    def close(self) -> None:
        """Disconnect, and stop a local Ray."""
        if not self.is_connected:
            return
        try:
            ray.shutdown()
        finally:
            self._clean_up()

    def _clean_up(self) -> None:
        if os.environ.get(AUTH_MODE) != self._auth_mode:
            if self._auth_mode is None:
                del os.environ[AUTH_MODE]
            else:
                os.environ[AUTH_MODE] = self._auth_mode
            # Ray reads the variable once per process. A later connection to a cluster without tokens would reject every
            # message of its workers, and actors would never start. Older versions lack these private names and token mode.
            with contextlib.suppress(ImportError, AttributeError):
                raylet: Any = importlib.import_module("ray._raylet")
                raylet.Config.initialize("")
                raylet.AuthenticationTokenLoader.instance().reset_cache()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _exit_without_ray() -> None:
    """End this process before Ray's exit handlers, which would wait for the lost head and then crash."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)  # as after a failed launch


@contextlib.contextmanager
def _protected_start() -> Iterator[None]:
    """Protect processes started in this context from a closed terminal, and disable their core files of gigabytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    is_main = threading.current_thread() is threading.main_thread()
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN) if is_main else None
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
        if is_main:
            signal.signal(signal.SIGHUP, previous)


def copy_package(folder: str) -> str:
    """Copy depthrate into a folder, for nodes where it is not installed, and return the path of the copy.

    Ray does not follow links, and in a checkout the package consists of links.
    """
    copy = Path(folder) / "depthrate"
    with as_file(files("depthrate")) as package:
        shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return str(copy)


def _ray_versions() -> dict[str, str]:
    return installed_versions("ray")


class NodeCheck(NamedTuple):
    """Result of checking the nodes of a cluster."""

    differences: list[str]
    """Messages about unusable nodes, and about versions that differ from this machine."""
    unusable: list[str]
    """IDs of the nodes that run no tasks."""


def check_nodes(wait_s: float = NODE_ANSWER_TIMEOUT_S) -> NodeCheck:
    """Query the installed versions of all nodes in parallel, and compare them with this machine.

    A node that fails to run the query (for lack of memory or a package) or to answer in time is also unusable for packs.

    Args:
        wait_s: Longest wait for all answers together, in seconds.

    Raises:
        RayError: No node answers.
    """
    local_versions = installed_versions("ray")
    node_ids = {
        ray.remote(_ray_versions)
        .options(
            num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        )
        .remote(): node["NodeID"]
        for node in ray.nodes()
        if node["Alive"]
    }
    answered, unanswered = ray.wait(list(node_ids), num_returns=len(node_ids), timeout=wait_s)
    hosts = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes()}
    differences, unusable = [], []
    for query in unanswered:
        ray.cancel(query, force=True)
        unusable.append((node_ids[query], f"no answer in {wait_s:.0f} s"))
    for query in answered:
        node = f"node {hosts[node_ids[query]]}"
        try:
            versions = ray.get(query)
        except ray.exceptions.RayError as error:
            unusable.append((node_ids[query], short_error(error)))
            continue
        differences += [
            f"{node} has {name} {versions[name]}, this machine has {version}"
            for name, version in local_versions.items()
            if versions[name] != version
        ]
    messages = [f"node {hosts[node_id]} is excluded, it runs no tasks: {reason}" for node_id, reason in unusable]
    if len(unusable) == len(node_ids):
        raise RayError(f"no node of the Ray cluster can run tasks: {', '.join(messages[:3])}")
    return NodeCheck([*messages, *differences], [node_id for node_id, _ in unusable])
