"""`depthrate serve`: who may ask what, that users' text stays text, what a look costs, a browser beside a running sweep."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

import depthrate
from depthrate.orchestrator.analysis.fit_requests import fit_requests
from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.launch.launch_plan import check_sweep
from depthrate.storage.attempts.live_curves import write_live
from depthrate.storage.catalog.code import store_code
from depthrate.storage.catalog.specs import write_spec
from depthrate.storage.catalog.tags import annotate
from depthrate.storage.files.paths import attempt_path
from depthrate.storage.files.store import Store
from depthrate.sweeps.spec import FitRequest
from depthrate.sweeps.trial import Trial
from depthrate.tasks.registry import find_task
from tests.orchestrator.explorer.test_explorer import unpack
from tests.support.browser import Browser, browser
from tests.support.counted_files import CountedFileSystem
from tests.support.here import printed, refused
from tests.support.tests_rows import A, commit

pytest.importorskip("starlette", reason="needs pip install 'depthrate[serve]'")
uvicorn = pytest.importorskip("uvicorn", reason="needs pip install 'depthrate[serve]'")

from depthrate.orchestrator.serve import connections, sweeps  # noqa: E402
from depthrate.orchestrator.serve.access import is_known_host, is_loopback  # noqa: E402
from depthrate.orchestrator.serve.poller import Poller  # noqa: E402
from depthrate.orchestrator.serve.web import MAX_WAITING, make_app  # noqa: E402

HOSTILE = "<img src=x onerror=alert(1)>"
ENDING = "</script><script>alert(2)</script><!--"
C = f"20260101T000000_{'c' * 12}"
SPEC: dict[str, Any] = {"task": "collapse", "params": {"arch": "rn1", "samples_per_class": 2, "steps": 5}}
STEADY = Path(__file__).parents[2] / "support" / "steady_task.py"


@dataclass(frozen=True)
class Answer:
    """What a server said."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Server:
    """One that listens at a port of this machine."""

    port: int

    def ask(
        self, path: str, method: str = "GET", body: str | None = None, wait_s: float = 60, **headers: str
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=wait_s)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, {"Host": f"localhost:{self.port}"} | given)
        with contextlib.closing(connection):
            answer = connection.getresponse()
            return Answer(answer.status, {n.lower(): v for n, v in answer.getheaders()}, answer.read())


@contextlib.contextmanager
def served(store: Store, **settings: Any) -> Iterator[Server]:
    """Serve a store in a thread."""
    made = make_app(store, **settings)
    server = uvicorn.Server(uvicorn.Config(made, port=0, log_level="warning", http=connections.BoundedConnection))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield Server(server.servers[0].sockets[0].getsockname()[1])
    server.should_exit = True
    thread.join(60)


def planned(name: str, **grid: Any) -> tuple[dict[str, Any], list[Trial]]:
    """Return a sweep's file and its trials."""
    sweep = SPEC | {"name": name, "grid": {"depth": [2, 3, 5]} | grid, "fit": [{"metric": "nc1"}]}
    return sweep, list(check_sweep(depthrate.Sweep(**sweep)._spec).trials)


A1, A2, A3 = planned("a")[1]
B1, B2, B3 = planned("b", width=[8])[1]


def launch(store: Store, name: str, **grid: Any) -> None:
    sweep, trials = planned(name, **grid)
    write_spec(store, name, f"{name}1", sweep, [trial.trial_id for trial in trials])


def finish(store: Store, trial: Trial, number: int, sweep: str = "a", value: float = 1.0) -> None:
    attempt_id = f"20260101T000000_{number:012x}"
    params = dict(trial.params)
    commit(store, attempt_id, [trial.trial_id], sweep=sweep, task="collapse", params=params, value=value)


def fill(store: Store) -> Store:
    """Two sweeps: `a` with two trials that are done and one that is not, `b` with one that failed, hostile in all it says."""
    launch(store, "a")
    launch(store, "b", width=[8])
    finish(store, A1, 1)
    finish(store, A2, 2)
    finish(store, B1, 3, "b")
    record = {"attempt_id": C, "sweep": "b", "trial_ids": [B2.trial_id], "state": "failed", "error_kind": "error"}
    record |= {"started_at": 1e9, "heartbeat_at": 1e9, "ended_at": 1e9, "error": HOSTILE, "host": ENDING}
    store.write(attempt_path("b", C), json.dumps(record | {"traceback": ENDING}).encode())
    store.write(f"attempts/sweep=b/{C}.log", HOSTILE.encode())
    return store


def trials_of(server: Server, sweep: str) -> dict[str, tuple[Any, ...]]:
    """Return trial -> state, depth and NC1, as the page of a sweep gets them."""
    header, tables = unpack(server.ask(f"/sweep/{sweep}/data.bin").body)
    columns = tables["trials"]
    none = [math.nan] * len(header["trial_ids"])
    rows = zip(columns["state"], columns["depth"], columns.get("nc1", none), strict=True)
    return dict(zip(header["trial_ids"], rows, strict=True))


PAGES = ("/", "/sweep/a/", f"/sweep/a/trial/{A1.trial_id}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(fill(Store(str(tmp_path_factory.mktemp("served") / "store")))) as found:
        yield found


@pytest.mark.parametrize(("path", "name"), [*zip(PAGES, ("depthrate", "a", A1.trial_id), strict=True)])
def test_pages_are_words_before_their_data(server: Server, path: str, name: str) -> None:
    """The controls, sentences and tables that a script fills in are hidden until then."""
    page = server.ask(path).text
    assert re.search(rf"<h1[^>]*>{name}</h1>", page) and re.search(
        r"<span[^>]*>Loading the (sweeps|trials)</span>", page
    )
    hidden = ('<p class="find" hidden', '<div class="scroll" hidden') if path == "/" else ('<div id="page" hidden',)
    assert all(tag in page for tag in hidden)


def test_a_failed_trial_is_not_done(server: Server) -> None:
    header, _ = unpack(server.ask("/sweep/b/data.bin").body)
    assert (header["num_done"], len(header["trial_ids"])) == (1, 3)
    state = next(item for item in server.ask("/state.json").json()["sweeps"] if item["name"] == "b")
    assert (state["num_done"], state["counts"]["failed"]) == (1, 1)


def test_pages_show_the_store(server: Server) -> None:
    sweeps = {item["name"]: item for item in server.ask("/state.json").json()["sweeps"]}
    assert sweeps["a"]["counts"] == {"ok": 2, "diverged": 0, "running": 0, "failed": 0, "pending": 1}
    assert sweeps["b"]["counts"]["failed"] == 1 and sweeps["b"]["failures"] == 1 and HOSTILE in sweeps["b"]["notes"][0]
    assert sweeps["a"]["task"] == "collapse" and sweeps["a"]["changed"] == pytest.approx(1767225600)
    found = trials_of(server, "a")
    assert found[A1.trial_id] == ("ok", 2, pytest.approx(6.2)) and found[A3.trial_id][:2] == ("pending", 5)
    header, _ = unpack(server.ask("/sweep/b/data.bin").body)
    assert header["errors"] == {"1": HOSTILE}
    _, tables = unpack(server.ask(f"/sweep/a/rows.bin?of={A2.trial_id},{A3.trial_id}").body)
    assert set(tables["curves"]["trial"]) == {0} and tables["curves"]["step"] == [0, 5]
    assert tables["layers"]["layer"] == [0, 1, 2] and tables["layers"]["nc1"] == pytest.approx([6.0, 6.1, 6.2])
    log = server.ask(f"/sweep/b/trial/{B2.trial_id}.log").json()["log"]
    assert f"attempt {C} failed" in log and ENDING in log
    for page in PAGES:
        assert server.ask(page).headers["content-type"].startswith("text/html")


def test_pages_answer_while_fits_compute(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """More fits than a short queue holds are refused, and no request for a page, a script or the data waits for them."""
    fill(folder)
    may_go_on, fit = threading.Event(), sweeps.fit_requests

    def slow(*given: Any) -> Any:
        may_go_on.wait(60)
        return fit(*given)

    monkeypatch.setattr(sweeps, "fit_requests", slow)
    with served(folder) as server:
        assert server.ask("/sweep/a/data.bin").status == 200

        def ask(number: int) -> int:
            query = {"metric": "nc1", "x": "depth", "by": [], "drop": [number], "keep": {}}
            return server.ask(f"/sweep/a/fits.json?of={quote(json.dumps(query))}").status

        with ThreadPoolExecutor(45) as pool:
            answers = [pool.submit(ask, number) for number in range(45)]
            until(
                lambda: [answer.result() for answer in answers if answer.done()],
                lambda done: len(done) == 45 - MAX_WAITING,
            )
            pages = (
                "/",
                "/explorer.js",
                "/explorer.css",
                "/sweep/a/",
                f"/sweep/a/trial/{A1.trial_id}",
                "/sweep/a/data.bin",
            )
            assert [server.ask(page).status for page in pages] == [200] * len(pages)
            may_go_on.set()
            statuses = [answer.result() for answer in answers]
        assert statuses.count(503) == 45 - MAX_WAITING and statuses.count(200) == MAX_WAITING
        assert ask(44) == 200


def test_long_lines_and_hidden_characters_of_logs_and_code(folder: Store) -> None:
    fill(folder)
    code_hash = store_code(folder, "own.py", {"own.py": f"x = 1  # \u202e {'y' * 200_000}\n".encode()})
    params = dict(A3.params)
    commit(folder, A, [A3.trial_id], sweep="a", task="collapse", params=params, code_hash=code_hash)
    folder.write(f"attempts/sweep=b/{C}.log", f"{'z' * 200_000}\n\u202eend".encode())
    with served(folder) as server:
        answers = [server.ask(f"/sweep/{sweep}/trial/{of.trial_id}.log").json() for sweep, of in (("b", B2), ("a", A3))]
    texts = [answers[0]["log"], *answers[1]["code"].values()]
    assert len(texts) == 2 and all("\u202e" not in text and "\\u202e" in text for text in texts)
    assert max(len(line) for text in texts for line in text.splitlines()) < 2_100 and "200000 characters" in texts[0]


def test_fits_of_a_view_are_those_of_fit(folder: Store) -> None:
    launch(folder, "a", depth=[2, 3, 5, 8], seed=[0, 1, 2])
    _, trials = planned("a", depth=[2, 3, 5, 8], seed=[0, 1, 2])
    for number, trial in enumerate(trials):
        finish(folder, trial, number, value=1 / trial.params["depth"])
    with served(folder) as server:

        def fit(**changes: Any) -> Answer:
            query = {"metric": "nc1", "x": "depth", "by": [], "drop": [], "keep": {}} | changes
            return server.ask(f"/sweep/a/fits.json?of={quote(json.dumps(query))}")

        (stored,) = unpack(server.ask("/sweep/a/data.bin").body)[0]["fits"]
        assert fit().json()[0]["exponent"] == stored["exponent"]
        (dropped,) = fit(drop=[2]).json()
        expected = (
            fit_requests(results_of(folder), [FitRequest("nc1", where="depth > 2")], trials, find_task("collapse"))
            .curves[0]
            .power
        )
        assert expected is not None and dropped["exponent"] == expected.exponent and dropped["n_trials"] == 9
        (line,) = server.ask("/sweep/a/spark.json").json()["lines"]
        assert line == [[pytest.approx(math.log(d)), pytest.approx(math.log(1 / d + 5.2))] for d in (2, 3, 5, 8)]
        assert fit(keep={"seed": [0]}).json()[0]["n_trials"] == 4 and fit(by=["seed"]).json()[2]["by"] == {"seed": 2}
        assert fit(drop=[2, 3, 5, 8]).json() == [] and "exponent" not in fit(metric="x') or 1=1 --").json()[0]
        for wrong in ({"x": "nothing"}, {"by": "seed"}, {"keep": []}, {"by": [[]]}, {"drop": None}):
            assert fit(**wrong).status == 400, wrong
        assert server.ask("/sweep/a/fits.json?of=%5B%5D").status == 400
        assert server.ask(f"/sweep/a/fits.json?of={'[' * 30_000}").status == 400


def test_a_sweep_without_its_task_shows_what_is_committed(folder: Store) -> None:
    write_spec(folder, "gone", "g1", {"name": "gone", "task": "away:train", "grid": {"depth": [2]}}, ["t1", "t2", "t3"])
    with served(folder) as server:
        assert (answer := server.ask("/sweep/gone/data.bin")).status == 409 and "away" in answer.text
    commit(folder, f"20260101T000000_{'d' * 12}", ["t1", "t2"], sweep="gone", task="away:train")
    with served(folder) as server:
        found = trials_of(server, "gone")
        assert [row[:2] for row in found.values()] == [("ok", 2), ("ok", 3)] and set(found) == {"t1", "t2"}
        assert unpack(server.ask("/sweep/gone/rows.bin?of=t2").body)[1]["curves"]["step"] == [0, 5]


def test_what_is_not_there_is_said(server: Server) -> None:
    for path, said in (
        ("/sweep/c/", "sweep 'c'"),
        (f"/sweep/a/trial/{B1.trial_id}", "no trial"),
        ("/sweep/c/data.bin", "'c'"),
    ):
        assert (found := server.ask(path)).status == 404 and said in found.text
    assert server.ask("/../../etc/passwd").status == 404
    assert server.ask(f"/sweep/a/rows.bin?of={B1.trial_id}").status == 400
    hostile = server.ask("/sweep/%3Cimg%20src=x%20onerror=alert(1)%3E/", Accept="text/html")
    assert hostile.status == 404 and HOSTILE not in hostile.text and "&lt;img src=x" in hostile.text
    assert "Nearest: a" in server.ask("/sweep/aa/").text


def test_unchanged_answers_are_short(server: Server) -> None:
    for path in ("/state.json", "/sweep/a/data.bin", "/explorer.js", "/home.js"):
        first = server.ask(path)
        again = server.ask(path, If_None_Match=first.headers["etag"])
        assert (first.status, again.status, again.body) == (200, 304, b"")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "localhost.evil.example:80"}, 421),
        ({"Host": "evil.example@localhost"}, 421),
        ({"Host": ""}, 421),
        ({"Host": "127.0.0.1"}, 200),
        ({"Host": "[::1]:9000"}, 200),
        ({"Host": "localhost:9000"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://[::1"}, 403),
        ({"Origin": "http://localhost:1"}, 403),
        ({"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"}, 403),
        ({"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "cors"}, 403),
        ({"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}, 200),
        ({"Sec_Fetch_Site": "same-origin", "Sec_Fetch_Mode": "cors"}, 200),
    ],
)
def test_only_pages_of_its_own_may_ask(server: Server, headers: dict[str, str], status: int) -> None:
    assert server.ask("/state.json", **headers).status == status


def half_open(server: Server, source: str, sent: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), 20, source_address=(source, 0))
    connection.sendall(sent)
    return connection


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n",
        b"POST /state.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{",
        b"GET /explorer.css HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HT",
    ],
    ids=["nothing", "headers", "body", "second request"],
)
def test_incomplete_request_is_closed(server: Server, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(connections, "REQUEST_TIMEOUT_S", 1.0)
    began = time.monotonic()
    with half_open(server, "127.0.0.1", sent) as connection:
        while connection.recv(1 << 20):
            pass
    assert 0.9 < time.monotonic() - began < 15


def test_many_connections_leave_capacity(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        many = [stack.enter_context(half_open(server, "127.0.0.9", b"GET / ")) for _ in range(230)]
        assert server.ask("/state.json").status == 200
        closed = 0
        for connection in many:
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                try:
                    closed += connection.recv(1) == b""
                except ConnectionResetError:
                    closed += 1
        assert closed == 230 - connections.MAX_CONNECTIONS_PER_CLIENT


def test_hosts_are_addresses_and_own_names() -> None:
    names = frozenset({"laptop"})
    assert all(is_known_host(host, names) for host in ("laptop", "LAPTOP:80", "10.0.0.3:80", "[::1]", "localhost"))
    assert not any(is_known_host(h, names) for h in ("laptop.evil", "10.0.0.3.evil", "[", "a/b", "", "localhost."))
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.3", "laptop")))


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "POST"])
@pytest.mark.parametrize(
    "path", ["/", "/state.json", "/sweep/a/", "/sweep/a/data.bin", "/sweep/a/marks.json", "/home.js"]
)
def test_writes_are_refused(server: Server, method: str, path: str) -> None:
    assert server.ask(path, method, "x", Origin=f"http://localhost:{server.port}").status == 405


@pytest.fixture(scope="module")
def writable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(fill(Store(str(tmp_path_factory.mktemp("written") / "store"))), writes=True) as found:
        yield found


def change(server: Server, body: str, sweep: str = "a", **headers: str) -> Answer:
    given = {"Origin": f"http://localhost:{server.port}", "Content_Type": "application/json"} | headers
    return server.ask(f"/sweep/{sweep}/marks.json", "POST", body, **given)


def test_pages_change_tags_and_notes(writable: Server) -> None:
    first = change(writable, json.dumps({"trial": A1.trial_id, "add": ["odd", "seen"], "note": HOSTILE}))
    assert first.status == 200 and first.json()["trials"] == {A1.trial_id: {"tags": ["odd", "seen"], "note": HOSTILE}}
    second = change(writable, json.dumps({"trial": A1.trial_id, "remove": ["seen"]}))
    assert second.json()["trials"][A1.trial_id]["tags"] == ["odd"], "at once, without a wait for the next poll"
    assert change(writable, json.dumps({"add": ["paper"], "note": "of all"})).status == 200
    found = writable.ask("/sweep/a/marks.json").json()
    assert found["sweep"] == {"tags": ["paper"], "note": "of all"} and found["writable"]
    assert writable.ask("/sweep/b/marks.json").json()["trials"] == {}
    marks = {item["name"]: item["marks"] for item in writable.ask("/state.json").json()["sweeps"]}
    assert marks == {"a": {"tags": ["paper"], "note": "of all"}, "b": {"tags": [], "note": ""}}


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ("{}", {"Origin": "http://evil.example"}, 403),
        ("{}", {"Origin": "null"}, 403),
        ("{}", {"Content_Type": "text/plain"}, 403),
        ("{}", {"Content_Type": "application/x-www-form-urlencoded"}, 403),
        ("{}", {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}, 403),
        ("{}", {"Host": "evil.example"}, 421),
        ("{", {}, 400),
        ("[]", {}, 400),
        ('{"add": "odd"}', {}, 400),
        ('{"add": ["two words"]}', {}, 400),
        (json.dumps({"add": [f"x{number}" for number in range(21)]}), {}, 400),
        ('{"add": [["odd"]]}', {}, 400),
        ('{"path": "../x"}', {}, 400),
        (json.dumps({"note": "x" * 10_001}), {}, 400),
        (json.dumps({"note": "x" * 200_000}), {}, 413),
        ('{"trial": "../../x", "note": "x"}', {}, 404),
    ],
)
def test_wrong_changes_are_refused(writable: Server, body: str, headers: dict[str, str], status: int) -> None:
    before = writable.ask("/sweep/b/marks.json").json()
    assert change(writable, body, "b", **headers).status == status
    assert writable.ask("/sweep/b/marks.json").json() == before


def test_a_writing_server_refuses_other_writes(writable: Server) -> None:
    origin = {"Origin": f"http://localhost:{writable.port}", "Content_Type": "application/json"}
    assert writable.ask("/sweep/a/data.bin", "POST", "{}", **origin).status == 405
    assert writable.ask("/sweep/a/marks.json", "DELETE", "{}", **origin).status == 405
    assert writable.ask("/sweep/a/marks.json", "POST", "{}", Content_Type="application/json").status == 403


def test_every_answer_is_closed(server: Server) -> None:
    for path, status in (("/", 200), ("/state.json", 200), ("/nothing", 404), ("/sweep/c/", 404)):
        found = server.ask(path)
        assert found.status == status
        policy = found.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self';" in policy and "frame-ancestors 'none'" in policy
        assert found.headers["x-content-type-options"] == "nosniff"
        assert found.headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in found.headers
    for page in PAGES:
        text = server.ask(page).text
        assert "<script>" not in text and "onload" not in text and "onclick" not in text
        assert "http://" not in text and "https://" not in text, "nothing of others is loaded"


def test_token_becomes_a_cookie(folder: Store) -> None:
    with served(fill(folder), token="secret", cookie="depthrate_1") as server:
        for path in ("/", "/state.json", "/explorer.js", "/nothing", "/?token=", "/?token=wrong", "/?token=secret%00"):
            assert server.ask(path).status == 401, path
        assert server.ask("/", Cookie="depthrate_1=wrong").status == 401
        for path, place in (
            ("/?token=secret", "./"),
            ("/sweep/a/?x=1&token=secret", "./?x=1"),
            ("/sweep/a/data.bin?token=secret", "./data.bin"),
        ):
            let = server.ask(path)
            assert (let.status, let.headers["location"]) == (303, place), "out of the address"
        assert server.ask("//evil.example?token=secret").headers["location"] == "./evil.example"
        kept = let.headers["set-cookie"]
        assert kept.startswith("depthrate_1=secret;") and "HttpOnly" in kept and "samesite=lax" in kept.lower()
        assert server.ask("/state.json", Cookie="a=b; depthrate_1=secret").status == 200


def test_looks_of_browsers_cost_the_store_nothing(tmp_path: Path) -> None:
    store = fill(Store("counted://served"))
    files: CountedFileSystem = store.fs
    paths = (
        "/state.json",
        "/sweep/a/data.bin",
        "/sweep/b/data.bin",
        f"/sweep/b/trial/{B2.trial_id}.log",
    )
    with served(store, every_s=3600.0) as server:
        for path in paths:
            assert server.ask(path).status == 200
        before = files.count(CountedFileSystem.DRIVER)
        for _ in range(20):
            assert [server.ask(path).status for path in paths] == [200] * len(paths)
        assert files.count(CountedFileSystem.DRIVER) == before


def test_running_trials_have_curves(folder: Store) -> None:
    fill(folder)
    now, attempt = time.time(), f"20260101T000000_{'d' * 12}"
    record = {"attempt_id": attempt, "sweep": "a", "trial_ids": [A3.trial_id], "state": "running", "host": "h"}
    record |= {"started_at": now, "heartbeat_at": now, "progress_at": now}
    folder.write(attempt_path("a", attempt), json.dumps(record).encode())
    write_live(folder, "a", "p", attempt, {A3.trial_id: dict(A3.params)}, [(A3.trial_id, {"step": 3, "loss": 0.5})])
    with served(folder) as server:
        assert trials_of(server, "a")[A3.trial_id][0] == "running"
        found = server.ask(f"/sweep/a/rows.bin?of={A1.trial_id},{A3.trial_id}")
    assert found.status == 200, found.text
    curves = unpack(found.body)[1]["curves"]
    rows = list(zip(curves["trial"], curves["step"], curves["loss"], strict=True))
    assert (1, 3, 0.5) in rows and {trial for trial, *_ in rows} == {0, 1}
    assert not {"depth", "width", "weight_decay"} & set(curves)


def test_commits_arrive(folder: Store) -> None:
    fill(folder)
    with served(folder, every_s=0.1) as server:
        until(lambda: trials_of(server, "a"), lambda found: found[A3.trial_id][0] == "pending")
        finish(folder, A3, 9, value=7.0)
        found = until(lambda: trials_of(server, "a"), lambda found: found[A3.trial_id][0] == "ok")
        assert [state for state, *_ in found.values()] == ["ok"] * 3 and found[A3.trial_id][2] == pytest.approx(12.2)
        printed("trials", "rm", A1.trial_id, "--yes", "--store", folder.url)
        assert (
            until(lambda: trials_of(server, "a"), lambda found: found[A1.trial_id][0] == "pending")[A2.trial_id][0]
            == "ok"
        )
        launch(folder, "later", width=[4])
        names = until(lambda: [s["name"] for s in server.ask("/state.json").json()["sweeps"]], lambda n: "later" in n)
        assert len(names) == 3


@pytest.mark.slow
def test_missing_store_is_one_sentence(folder: Store) -> None:
    fill(folder)
    away = f"{folder.root}-away"
    with served(folder, every_s=0.1) as server:
        until(lambda: server.ask("/state.json").json(), lambda found: found["sweeps"])
        server.ask("/sweep/a/data.bin")
        os.rename(folder.root, away)
        gone = until(lambda: server.ask("/state.json").json(), lambda found: found["error"])
        said = r"does not answer \(no store at .*\. Retrying\. Data of \d\d:\d\d:\d\d \w+\.$"
        assert re.search(said, gone["error"]) and len(gone["sweeps"]) == 2
        assert (answer := server.ask("/sweep/a/data.bin")).status == 503 and re.search(said, answer.text.strip())
        os.rename(away, folder.root)
        until(lambda: server.ask("/state.json").json(), lambda found: not found["error"])


def test_nobody_asks_nothing_is_read(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("depthrate.orchestrator.serve.poller.POLLER_IDLE_TIMEOUT_S", 0.3)
    poller = Poller(fill(folder), every_s=0.05)
    poller.start()
    assert poller.view().status is not None
    time.sleep(0.6)
    idle = poller._view.number
    time.sleep(0.3)
    assert poller._view.number == idle
    assert poller.view().number > idle, "who asks then gets a new look"
    poller.stop()


@pytest.mark.slow
def test_a_sweep_launched_a_moment_ago_is_there(folder: Store) -> None:
    with served(fill(folder)) as server:
        assert server.ask("/sweep/new/").status == 404
        time.sleep(2.5)
        assert server.ask("/sweep/a/").status == 200
        launch(folder, "new", width=[4])
        assert server.ask("/sweep/new/").status == 200


def test_the_command_says_what_it_needs(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no store at" in refused("serve", "--store", f"{folder.root}-not")
    fill(folder)
    assert "cannot listen at 256.0.0.1" in refused("serve", "--store", folder.url, "--host", "256.0.0.1")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'depthrate[serve]'" in refused("serve", "--store", folder.url)


def until(look: Callable[[], Any], holds: Callable[[Any], Any], patience_s: float = 60.0) -> Any:
    """Look again and again until something holds."""
    ends_at = time.monotonic() + patience_s
    while not holds(found := look()):
        assert time.monotonic() < ends_at, found
        time.sleep(0.05)
    return found


# In a browser


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@contextlib.contextmanager
def command(*words: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command of ours beside the test."""
    with log.open("wb") as output:
        options: Any = {"stdout": output, "stderr": subprocess.STDOUT, "start_new_session": True}
        process = subprocess.Popen([sys.executable, "-m", "depthrate", *words], **options)
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does at Ctrl-C
            process.wait(60)


def address_in(log: Path) -> str:
    """Return the address that a server has printed."""
    said = until(log.read_text, lambda text: "http://127.0.0.1:" in text)
    return str(said.partition(" at ")[2].partition(" ")[0])


@pytest.mark.slow
def test_interrupt_ends_all_processes(folder: Store, tmp_path: Path) -> None:
    fill(folder)
    log = tmp_path / "serve.log"
    with command("serve", "--store", folder.url, "--port", "0", log=log):
        server = Server(int(address_in(log).rpartition(":")[2].strip("/")))
        assert server.ask("/state.json").status == 200
    lines = log.read_text().splitlines()
    assert len(lines) == 2 and f"ssh -L {server.port}:localhost:{server.port}" in lines[1]


@pytest.mark.browser
@pytest.mark.slow
def test_page_survives_worker_and_store_loss(window: Browser, tmp_path: Path) -> None:
    store, link, hold = tmp_path / "store", tmp_path / "mounted", tmp_path / "hold"
    hold.touch()
    sweep = {
        "name": "alive",
        "task": f"{STEADY}:curved",
        "params": {"hold": str(hold)},
        "grid": {"depth": [2, 3, 4, 5]},
    }
    (tmp_path / "alive.yaml").write_text(yaml.safe_dump(sweep))
    run = ("run", str(tmp_path / "alive.yaml"), "--store", str(store), "--workers", "2", "--device", "cpu")
    with command(*run, log=tmp_path / "run.log"):
        until(lambda: (store / "sweeps").is_dir(), bool)
        link.symlink_to(store)
        with command("serve", "--store", str(link), "--port", "0", log=tmp_path / "serve.log"):
            window.visit(f"{address_in(tmp_path / 'serve.log')}sweep/alive/", 1280)
            until(lambda: seen(window), lambda found: found["states"] == {"running": 2, "pending": 2})
            until(lambda: seen(window), lambda found: found["curves"].startswith("2 trials"))
            window.run("explorer.setPin(3); explorer.filterBy('depth', { lo: 3, hi: 9 })")
            address = window.run("return location.hash")

            link.unlink()
            until(lambda: seen(window), lambda found: found["problem"])
            assert seen(window)["states"] == {"running": 2, "pending": 2}, "what was seen last stays"
            link.symlink_to(store)
            until(lambda: seen(window), lambda found: not found["problem"])

            hold.unlink()
            until(lambda: seen(window), lambda found: found["states"] == {"unconverged": 4}, 120.0)
            assert window.run("return location.hash") == address and window.run("return explorer.count") == 3
            assert "Traceback" not in (tmp_path / "serve.log").read_text()


@pytest.mark.browser
@pytest.mark.slow
def test_texts_stay_inert_and_fit(window: Browser, folder: Store) -> None:
    pages = {
        "": "document.querySelectorAll('tbody tr').length === 2",
        "sweep/b/": "window.explorer?.count === 3",
        f"sweep/b/trial/{B2.trial_id}": "document.querySelector('pre')?.textContent.includes('attempt')",
        f"sweep/{quote(HOSTILE)}/": "true",
    }
    with served(fill(folder)) as server:
        window.visit("about:blank", 1280)  # a page of an earlier test would still ask its server, which is gone
        for path, is_there in pages.items():
            for width, is_dark in ((1280, False), (390, True)):
                window.messages()
                window.visit(f"http://127.0.0.1:{server.port}/{path}", width, is_dark=is_dark)
                window.wait(is_there)
                if path == "sweep/b/":
                    window.run("explorer.setPin(1)")
                assert window.run(INJECTED) == []
                assert HOSTILE[:20] in window.run("return document.body.textContent"), path
                window.wait("document.documentElement.scrollWidth === innerWidth")
                background = window.run("return getComputedStyle(document.body).backgroundColor")
                assert background == ("rgb(21, 23, 26)" if is_dark else "rgb(255, 255, 255)")
                assert [text for text in window.messages() if "404" not in text] == []


@pytest.mark.browser
def test_tags_and_notes_are_changed_in_the_page(window: Browser, folder: Store) -> None:
    annotate(fill(folder), "b", add=["paper"])
    annotate(folder, [B1.trial_id], note=f"{HOSTILE}\nsecond line")
    with served(folder, writes=True) as server:
        address = f"http://127.0.0.1:{server.port}"
        window.visit(f"{address}/", 1280)
        window.wait("document.querySelector('tbody .tag')?.textContent === 'paper'")
        assert "1 of 3, 1 pending" in window.run("return document.querySelector('tbody').textContent")
        window.run("document.querySelector('#find').focus()")
        window.press("pape")
        window.wait("document.querySelectorAll('tbody tr').length === 1")
        window.visit(f"{address}/sweep/b/", 1280)
        window.wait("window.explorer?.count === 3 && document.querySelector('#sweep-marks input')")
        assert window.run("return document.querySelector('#progress').textContent") == "1 of 3 done, 1 failed"
        assert window.run("return document.querySelector('#sweep-marks').textContent").startswith("paper")
        window.run("explorer.setPin(explorer.data.trial_ids.indexOf(" + json.dumps(B2.trial_id) + "))")
        window.run("document.querySelector('#pin .marks input').focus()")
        window.press("odd\ue004why\ue004\ue007")  # Tab, the note, Tab, Enter on `save`
        window.wait("document.querySelector('#pin button.tag')?.textContent === 'odd×'")
        marks = server.ask("/sweep/b/marks.json").json()["trials"][B2.trial_id]
        assert (marks["tags"], marks["note"]) == (["odd"], "why")
        window.run("document.querySelector('#expression').focus()")
        window.press("tag=odd")
        window.wait("explorer.count === 1")
        window.run("document.querySelector('#pin .marks input').focus()")
        window.press("bad tag,\ue007")
        window.wait("document.querySelector('#pin .alarm').textContent")
        window.run("document.querySelector('#pin button.tag').click()")
        window.wait("!document.querySelector('#pin button.tag') && explorer.count === 0")
        assert window.run(INJECTED) == []
        window.visit(f"{address}/sweep/b/trial/{B1.trial_id}", 390)
        window.wait("document.querySelector('#near .marks textarea')?.value.endsWith('second line')")
        assert window.run(INJECTED) == []


@pytest.mark.browser
def test_frames_of_depthrate_are_folded(window: Browser, folder: Store) -> None:
    frames = [f'  File "/x/depthrate/tasks/f{n}.py", line 3, in f\n    g()\n    ^^^' for n in range(3)]
    frames.insert(2, '  File "/home/u/depthrate/net.py", line 3, in forward\n    raise ValueError')
    text = "\n".join(["Traceback (most recent call last):", *frames, "ValueError: no"])
    fill(folder)
    record = json.loads(folder.read(attempt_path("b", C))) | {"traceback": text}
    folder.write(attempt_path("b", C), json.dumps(record).encode())
    with served(folder) as server:
        window.visit(f"http://127.0.0.1:{server.port}/sweep/b/trial/{B2.trial_id}", 1280)
        window.wait("document.querySelector('.log details')")
        folded = window.run("return [...document.querySelectorAll('.log summary')].map((node) => node.textContent)")
        assert folded == ["2 frames of depthrate", "1 frame of depthrate"]
        plain = window.run(
            "return [...document.querySelectorAll('.log > pre')].map((node) => node.textContent).join('')"
        )
        assert "net.py" in plain and "ValueError: no" in plain and "f1.py" not in plain


INJECTED = """
return [...document.querySelectorAll('*')].filter((each) => each.tagName === 'IMG'
  || [...each.attributes].some((attribute) => attribute.name.startsWith('on'))
  || (each.getAttribute('href') ?? '').startsWith('javascript:')
  || (each.tagName === 'SCRIPT' && !each.type)).map((each) => each.outerHTML);
"""


def seen(window: Browser) -> dict[str, Any]:
    """Return what the page of a sweep shows."""
    time.sleep(0.5)  # a page that is asked without a pause draws no frame
    states = (
        "[...Array(explorer.data.trial_ids.length).keys()].map(i => explorer.data.tables.trials.by.get('state').get(i))"
    )
    note = "document.querySelector('#curves .note').textContent"
    found = window.run(
        f"if (!window.explorer?.data) return null; return {{states: {states}, curves: {note}, "
        "problem: document.querySelector('#problem').textContent}"
    )
    if found is None:
        return {"states": {}, "curves": "", "problem": ""}
    return found | {"states": {state: found["states"].count(state) for state in found["states"]}}
