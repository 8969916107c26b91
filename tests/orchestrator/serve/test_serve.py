"""`depthrate serve`: who may ask what, that users' text stays text, what a look costs, a browser beside a running sweep."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
import yaml

import depthrate
from depthrate.orchestrator.api import status as status_command
from depthrate.orchestrator.api.find_sweep import planned_trials
from depthrate.storage.catalog.specs import write_spec
from depthrate.storage.files.paths import attempt_path
from depthrate.storage.files.store import Store
from tests.support.browser import Browser, browser
from tests.support.clock import Clock
from tests.support.counted_files import CountedFileSystem
from tests.support.here import TINY, await_that, printed, refused
from tests.support.tests_rows import commit

pytest.importorskip("starlette", reason="needs pip install 'depthrate[serve]'")
uvicorn = pytest.importorskip("uvicorn", reason="needs pip install 'depthrate[serve]'")

from depthrate.orchestrator.serve import connections, renderer, sql, sql_process  # noqa: E402
from depthrate.orchestrator.serve.access import is_known_host, is_loopback  # noqa: E402
from depthrate.orchestrator.serve.errors import BusyError  # noqa: E402
from depthrate.orchestrator.serve.poller import Poller  # noqa: E402
from depthrate.orchestrator.serve.renderer import Renderer  # noqa: E402
from depthrate.orchestrator.serve.rows import SweepRows  # noqa: E402
from depthrate.orchestrator.serve.sql import MAX_ROWS, Limits  # noqa: E402
from depthrate.orchestrator.serve.web import make_app  # noqa: E402

HOSTILE = "<img src=x onerror=alert(1)>"
ENDING = "</script><script>alert(2)</script><!--"
A, B, C = (f"20260101T000000_00000000000{letter}" for letter in "abc")
SPEC = {"task": "collapse", "params": {"arch": "rn1"}, "grid": {"depth": [2]}}
DOCS = Path(__file__).parents[3] / "docs"
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

    def sql(self, query: str, sweep: str | None = None, wait_s: float = 60, **headers: str) -> Answer:
        own = {"Origin": f"http://localhost:{self.port}"}
        return self.ask("/sql", "POST", json.dumps({"sql": query, "sweep": sweep}), wait_s, **own | headers)


def test_all_sql_processes_share_the_memory(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[float] = []

    def start(name: str, *given: str) -> None:
        started.append(float(given[2]))
        raise BusyError

    monkeypatch.setattr(sql, "ChildProcess", start)
    processes = sql.SqlProcesses(folder, Limits(memory_gb=2.0))
    for client in "abcd":
        with pytest.raises(BusyError):
            processes.run("select 1", None, client, lambda: False)
    assert len(started) == sql.MAX_READERS and sum(started) == 2.0


@contextlib.contextmanager
def served(store: Store, **settings: Any) -> Iterator[Server]:
    """Serve a store in a thread."""
    made = make_app(store, limits=Limits(timeout_s=settings.pop("timeout_s", 30.0)), **settings)
    server = uvicorn.Server(uvicorn.Config(made, port=0, log_level="warning", http=connections.BoundedConnection))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield Server(server.servers[0].sockets[0].getsockname()[1])
    server.should_exit = True
    thread.join(60)


def fill(store: Store) -> Store:
    """Two sweeps: `a` with two trials that are done and one that is not, `b` with one that failed, hostile in all it says."""
    write_spec(store, "a", "a1", {"name": "a", **SPEC, "fit": [{"metric": "nc1"}]}, ["t1", "t2", "t3"])
    write_spec(store, "b", "b1", {"name": "b", **SPEC}, ["t4", "t5"])
    commit(store, A, ["t1", "t2"], sweep="a")
    commit(store, B, ["t4"], sweep="b", params={"depth": 2, "arch_name": HOSTILE})
    record = {"attempt_id": C, "sweep": "b", "trial_ids": ["t5"], "state": "failed", "error_kind": "error"}
    record |= {"started_at": 1e9, "heartbeat_at": 1e9, "ended_at": 1e9, "error": HOSTILE, "host": ENDING}
    store.write(attempt_path("b", C), json.dumps(record | {"traceback": ENDING}).encode())
    store.write(f"attempts/sweep=b/{C}.log", HOSTILE.encode())
    return store


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(fill(Store(str(tmp_path_factory.mktemp("served") / "store")))) as found:
        yield found


def test_pages_show_the_store(server: Server) -> None:
    sweeps = {item["name"]: item for item in server.ask("/state.json").json()["sweeps"]}
    assert sweeps["a"]["counts"] == {"ok": 2, "diverged": 0, "running": 0, "failed": 0, "pending": 1}
    assert sweeps["b"]["counts"]["failed"] == 1 and sweeps["b"]["failures"] == 1 and HOSTILE in sweeps["b"]["note"]
    found = server.ask("/sweep/a/trials.json").json()
    rows = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
    found = {row["trial"]: (row["state"], row.get("depth"), row["nc1"]) for row in rows}
    assert found == {"t1": ("ok", 2, 6.2), "t2": ("ok", 3, 6.2), "t3": ("pending", None, None)}
    curves = server.ask("/sweep/a/curves.json?of=lr").json()
    assert curves["of"] == "lr" and {line["trial"] for line in curves["lines"]} == {"t1", "t2"}
    assert curves["lines"][0]["x"] == [0, 5] and curves["lines"][0]["y"] == [0.1, 0.0]
    trial = server.ask("/sweep/a/trial/t2.json").json()
    assert trial["params"]["depth"] == 3 and trial["numbers"]["nc1"] == pytest.approx(6.2)
    assert trial["curves"]["train"]["loss"] == [2.0, None], "what is not finite is null"
    assert f"attempt {C} failed" in (log := server.ask("/sweep/b/trial/t5.log").json()["log"]) and ENDING in log
    for page in ("/", "/sql", "/sweep/a/", "/sweep/a/trial/t1"):
        assert server.ask(page).headers["content-type"].startswith("text/html")


def test_what_is_not_there_is_said(server: Server) -> None:
    for path, said in (("/sweep/c/", "sweep 'c'"), ("/sweep/a/trial/t4", "no trial 't4'"), ("/sweep/c/report", "'c'")):
        assert (found := server.ask(path)).status == 404 and said in found.text
    assert server.ask("/../../etc/passwd").status == 404
    hostile = server.ask("/sweep/%3Cimg%20src=x%20onerror=alert(1)%3E/", Accept="text/html")
    assert hostile.status == 404 and HOSTILE not in hostile.text and "&lt;img src=x" in hostile.text


def test_unchanged_answers_are_short(server: Server) -> None:
    for path in ("/state.json", "/sweep/a/trials.json", "/page.js", "/plotly.js"):
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
        b"POST /sql HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{",
        b"GET /page.css HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HT",
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
@pytest.mark.parametrize("path", ["/", "/state.json", "/sweep/a/", "/sweep/a/trials.json", "/page.js"])
def test_writes_are_refused(server: Server, method: str, path: str) -> None:
    assert server.ask(path, method, "x", Origin=f"http://localhost:{server.port}").status == 405


def test_every_answer_is_closed(server: Server) -> None:
    for path, status in (("/", 200), ("/state.json", 200), ("/nothing", 404), ("/sweep/c/", 404)):
        found = server.ask(path)
        assert found.status == status
        policy = found.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self';" in policy and "frame-ancestors 'none'" in policy
        assert found.headers["x-content-type-options"] == "nosniff"
        assert found.headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in found.headers
    for page in ("/", "/sql", "/sweep/a/", "/sweep/a/trial/t1"):
        text = server.ask(page).text
        assert "<script>" not in text and " on" not in text.partition("<body")[2].partition("</header>")[0]
        assert "http://" not in text and "https://" not in text, "nothing of others is loaded"


def test_sql_answers_and_refuses_as_query_does(server: Server) -> None:
    found = server.sql("select trial_id, nc1 from results where depth = 3").json()
    assert found["columns"] == ["trial_id", "nc1"]
    assert found["rows"] == [["t2", pytest.approx(6.2)]]
    assert not found["more"]
    assert server.sql("select count(*) as n from trials", "b").json()["rows"] == [[1]]
    many = server.sql("select i from trials, range(100000) as r(i)").json()
    assert len(many["rows"]) == MAX_ROWS and many["more"]
    for query, said in (
        ("drop table trials", "one SELECT"),
        ("select 1; select 2", "one SELECT"),
        ("copy (select 1) to '/tmp/x.csv'", "one SELECT"),
        ("select * from read_text('/etc/passwd')", "disabled"),
        ("select * from read_csv('https://example.org/x.csv')", "disabled"),
        ("select getenv('HOME')", "getenv"),
        ("set enable_external_access = true", "one SELECT"),
        ("select nothing from trials", 'column "nothing" not found'),
    ):
        refused = server.sql(query)
        assert refused.status == 400 and said in refused.text, (query, refused.text)
    assert server.sql("select 1", "zzz").status == 400


def test_sql_ends_at_its_time(folder: Store) -> None:
    with served(fill(folder), timeout_s=0.5) as server:
        slow = server.sql("select count(*) from range(1000000) a, range(1000000) b")
        assert slow.status == 400 and "timed out after 0.5 s" in slow.text
        assert server.sql("select 1 as one").json()["rows"] == [[1]], "the next one is answered"


@pytest.mark.parametrize(
    ("message", "reply"),
    [
        ("can't start new thread", "the query needs more memory"),
        ("no such mode", "the query failed: RuntimeError: no such"),
    ],
)
def test_runtime_errors(folder: Store, monkeypatch: pytest.MonkeyPatch, message: str, reply: str) -> None:
    def fail(*_: object) -> str:
        raise RuntimeError(message)

    replies = io.StringIO()
    monkeypatch.setattr(sql_process, "_answer", fail)
    monkeypatch.setattr(sql_process, "receive_requests", lambda: [({"sql": "select 1", "sweep": None}, replies)])
    monkeypatch.setattr(sql_process.sys, "argv", ["sql_process", fill(folder).url, "1", "1"])
    sql_process.main()
    assert replies.getvalue().startswith(f'\n?"{reply}')


HOSTILE_SQL = {
    "one call": "select levenshtein(repeat('ab', 150000), repeat('ba', 150000))",
    "one value": "select length(repeat('x', 2000000000))",
    "a long answer": "select repeat('x', 900000000) from range(3)",
    "a list": "select list_sort(range(500000000))",
}


@pytest.mark.slow
@pytest.mark.parametrize("query", HOSTILE_SQL.values(), ids=HOSTILE_SQL)
def test_sql_limits_spare_others(folder: Store, query: str) -> None:
    with served(fill(folder), timeout_s=1.0) as server:
        answers: list[Answer] = []
        asking = [threading.Thread(target=lambda: answers.append(server.sql(query))) for _ in range(2)]
        for thread in asking:
            thread.start()
        assert server.ask("/state.json").status == 200
        for thread in asking:
            thread.join(30)
        assert [answer.status for answer in answers] == [400, 400]
        ends = "took longer than 1 s|timed out after 1 s|memory limit|more memory"
        assert all(re.search(ends, answer.text) for answer in answers), answers
        assert server.sql("select 1 as one").json()["rows"] == [[1]]


def sql_processes() -> list[str]:
    """Return the command lines of the processes that answer questions for this one."""
    children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    numbers = [number for path in children for number in path.read_text().split()]
    commands = [Path(f"/proc/{number}/cmdline").read_text() for number in numbers]
    return [command for command in commands if "sql_process" in command]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_departed_client_ends_its_sql(folder: Store) -> None:
    before = len(sql_processes())  # of other servers in this process
    with served(fill(folder), timeout_s=60.0) as server:
        assert server.sql("select 1 as one").status == 200
        assert len(sql_processes()) == before + 1
        with pytest.raises(TimeoutError):
            server.sql(HOSTILE_SQL["one call"], wait_s=1.0)
        await_that(lambda: len(sql_processes()) == before, 10)


@pytest.mark.slow
def test_sql_of_one_client_leaves_room_for_others(folder: Store) -> None:
    with served(fill(folder), timeout_s=3.0) as server:
        answers: list[int] = []
        asking = [
            threading.Thread(target=lambda: answers.append(server.sql(HOSTILE_SQL["one call"]).status)) for _ in "123"
        ]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join(30)
        assert sorted(answers) == [400, 400, 503]


@pytest.mark.parametrize("body", ["", "[]", "1", '{"sql": 1}', '{"sql": "select 1", "sweep": []}', "[" * 50_000])
def test_what_is_no_question_is_refused(server: Server, body: str) -> None:
    assert server.ask("/sql", "POST", body, Origin=f"http://localhost:{server.port}").status == 400


def test_a_program_asks_as_the_docs_show(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/analyse.md").read_text()
    (code,) = re.findall(r"```python\n(import json\n.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code.replace("127.0.0.1:8377", f"127.0.0.1:{server.port}"), names)
    answer = names["answer"]
    assert answer.keys() == {"columns", "rows", "more", "problems"} and not answer["more"] and not answer["problems"]
    assert answer["columns"] == ["depth", "nc1"] and [depth for depth, _ in answer["rows"]] == [2, 3]
    assert capsys.readouterr().out == f"{answer['columns']} {answer['rows']}\n"
    refused = server.ask("/sql", "POST", '{"sql": "select 1"}').text
    origin = refused.split("Origin: ")[1].strip()
    assert server.ask("/sql", "POST", '{"sql": "select 1 as one"}', Origin=origin).json()["rows"] == [[1]]


def test_requests_need_origin_and_size(server: Server) -> None:
    assert server.ask("/sql", "POST", '{"sql": "select 1"}').status == 403, "without an Origin"
    assert server.sql("select 1", Origin="http://evil.example").status == 403
    assert server.sql(f"select '{'x' * 200_000}'").status == 413


def test_token_becomes_a_cookie(folder: Store) -> None:
    with served(fill(folder), token="secret", cookie="depthrate_1") as server:
        for path in ("/", "/state.json", "/plotly.js", "/nothing", "/?token=", "/?token=wrong", "/?token=secret%00"):
            assert server.ask(path).status == 401, path
        assert server.sql("select 1").status == 401
        assert server.ask("/", Cookie="depthrate_1=wrong").status == 401
        for path, place in (
            ("/?token=secret", "./"),
            ("/sweep/a/?x=1&token=secret", "./?x=1"),
            ("/sql?token=secret", "./sql"),
        ):
            let = server.ask(path)
            assert (let.status, let.headers["location"]) == (303, place), "out of the address"
        assert server.ask("//evil.example?token=secret").headers["location"] == "./evil.example"
        kept = let.headers["set-cookie"]
        assert kept.startswith("depthrate_1=secret;") and "HttpOnly" in kept and "samesite=lax" in kept.lower()
        assert server.ask("/state.json", Cookie="a=b; depthrate_1=secret").status == 200
        assert server.sql("select 1", Cookie="depthrate_1=secret").status == 200
        own, asked = {"Origin": f"http://localhost:{server.port}"}, '{"sql": "select 1"}'
        assert server.ask("/sql?token=secret", "POST", asked, **own).status == 200, "as a program asks"


def test_looks_of_browsers_cost_the_store_nothing(tmp_path: Path) -> None:
    store = fill(Store("counted://served"))
    files: CountedFileSystem = store.fs
    paths = (
        "/state.json",
        "/sweep/a/trials.json",
        "/sweep/a/curves.json",
        "/sweep/b/trials.json",
        "/sweep/b/trial/t5.log",
    )
    with served(store, every_s=3600.0) as server:
        for path in paths:
            assert server.ask(path).status == 200
        before = files.count(CountedFileSystem.DRIVER)
        for _ in range(20):
            assert [server.ask(path).status for path in paths] == [200] * len(paths)
        assert files.count(CountedFileSystem.DRIVER) == before


def requests_a_minute(kind: str, commits_every: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return what 30 looks two seconds apart ask of a store in which a trial is committed at every so manieth of them."""
    clock = Clock()
    timed = SimpleNamespace(monotonic=clock, time=time.time)
    monkeypatch.setattr(status_command, "time", timed)
    store = Store(f"counted://{kind}-{commits_every}")
    files: CountedFileSystem = store.fs
    trial_ids = [f"t{number}" for number in range(100)]
    write_spec(store, "a", "a1", {"name": "a", **SPEC}, trial_ids)
    running = {"attempt_id": A, "sweep": "a", "trial_ids": trial_ids[90:], "state": "running"}
    running |= {"started_at": time.time(), "heartbeat_at": time.time()}
    store.write(attempt_path("a", A), json.dumps(running).encode())
    commit(store, B, trial_ids[80:90], sweep="a")
    watched = status_command.StatusPoller(store, planned_trials("a", store), with_costs=True, with_events=True)
    poller, rows = Poller(store), SweepRows(store, "a")

    def look() -> None:
        if kind == "status":
            watched.poll()
            return
        poller.refresh()
        rows.table(poller._view)
        rows.curves(poller._view, None)

    look()
    before = files.count(CountedFileSystem.DRIVER)
    for number in range(30):
        if commits_every and number % commits_every == 0:
            with files.acting("worker"):
                commit(store, f"20260101T000000_{number:012x}", [trial_ids[number]], sweep="a")
        clock.sleep(2.01)
        look()
    if kind == "serve":
        numbers = [row[0] for row in rows.table(poller._view)["rows"] if row[1] == "ok"]
        assert len(numbers) == 10 + (30 // commits_every if commits_every else 0)
    return files.count(CountedFileSystem.DRIVER) - before


@pytest.mark.slow
@pytest.mark.parametrize("commits_every", [0, 3])
def test_page_costs_what_status_does(commits_every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose trials take half a second commits sixteen of them at once, some ten times a minute."""
    watched, served = (requests_a_minute(kind, commits_every, monkeypatch) for kind in ("status", "serve"))
    assert served <= watched


def test_commits_are_read_once(folder: Store) -> None:
    fill(folder)
    with served(folder, every_s=0.1) as server:
        rows = until(lambda: states(server, "a"), lambda found: found["t3"] == "pending")
        commit(folder, f"{A[:-1]}d", ["t3"], sweep="a", value=7.0)
        rows = until(lambda: states(server, "a"), lambda found: found["t3"] == "ok")
        assert rows == {"t1": "ok", "t2": "ok", "t3": "ok"}
        found = server.ask("/sweep/a/trials.json").json()
        place = found["columns"].index("nc1")
        assert {row[0]: row[place] for row in found["rows"]}["t3"] == pytest.approx(12.2)
        printed("trials", "rm", "t1", "--yes", "--store", folder.url)
        assert until(lambda: states(server, "a"), lambda found: found["t1"] == "pending")["t2"] == "ok"
        write_spec(folder, "later", "l1", {"name": "later", **SPEC}, ["t9"])
        names = until(lambda: [s["name"] for s in server.ask("/state.json").json()["sweeps"]], lambda n: "later" in n)
        assert len(names) == 3


@pytest.mark.slow
def test_missing_store_is_one_sentence(folder: Store) -> None:
    fill(folder)
    away = f"{folder.root}-away"
    with served(folder, every_s=0.1) as server:
        until(lambda: server.ask("/state.json").json(), lambda found: found["is_seen"])
        server.ask("/sweep/a/trials.json")
        os.rename(folder.root, away)
        gone = until(lambda: server.ask("/state.json").json(), lambda found: found["error"])
        assert "does not answer (no store at" in gone["error"] and len(gone["sweeps"]) == 2
        assert (rows := server.ask("/sweep/a/trials.json")).status == 200 and rows.json()["error"]
        assert server.sql("select 1").status == 503
        assert server.ask("/sweep/a/report", Accept="text/html").status == 503
        os.rename(away, folder.root)
        until(lambda: server.ask("/state.json").json(), lambda found: not found["error"])
        assert server.sql("select count(*) from trials").json()["rows"] == [[3]]


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
        write_spec(folder, "new", "n1", {"name": "new", **SPEC}, ["t9"])
        assert server.ask("/sweep/new/").status == 200


def test_the_command_says_what_it_needs(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no store at" in refused("serve", "--store", f"{folder.root}-not")
    fill(folder)
    assert "cannot listen at 256.0.0.1" in refused("serve", "--store", folder.url, "--host", "256.0.0.1")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'depthrate[serve]'" in refused("serve", "--store", folder.url)


def test_notebook_continues_while_serving(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(folder)
    before = threading.active_count()
    with depthrate.serve(folder.url, token=True) as page:
        port = int(page.url.partition("127.0.0.1:")[2].partition("/")[0])
        secret = page.url.partition("?token=")[2]
        assert Server(port).ask("/state.json").status == 401
        found = Server(port).ask("/state.json", Cookie=f"depthrate_{port}={secret}").json()
        assert [item["name"] for item in found["sweeps"]] == ["a", "b"]
        assert f'href="{page.url}"' in page._repr_html_()
    assert "stopped" in repr(page) and threading.active_count() <= before + 1, "the poller ends by itself"
    with pytest.raises(OSError):
        Server(port).ask("/state.json")
    first, second = depthrate.serve(folder.url), depthrate.serve(folder.url)
    assert first.url != second.url, "a cell that is run again finds a port"
    first.stop()
    second.stop()
    second.stop()
    monkeypatch.chdir(folder.root + "/..")
    os.rename(folder.root, "results")
    page = (DOCS / "how-to" / "analyse.md").read_text()
    (documented,) = re.findall(r"```python\n(import depthrate\n\npage = .*?)```", page, re.DOTALL)
    exec(documented, {})
    with pytest.raises(depthrate.StoreError, match="no store at"):
        depthrate.serve(folder.url)
    with pytest.raises(ValueError, match="cannot listen at 256"):
        depthrate.serve("results", host="256.0.0.1")


def states(server: Server, sweep: str) -> dict[str, str]:
    return {row[0]: row[1] for row in server.ask(f"/sweep/{sweep}/trials.json").json()["rows"]}


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
    commit(folder, A, ["x"])
    log = tmp_path / "serve.log"
    with command("serve", "--store", folder.url, "--port", "0", log=log):
        server = Server(int(address_in(log).rpartition(":")[2].strip("/")))
        assert server.sql("select count(*) from trials").json()["rows"] == [[1]]
    assert log.read_text().count("\n") == 1, "one line, printed at the start"


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
    launch = ("run", str(tmp_path / "alive.yaml"), "--store", str(store), "--workers", "2", "--device", "cpu")
    with command(*launch, log=tmp_path / "run.log"):
        until(lambda: (store / "sweeps").is_dir(), bool)
        link.symlink_to(store)
        with command("serve", "--store", str(link), "--port", "0", log=tmp_path / "serve.log"):
            show(window, f"{address_in(tmp_path / 'serve.log')}sweep/alive/", 1280)
            shown = {"states": {"running": 2, "pending": 2}, "said": ""}
            until(lambda: seen(window), lambda found: shown.items() <= found.items() and found["lines"] == 2)

            pids = {json.loads(path.read_text())["pid"] for path in store.glob("attempts/**/*.json")}
            os.kill(min(pids), signal.SIGKILL)
            read = "return document.getElementById('summary').textContent"
            until(lambda: window.run(read), lambda text: "worker was killed" in text)
            until(lambda: seen(window), lambda found: found["states"].get("running") == 2)

            link.unlink()
            until(lambda: seen(window), lambda found: "does not answer" in found["said"])
            assert seen(window)["states"].get("running") == 2, "what was seen last stays"
            link.symlink_to(store)
            until(lambda: seen(window), lambda found: not found["said"])

            hold.unlink()
            until(lambda: seen(window), lambda found: found["states"] == {"ok": 4}, 120.0)
            window.run("document.getElementById('filter').value = 'depth>=4'")
            window.run("document.getElementById('filter').dispatchEvent(new Event('input'))")
            assert seen(window)["states"] == {"ok": 2}
            window.run("document.querySelectorAll('#table th button')[2].click()")
            window.run("document.querySelectorAll('#table th button')[2].click()")
            depths = "[...document.querySelectorAll('#table tbody tr')].map((row) => row.cells[2].textContent)"
            assert window.run(f"return {depths}") == ["5", "4"]
            window.run("document.querySelector('#table tbody a').click()")
            shown = "return document.getElementById('text')?.textContent ?? ''"
            until(lambda: window.run(shown), lambda text: "attempt" in text)
            assert window.run("return document.querySelectorAll('#lines .scatterlayer .trace').length") == 1
            assert "Traceback" not in (tmp_path / "serve.log").read_text()


@pytest.mark.browser
@pytest.mark.slow
def test_texts_stay_inert_and_fit(window: Browser, folder: Store) -> None:
    with served(fill(folder)) as server:
        base = f"http://127.0.0.1:{server.port}/"
        pages = {
            "": "document.querySelectorAll('#sweeps tbody tr').length === 2",
            "sweep/b/": "document.querySelectorAll('#table tbody tr').length === 2",
            "sweep/b/trial/t5": "document.getElementById('text').textContent.includes('attempt')",
            "sweep/b/trial/t4": "document.getElementById('params').textContent.includes('onerror')",
            "sql": "true",
        }
        for width, is_dark in ((1280, False), (390, True)):
            for path, is_there in pages.items():
                show(window, base + path, width, is_dark=is_dark)
                until(lambda: window.run(f"return {is_there}"), bool)
                if path == "sql":
                    window.run(
                        f"document.getElementById('query').value = \"select '{HOSTILE}' as x, arch_name from trials\""
                    )
                    window.run("document.getElementById('form').requestSubmit()")
                    until(lambda: window.run("return document.querySelectorAll('#table tbody tr').length"), bool)
                assert window.run("return document.querySelectorAll('img').length") == 0
                assert window.run("return document.documentElement.scrollWidth") == width, path
                background = window.run("return getComputedStyle(document.body).backgroundColor")
                assert background == ("rgb(24, 24, 24)" if is_dark else "rgb(255, 255, 255)")
                if path == "sweep/b/":
                    assert HOSTILE in window.run("return document.getElementById('table').textContent")


HOSTILE_TEXTS = (
    HOSTILE,
    ENDING,
    "<svg onload=alert(3)></svg>",
    '"><b onmouseover="alert(4)">x</b>',
    "<a href='javascript:alert(5)'>x</a>",
    "&lt;img src=x onerror=alert(6)&gt;",
    "';alert(8);//",
    "%{x}<extra><img src=x onerror=alert(7)></extra>",
)
"""What tests of the report put where users write, and what is special to attributes, links, entities and plotly's templates."""
HOSTILE_TASK = """
import depthrate

@depthrate.task(version=1)
def says(*, depth: int, text: str, context):
    if depth == 5:
        raise RuntimeError(text)
    print(text)
    curves = [{"step": step, "loss": 1 / (depth + step)} for step in range(1, 6)]
    return {"metrics": [{"layer": depth, "nc1": 1 / depth, "word": text}], "curves": curves}
"""
INJECTED = """
return [...document.querySelectorAll('*')].filter((each) => each.tagName === 'IMG'
  || [...each.attributes].some((attribute) => attribute.name.startsWith('on'))
  || (each.getAttribute('href') ?? '').startsWith('javascript:')
  || (each.tagName === 'SCRIPT' && !each.type && each.textContent.startsWith('alert'))).map((each) => each.outerHTML);
"""


@pytest.mark.browser
@pytest.mark.slow
def test_texts_are_escaped_on_every_page(window: Browser, tmp_path: Path) -> None:
    (tmp_path / "hostile.py").write_text(HOSTILE_TASK)
    sweep = {"name": "hostile", "task": f"{tmp_path / 'hostile.py'}:says", "fit": [{"metric": "nc1", "by": ["text"]}]}
    grid = {"depth": [2, 3, 4, 5], "text": list(HOSTILE_TEXTS)}
    (tmp_path / "hostile.yaml").write_text(yaml.safe_dump(sweep | {"grid": grid}))
    store = Store(str(tmp_path / "<img src=x onerror=alert(9)>"))
    printed("run", tmp_path / "hostile.yaml", "--store", store.url, "--device", "cpu", code=1)
    (
        tmp_path / "<img src=x onerror=alert(9)>" / "metrics/sweep=hostile" / "<svg onload=alert(10)>.parquet"
    ).write_bytes(b"x")
    with served(store) as server:
        base, sweep_page = f"http://127.0.0.1:{server.port}/", "sweep/hostile/"
        rows = until(lambda: server.ask(f"/{sweep_page}trials.json").json()["rows"], lambda rows: len(rows) == 32)
        trials = {state: [row[0] for row in rows if row[1] == state] for state in ("ok", "failed")}
        assert (len(trials["ok"]), len(trials["failed"])) == (24, 8)
        show(window, base, 1280)
        until(
            lambda: window.run("return document.querySelectorAll('#sweeps tbody tr').length"),
            lambda number: number == 1,
        )
        assert window.run(INJECTED) == [] and "onerror=alert(9)" in window.run("return document.body.textContent")

        show(window, base + sweep_page, 1280)
        until(
            lambda: window.run("return document.querySelectorAll('#table tbody tr').length"),
            lambda number: number == 32,
        )
        window.run("document.getElementById('figures').scrollIntoView()")
        drawn = "return document.querySelectorAll('#plots .main-svg').length"
        until(lambda: window.run(drawn), lambda number: number > 3, 120.0)
        window.run(
            "document.querySelectorAll('.js-plotly-plot').forEach((plot) => "
            "plot.data.forEach((_, curve) => Plotly.Fx.hover(plot, [{ curveNumber: curve, pointNumber: 0 }])))"
        )
        shown = window.run("return document.body.textContent")
        assert window.run(INJECTED) == [] and all(text in shown for text in HOSTILE_TEXTS)

        depth = server.ask(f"/{sweep_page}trials.json").json()["columns"].index("depth")
        for trial in (
            row[0] for row in rows if row[depth] in (2, 5)
        ):  # each text in a trial that is done, and in one that failed
            show(window, f"{base}{sweep_page}trial/{trial}", 1280)
            until(lambda: window.run("return document.getElementById('text').textContent"), lambda t: "attempt" in t)
            assert window.run(INJECTED) == []
        show(window, base + "sql", 1280)
        for query in (
            'select distinct text, text as "<img src=x onerror=alert(11)>" from trials',
            f"select '{ENDING}'",
        ):
            window.run("document.getElementById('result-note').textContent = ''")
            window.run(f"document.getElementById('query').value = {json.dumps(query)}")
            window.run("document.getElementById('form').requestSubmit()")
            until(
                lambda: window.run("return document.getElementById('result-note').textContent"),
                lambda said: "row" in said,
            )
            assert window.run(INJECTED) == [] and window.run("return document.querySelectorAll('th').length") >= 1
        show(window, base + sweep_page + "report", 1280)
        until(lambda: window.run("return document.querySelectorAll('.plot .main-svg').length"), lambda n: n > 3, 120.0)
        assert window.run(INJECTED) == []
        show(window, f"{base}sweep/{quote(HOSTILE)}/", 1280)
        assert window.run(INJECTED) == []


def show(window: Browser, address: str, width: int, *, is_dark: bool = False) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    window._devtools("Emulation.setDeviceMetricsOverride", size)
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}]
    window._devtools("Emulation.setEmulatedMedia", {"features": scheme})
    window._post("/url", {"url": address})


def seen(window: Browser) -> dict[str, Any]:
    """Return what the page of a sweep shows."""
    rows = "[...document.querySelectorAll('#table tbody tr')].map((row) => row.cells[1].textContent)"
    lines = "document.querySelectorAll('#lines .scatterlayer .trace').length"
    said = "document.getElementById('errors').textContent"
    found = window.run(f"return {{rows: {rows}, lines: {lines}, said: {said}}}")
    counts = {state: found["rows"].count(state) for state in found["rows"]}
    return {"states": counts, "lines": found["lines"], "said": found["said"]}


@pytest.mark.slow
def test_tiny_sweep_has_figures_and_report(tmp_path: Path) -> None:
    (sweep := tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    store = Store(str(tmp_path / "store"))
    printed("run", sweep, "--store", store.url, "--device", "cpu")
    with served(store) as server:
        last = until(lambda: figures_of(server, "tiny"), lambda found: found["rendered"])
        assert not last["render_error"]
        packed = server.ask(f"/sweep/tiny/figures/{last['rendered']}.json", Accept_Encoding="gzip")
        assert packed.headers["content-encoding"] == "gzip"
        found = server.ask(f"/sweep/tiny/figures/{last['rendered']}.json").json()
        assert found == json.loads(gzip.decompress(packed.body))
        assert len(found) > 3 and all(figure["title"] and figure["data"] for figure in found)
        assert server.ask("/sweep/tiny/figures/..%2f..%2fx.json").status == 404
        assert server.ask("/sweep/tiny/figures/1-1.json").status == 404
        report = server.ask("/sweep/tiny/report")
        assert report.status == 200 and "All fits" in report.text
        assert "sha256-" in report.headers["content-security-policy"]
        assert "connect-src" not in report.headers["content-security-policy"]


def figures_of(server: Server, sweep: str) -> dict[str, Any]:
    return server.ask(f"/sweep/{sweep}/figures.json").json()


KILLER = """
import os, pathlib, time
import depthrate

@depthrate.task(version=1)
def falls(*, depth: int):
    return {"metrics": [{"layer": depth, "nc1": 1 / depth}]}

if pathlib.Path(__file__).with_name("how").exists():  # read by who draws: dies as a library of C does, or never ends
    how = pathlib.Path(__file__).with_name("how").read_text()
    os.abort() if how == "abort" else time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("how", "said"), [("abort", "has ended (signal 6)"), ("wait", "longer than 4 s")])
def test_renderer_may_die_or_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, said: str) -> None:
    monkeypatch.setattr(renderer, "MAX_RENDER_S", 4.0 if how == "wait" else 100.0)
    monkeypatch.setattr(renderer, "RENDER_INTERVAL_S", 0.1)
    monkeypatch.setattr(renderer, "RENDER_INTERVAL_FACTOR", 0.0)
    (tmp_path / "killer.py").write_text(KILLER)
    sweep = {"name": "killed", "task": f"{tmp_path / 'killer.py'}:falls", "grid": {"depth": [2, 3, 4]}}
    (tmp_path / "killed.yaml").write_text(yaml.safe_dump(sweep | {"fit": [{"metric": "nc1"}]}))
    store = Store(str(tmp_path / "store"))
    printed("run", tmp_path / "killed.yaml", "--store", store.url, "--device", "cpu")
    (tmp_path / "how").write_text(how)
    with served(store, every_s=0.1) as server:
        failed = until(lambda: figures_of(server, "killed"), lambda found: found["render_error"])
        assert said in failed["render_error"] and not failed["rendered"]
        assert server.ask("/state.json").status == 200
        assert said in server.ask("/sweep/killed/report", Accept="text/html").text
        (tmp_path / "how").unlink()
        monkeypatch.setattr(renderer, "MAX_RENDER_S", 100.0)
        until(lambda: figures_of(server, "killed"), lambda found: found["rendered"] and not found["render_error"])
        assert server.ask("/sweep/killed/report").status == 200


def test_renderer_ends_when_idle(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    drawer = Renderer(fill(folder))
    process = drawer._running_process().popen
    assert process.stdin is not None
    process.stdin.close()  # as when the server has died
    assert process.wait(60) == 0
    assert (again := drawer._running_process().popen) is not process and again.poll() is None
    drawer.stop()
    assert again.returncode == -signal.SIGKILL and not drawer._folder.exists()
