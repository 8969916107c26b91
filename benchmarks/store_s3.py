"""A real S3 server on this machine for the time of a benchmark, and how many requests it was asked."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BUCKET = "bench"
START_S = 30.0


@dataclass(frozen=True)
class S3Server:
    """A server that runs."""

    url: str
    environment: dict[str, str]
    """What a process needs to reach it."""
    log: Path

    def num_requests(self) -> int:
        """Return how many requests it has answered; moto logs one line each."""
        with self.log.open("rb") as lines:
            return sum(b" HTTP/1.1" in line for line in lines)


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Run moto_server (pip install 'moto[server]' s3fs) with one empty bucket; all ends with the context."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "requests.log"
        with log.open("wb") as output:
            command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
            # objects beyond its memory limit would go to files in the temporary folder
            process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, "TMPDIR": folder})
        try:
            _create_bucket(port, process)
            environment = {
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
                "AWS_ACCESS_KEY_ID": "benchmark",
                "AWS_SECRET_ACCESS_KEY": "benchmark",
                "AWS_DEFAULT_REGION": "us-east-1",
            }
            yield S3Server(f"s3://{BUCKET}", environment, log)
        finally:
            process.terminate()
            process.wait()


def _create_bucket(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("PUT", f"/{BUCKET}")
            status = connection.getresponse().status
            break
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("no moto_server here; pip install 'moto[server]' s3fs") from error
            time.sleep(0.1)
    assert status == 200, f"the S3 server answers {status} to a new bucket"
