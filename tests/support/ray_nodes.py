"""A Ray cluster of several nodes on this machine, as processes of Ray, which die as they would elsewhere."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from depthrate.storage.attempts.records import Record, read_loose_records
from depthrate.storage.files.store import Store
from tests.support.here import await_that, free_port

OWN_TASKS = Path(__file__).parent / "own_tasks.py"


class Nodes:
    """Nodes of a Ray cluster on this machine, each with processes of its own."""

    def __init__(self, folder: Path):
        self._folder, self._processes = folder, list[subprocess.Popen[bytes]]()
        self._port = free_port()

    def start(self, cpus: int, name: str = "", **environment: str) -> subprocess.Popen[bytes]:
        """Start the head, or another node, which a process takes for a machine of that name."""
        words = ["--head", f"--port={self._port}", "--include-dashboard=false", f"--temp-dir={self._folder}/r"]
        words = [f"--address={self.address}"] if self._processes else words
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *words, f"--num-cpus={cpus}"]
        named = ["unshare", "--uts", "sh", "-c", f'hostname {name}; exec "$@"', "sh"] if name else []
        process = subprocess.Popen(
            [*named, *command, "--object-store-memory=80000000"],
            env={
                **os.environ,
                "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
                "RAY_AUTH_MODE": "disabled",
                "RAY_worker_niceness": "0",  # else they starve beside other tests
                **environment,
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        self._processes.append(process)
        if len(self._processes) == 1:
            await_that(lambda: socket.create_connection(("127.0.0.1", self._port), 1).close() is None, 60)
            time.sleep(5)  # the head listens before it knows its own node
        return process

    @property
    def address(self) -> str:
        """Where the head listens."""
        from ray.util import get_node_ip_address

        return f"{get_node_ip_address()}:{self._port}"

    def kill(self, process: subprocess.Popen[bytes], name: str) -> None:
        """Kill one process of a node, as the kernel would for lack of memory."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "stat").read_text().rpartition(")")
            except OSError:
                continue
            if int(words[2].split()[1]) == process.pid and words[0].partition("(")[2].startswith(name):
                os.kill(int(folder.name), signal.SIGKILL)

    def stop(self) -> None:
        """End everything."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def await_nodes(address: str, wanted: int) -> None:
    """Wait until a cluster has so many nodes that are alive."""
    import ray

    def has_them() -> bool:
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False)
            return sum(node["Alive"] for node in ray.nodes()) == wanted
        except (RuntimeError, ValueError):  # the head does not answer yet
            return False
        finally:
            ray.shutdown()

    await_that(has_them, 120)


@contextlib.contextmanager
def ray_nodes() -> Iterator[Nodes]:
    """Give a cluster that has no node yet."""
    made = Nodes(Path(f"/tmp/drt{os.getpid()}"))
    try:
        yield made
    finally:
        made.stop()


def attempts(store: Store) -> list[Record]:
    """Return the records of all attempts that are not put together yet."""
    return [r for _, r in read_loose_records(store, [p for p in store.list("attempts") if p.endswith(".json")])]


def launch(folder: Store, nodes: Nodes, tmp_path: Path, **spec: Any) -> subprocess.Popen[str]:
    """Start `depthrate run` of a sweep on these nodes."""
    spec = {"name": "s", "task": f"{OWN_TASKS}:steady", **spec}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(spec))
    words = ["run", str(tmp_path / "s.yaml"), "--store", folder.root, "--executor", "ray", "--address", nodes.address]
    environment = {**os.environ, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-m", "depthrate", *words], env=environment, **pipes)
