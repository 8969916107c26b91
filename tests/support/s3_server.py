"""A real S3 server for tests and benchmarks: moto in a process of its own, which counts requests and can be told to fail.

with s3_server() as server:
    os.environ.update(server.environment); Store(server.new_url())
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BUCKET = "depthrate-test"
_CONTROL = "/_control/"


@dataclass
class S3Server:
    """The server as its users see it."""

    endpoint: str
    environment: dict[str, str] = field(default_factory=dict)
    """What a process needs to find it, in the usual places."""

    def new_url(self) -> str:
        """Return the URL of an empty store."""
        return f"s3://{BUCKET}/{uuid.uuid4().hex}"

    def counts(self) -> Counter[str]:
        """Return how many requests of each kind came in since the last `reset`: PUT, GET, HEAD, LIST, DELETE, POST."""
        return Counter(self._ask("counts"))

    def reset(self) -> None:
        """Forget the counts and the faults."""
        self._ask("reset")

    def fail(self, kind: str, times: int, *, status: int = 503, code: str = "SlowDown") -> None:
        """Answer the next requests of a kind with an error; status 0 closes the connection without an answer."""
        self._ask(f"fail?kind={kind}&times={times}&status={status}&code={code}")

    def stop_at(self, number: int, *, answer_lost: bool) -> None:
        """Answer nothing from the n-th request on, until `reset`; none is carried out but that one, if its answer is lost."""
        self._ask(f"stop?at={number}&answer_lost={int(answer_lost)}")

    def has_stopped(self) -> bool:
        """Whether that request has come."""
        return bool(self._ask("has_stopped"))

    def copy(self, url: str) -> str:
        """Return the URL of a copy of a store."""
        target = self.new_url()
        self._ask(f"copy?source={_prefix(url)}&target={_prefix(target)}")
        return target

    def download(self, url: str, folder: Path) -> None:
        """Write a store's objects to a folder, without a request that counts."""
        for name, content in self._ask(f"objects?source={_prefix(url)}").items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(base64.b64decode(content))

    def drop(self, url: str) -> None:
        """Delete a store; listings of the others become faster."""
        self._ask(f"copy?source={_prefix(url)}&target=")

    def _ask(self, what: str) -> Any:
        with urllib.request.urlopen(self.endpoint + _CONTROL + what, timeout=30) as answer:
            return json.loads(answer.read())


def _prefix(url: str) -> str:
    return url.removeprefix(f"s3://{BUCKET}/")


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """Start a server with an empty bucket on a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    environment = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
        "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    process = subprocess.Popen(
        [sys.executable, __file__, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        server = S3Server(endpoint, environment)
        _wait_for(server, process)
        yield server
    finally:
        process.kill()
        process.wait()


def _wait_for(server: S3Server, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            server.counts()
            urllib.request.urlopen(urllib.request.Request(f"{server.endpoint}/{BUCKET}", method="PUT"), timeout=30)
            server.reset()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


class _Middleware:
    """Counts requests by kind and answers some of them with the errors that were asked for."""

    def __init__(self, app: Callable[..., Iterable[bytes]]):
        self._app = app
        self._counts: Counter[str] = Counter()
        self._faults: list[dict[str, Any]] = []
        self._left: float = float("inf")
        """How many requests are answered before one is not."""
        self._is_answer_lost = False
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path.startswith(_CONTROL):
            return self._control(path.removeprefix(_CONTROL), environ["QUERY_STRING"], start_response)
        kind = _kind(environ)
        with self._lock:
            self._counts[kind] += 1
            fault = next((f for f in self._faults if f["kind"] in (kind, "any") and f["times"] > 0), None)
            if fault is not None:
                fault["times"] -= 1
            self._left -= 1
            is_stopped = self._left < 0
            if self._left == -1 and self._is_answer_lost:  # the lock is held: what comes now is not carried out
                list(self._app(environ, lambda *_, **__: None))
        if is_stopped:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            return []
        if fault is None:
            return self._app(environ, start_response)
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if fault["status"] == 0:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            return []
        body = f"<Error><Code>{fault['code']}</Code><Message>asked for by the test</Message></Error>".encode()
        headers = [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))]
        start_response(f"{fault['status']} Fault", headers)
        return [body]

    def _control(self, what: str, query: str, start_response: Callable[..., Any]) -> Iterable[bytes]:
        with self._lock:
            if what == "reset":
                self._counts.clear()
                self._faults.clear()
                self._left = float("inf")
            fields = dict(pair.split("=") for pair in query.split("&")) if query else {}
            if what == "stop":
                self._left, self._is_answer_lost = int(fields["at"]) - 1, fields["answer_lost"] == "1"
            answer: Any = self._counts
            if what == "has_stopped":
                answer = self._left < 0
            if what == "copy":
                _copy(fields["source"], fields["target"])
            if what == "objects":
                answer = _objects(fields["source"])
            if what == "fail":
                self._faults.append(fields | {key: int(fields[key]) for key in ("times", "status")})
            body = json.dumps(answer).encode()
        start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]


def _backend() -> Any:
    from moto.s3.models import s3_backends

    return next(iter(s3_backends["123456789012"].values()))


def _below(prefix: str) -> dict[str, Any]:
    """Return the objects below a prefix by their keys."""
    return {name: key for name, key in _backend().get_bucket(BUCKET).keys.items() if name.startswith(f"{prefix}/")}


def _copy(source: str, target: str) -> None:
    """Copy all objects below a prefix, or delete them if there is no target."""
    for name, key in _below(source).items():
        if target:
            _backend().copy_object(key, BUCKET, target + name.removeprefix(source))
        else:
            _backend().delete_object(BUCKET, name)


def _objects(source: str) -> dict[str, str]:
    """Return name -> content, in base 64, of the objects below a prefix."""
    named = {name.removeprefix(f"{source}/"): key.value for name, key in _below(source).items()}
    return {name: base64.b64encode(content).decode() for name, content in named.items()}


def _kind(environ: dict[str, Any]) -> str:
    """Return PUT, GET, HEAD, DELETE, POST, or LIST for a listing of a bucket."""
    method: str = environ["REQUEST_METHOD"]
    query: str = environ["QUERY_STRING"]
    return "LIST" if method == "GET" and ("list-type" in query or "prefix" in query) else method


def _serve(port: int) -> None:
    import logging

    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    WSGIRequestHandler.protocol_version = "HTTP/1.1"
    make_server(
        "127.0.0.1", port, _Middleware(DomainDispatcherApplication(create_backend_app)), threaded=True
    ).serve_forever()


def forget_s3_clients() -> None:
    """Make s3fs look at the environment again; it keeps a client for the whole process, since making one is slow."""
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
