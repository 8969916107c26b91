"""--notify: a command or webhook receives a launch's first failure and its end, and its own failure stops nothing."""

import http.server
import json
import threading
from pathlib import Path

import pytest

from depthrate.orchestrator.launch.notify import Notifier
from depthrate.orchestrator.launch.outcome import RunState
from tests.support.here import printed

TASK = """
import depthrate

@depthrate.task(version=1)
def fragile(*, depth: int, seed: int = 0, context):
    if depth == 3:
        raise ValueError("too deep")
    return {"metrics": [{"layer": depth, "nc1": 1.0}]}
"""


@pytest.mark.slow
def test_command_gets_failure_and_end(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(TASK)
    (tmp_path / "s.yaml").write_text("name: s\ntask: ./own.py:fragile\ngrid: {depth: [2, 3]}\n")
    heard = tmp_path / "heard"
    command = f'echo "$DEPTHRATE_EVENT $DEPTHRATE_SWEEP $DEPTHRATE_MESSAGE" >> {heard}'
    arguments = ["run", str(tmp_path / "s.yaml"), "--store", str(tmp_path / "store"), "--workers", "1"]
    printed(*arguments, "--notify", command, code=1)
    first, last = heard.read_text().splitlines()
    assert first.startswith("failure s 1 trial of s failed:") and "too deep" in first
    assert last == "end s s ended incomplete: some trials are not committed"


def test_webhook_gets_json() -> None:
    got: list[dict[str, str]] = []

    class Listener(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Listener) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        hook = f"http://127.0.0.1:{server.server_port}/hook"
        assert Notifier(hook, "s").notify_end(lambda: RunState.COMPLETE) is RunState.COMPLETE
    payload = {"event": "end", "sweep": "s", "message": "s is complete", "text": "s is complete"}
    assert got == [payload]
    assert Notifier("http://127.0.0.1:9/nobody", "s").notify_end(lambda: RunState.COMPLETE) is RunState.COMPLETE
    assert Notifier("exit 3", "s").notify_end(lambda: RunState.INCOMPLETE) is RunState.INCOMPLETE


@pytest.mark.parametrize(
    "target",
    [
        "http://key:secret@127.0.0.1:9/secret?token=secret",
        "http://127.0.0.1:9/two words secret",
        "http://127.0.0.1:9/\x01secret",
        "http://[secret",
        "https://localhost:secret/",
        "http://127.0.0.1:9/ü-secret",
        "curl-secret --header secret 2>/dev/null",
        "exit 3 # secret",
        "\0secret",
    ],
)
def test_a_failure_keeps_the_target_secret(target: str, caplog: pytest.LogCaptureFixture) -> None:
    assert Notifier(target, "s").notify_end(lambda: RunState.COMPLETE) is RunState.COMPLETE
    (record,) = caplog.records
    assert "the end notification was not sent" in record.getMessage() and "secret" not in record.getMessage()
