"""The web application of `depthrate serve`: its routes and their responses."""

import difflib
import gzip
import hashlib
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.api.logs import attempts_text
from depthrate.orchestrator.api.status import POLL_INTERVAL_S
from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.console.tables import json_text, printable
from depthrate.orchestrator.explorer.data import marks_of
from depthrate.orchestrator.explorer.page import SCRIPT, STYLE
from depthrate.orchestrator.monitor.status import SweepStatus
from depthrate.orchestrator.serve.access import Access
from depthrate.orchestrator.serve.overview import Overview, spark_lines
from depthrate.orchestrator.serve.pages import HOME_SCRIPT, home_page, missing_page, sweep_page, trial_page
from depthrate.orchestrator.serve.poller import Poller, StoreView, state_of
from depthrate.orchestrator.serve.sweeps import BadRequestError, SweepPages
from depthrate.storage.attempts.clocks import require_clock
from depthrate.storage.attempts.records import RecordReader, read_records
from depthrate.storage.catalog.code import read_code
from depthrate.storage.catalog.tags import annotate
from depthrate.storage.commits.visible_commits import first_line
from depthrate.storage.files.store import Store, StoreError
from depthrate.storage.query.sql_checks import QueryError

MAX_CACHED_RESPONSES = 8
"""Maximum number of sweeps with cached data. The most recently used sweeps stay cached."""
MAX_CACHED_ADDRESSES = 40
"""Maximum number of addresses with a cached response."""
MAX_WAITING = 8
"""Maximum number of requests for fits or rows that are computed or wait at a time, a fifth of the server's threads."""
MAX_QUERY_CHARACTERS = 20_000
MAX_CHANGE_BYTES = 100_000
MAX_TAGS = 20
"""Maximum number of different tags in a change."""
MAX_LOG_CHARACTERS = 200_000
"""Maximum number of characters of a trial's logs, and of its code. The last characters are sent."""
MAX_LINE = 2_000
"""Maximum number of characters of a line of a log or of code."""
Make = Callable[[StoreView], dict[str, Any]]
Endpoint = Callable[[Request], Awaitable[Response]]


class Pages:
    """Responses per route."""

    def __init__(self, store: Store, poller: Poller, *, writes: bool = False):
        self._store, self._poller, self._overview, self._writes = store, poller, Overview(store), writes
        self._records, self._reading = RecordReader(store), threading.Lock()
        self._places = threading.Semaphore(MAX_WAITING)
        self._sweeps = lru_cache(MAX_CACHED_RESPONSES)(partial(SweepPages, store))
        self._answers = lru_cache(MAX_CACHED_ADDRESSES)(lambda address: _CachedResponse())

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/", _page(home_page(self._store.url))),
            Route("/state.json", self._state),
            Route("/sweep/{sweep}/", self._sweep),
            Route("/sweep/{sweep}/data.bin", self._data),
            Route("/sweep/{sweep}/rows.bin", self._rows),
            Route("/sweep/{sweep}/fits.json", self._fits),
            Route("/sweep/{sweep}/spark.json", self._spark),
            Route("/sweep/{sweep}/marks.json", self._marks),
            Route("/sweep/{sweep}/marks.json", self._annotate, methods=["POST"]),
            Route("/sweep/{sweep}/trial/{trial}.log", self._log),
            Route("/sweep/{sweep}/trial/{trial}", self._trial),
            Route("/explorer.js", _file(SCRIPT.encode(), "text/javascript")),
            Route("/home.js", _file(HOME_SCRIPT.encode(), "text/javascript")),
            Route("/explorer.css", _file(STYLE.encode(), "text/css")),
        ]

    def _sweep(self, request: Request) -> Response:
        self._known(request)
        return HTMLResponse(sweep_page(request.path_params["sweep"]))

    def _trial(self, request: Request) -> Response:
        self._known(request)
        return HTMLResponse(trial_page(request.path_params["sweep"], request.path_params["trial"]))

    def _state(self, request: Request) -> Response:
        return self._answer(request, lambda view: {"sweeps": self._overview.summaries(view)})

    def _data(self, request: Request) -> Response:
        return self._of_sweep(request, lambda sweep, view, state: sweep.packed(view, state))

    def _rows(self, request: Request) -> Response:
        trial_ids = list(filter(None, request.query_params.get("of", "").split(",")))
        return self._queued(request, lambda sweep, view, state: sweep.rows(view, state, trial_ids))

    def _fits(self, request: Request) -> Response:
        text = request.query_params.get("of", "")
        try:
            query = json.loads(text) if len(text) <= MAX_QUERY_CHARACTERS else None
        except (ValueError, RecursionError):
            query = None
        if not isinstance(query, dict):
            raise HTTPException(400, "expected a JSON object in `of`")
        return self._queued(request, lambda sweep, view, state: json_text(sweep.fits(view, state, query)))

    def _queued(self, request: Request, make: Callable[[SweepPages, StoreView, SweepStatus], bytes]) -> Response:
        """Return `_of_sweep` of a request that computes, unless so many wait that no thread would be left for the others."""
        if not self._places.acquire(blocking=False):
            raise HTTPException(503, "the server is busy with other requests. Retrying.", {"Retry-After": "3"})
        try:
            return self._of_sweep(request, make)
        finally:
            self._places.release()

    def _of_sweep(self, request: Request, make: Callable[[SweepPages, StoreView, SweepStatus], bytes]) -> Response:
        """Return what a sweep's data give, or 304 if the browser has it."""
        name, state, view = self._known(request)
        if view.error:  # the page shows it with the data of the last poll
            raise HTTPException(503, view.error)
        try:
            body = make(self._sweeps(name), view, state)
        except BadRequestError as error:
            raise HTTPException(400, str(error)) from None
        except (OSError, StoreError) as error:
            problem = f"{self._store.url} does not answer ({first_line(error)}). Retrying."
            raise HTTPException(503, view.stale_text(problem)) from None
        except ValueError as error:
            raise HTTPException(409, f"the sweep cannot be shown: {error}") from None
        return _tagged(request, body, "application/octet-stream")

    def _spark(self, request: Request) -> Response:
        name, state, _ = self._known(request)

        def make(view: StoreView) -> dict[str, Any]:
            if view.status is None or not state.counts()["ok"]:
                return {"lines": []}
            results = results_of(self._store, snapshot=view.status.snapshot)
            try:
                return {"lines": spark_lines(results.for_sweep(name), view.specs[name].spec.get("fit"))}
            except QueryError:  # a parameter that is no number
                return {"lines": []}

        return self._answer(request, make)

    def _marks(self, request: Request) -> Response:
        name, state, _ = self._known(request)

        def make(view: StoreView) -> dict[str, Any]:
            return marks_of(view.annotations, name, state.states) | {"writable": self._writes}

        return self._answer(request, make)

    async def _annotate(self, request: Request) -> Response:
        """Change the tags and the note of a trial, or of the sweep. `Access` has checked that a page of this server asks."""
        body = await _body(request, MAX_CHANGE_BYTES)
        try:
            change = _Change.from_json(body)
            return await run_in_threadpool(self._change, request, change)
        except (OSError, StoreError) as error:
            raise HTTPException(400 if isinstance(error, StoreError) else 503, first_line(error)) from None

    def _change(self, request: Request, change: "_Change") -> Response:
        name, state, _ = self._known(request)
        if change.trial is not None and change.trial not in state.states:
            raise HTTPException(404, f"sweep {name!r} has no trial {change.trial!r:.100}")
        require_clock(self._store)  # the later of two changes wins
        target = name if change.trial is None else [change.trial]
        annotate(self._store, target, add=change.add, remove=change.remove, note=change.note)
        self._poller.read_annotations()
        return self._marks(request)

    def _log(self, request: Request) -> Response:
        _, _, known = self._known(request)
        trial_id = request.path_params["trial"]

        def make(view: StoreView) -> dict[str, Any]:
            snapshot = (view.status or known.status).snapshot  # type: ignore[union-attr]  # _known has read the store
            try:
                with self._reading:
                    records = read_records(self._store, snapshot, reader=self._records)
                text = attempts_text(self._store, snapshot, trial_id, records)
            except UsageError as error:
                text = str(error)
            index = snapshot.trials["trial_id"].to_pylist()
            stored = snapshot.trials["code_hash"][index.index(trial_id)].as_py() if trial_id in index else None
            files = (read_code(self._store, stored) or {}) if stored else {}
            code = {
                printable(path): _shown(content.decode(errors="replace"))[:MAX_LOG_CHARACTERS]
                for path, content in files.items()
            }
            return {"log": _shown(text)[-MAX_LOG_CHARACTERS:], "code": code}

        return self._answer(request, make)

    def _known(self, request: Request) -> tuple[str, SweepStatus, StoreView]:
        """Return the requested sweep and its state, after a check that it and the requested trial exist."""
        sweep, trial, view = request.path_params["sweep"], request.path_params.get("trial"), self._poller.view()
        if view.status is None:
            raise HTTPException(503, view.error or f"{self._store.url} is being read. Try again shortly.")
        try:
            state = state_of(view, sweep)
        except KeyError:
            view = self._poller.refreshed_view()  # the sweep may have been launched since the last poll
        try:
            state = state_of(view, sweep)
        except KeyError:
            names = difflib.get_close_matches(sweep, view.specs, n=3, cutoff=0.3)
            near = f". Nearest: {', '.join(names)}" if names else ""
            raise HTTPException(404, f"no sweep {sweep!r:.100} was launched in {self._store.url}{near}") from None
        if trial is not None and trial not in state.states:
            raise HTTPException(404, f"sweep {sweep!r} has no trial {trial!r:.100}")
        return str(sweep), state, view

    def _answer(self, request: Request, make: Make) -> Response:
        """Return the response made from the last poll, cached for all clients, or 304 if the browser has it."""
        view, cached = self._poller.view(), self._answers(f"{request.url.path}?{request.url.query}")
        with cached.lock:
            if cached.number != view.number or view.error:
                try:
                    cached.body = json_text(make(view) | {"error": view.error})
                except (OSError, StoreError) as error:
                    problem = f"{self._store.url} does not answer ({first_line(error)}). Retrying."
                    return PlainTextResponse(f"{view.error or view.stale_text(problem)}\n", 503)
                cached.number = view.number
            body = cached.body
        return _tagged(request, body, "application/json")


@dataclass(frozen=True)
class _Change:
    """A change of tags and the note, of a trial or of the sweep."""

    trial: str | None = None
    add: Sequence[str] = ()
    remove: Sequence[str] = ()
    note: str | None = None

    @staticmethod
    def from_json(body: bytes) -> "_Change":
        """Parse a change. `annotate` checks its tags and note.

        Raises:
            StoreError: It has another form.
        """
        try:
            change = _Change(**json.loads(body))
        except (ValueError, RecursionError, TypeError):
            raise StoreError("expected a JSON object of trial, add, remove and note") from None
        is_listed = all(isinstance(tags, list | tuple) for tags in (change.add, change.remove))
        if not isinstance(change.trial, str | None) or not is_listed:
            raise StoreError("expected a trial's ID, and lists of tags")
        if (count := len({repr(tag) for tag in (*change.add, *change.remove)})) > MAX_TAGS:
            raise StoreError(f"expected at most {MAX_TAGS} tags in a request, not {count}")
        return change


@dataclass
class _CachedResponse:
    """A response with the number of the poll that it is based on. Concurrent requests wait for the lock."""

    number: int = -1
    body: bytes = b""
    lock: threading.Lock = field(default_factory=threading.Lock)


def make_app(
    store: Store,
    *,
    names: frozenset[str] = frozenset(),
    token: str | None = None,
    cookie: str = "depthrate",
    every_s: float = POLL_INTERVAL_S,
    writes: bool = False,
) -> Starlette:
    """Create the application. It polls the store while it is served.

    Args:
        store: The store.
        names: Host names of the server.
        token: Token that requests must carry. None if no token is required.
        cookie: Name of the token's cookie.
        every_s: Seconds between polls.
        writes: Whether the pages may change tags and notes.
    """
    poller = Poller(store, every_s)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        poller.start()
        yield
        poller.stop()

    access = Middleware(Access, names=names, token=token, cookie=cookie, writes=writes)
    middleware = [access, Middleware(GZipMiddleware, minimum_size=1000, compresslevel=4)]
    return Starlette(
        routes=Pages(store, poller, writes=writes).routes(),
        middleware=middleware,
        lifespan=lifespan,
        exception_handlers={HTTPException: _refusal},
    )


def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if "text/html" in request.headers.get("accept", ""):
        root = "../" * (request.url.path.count("/") - 1)
        return HTMLResponse(missing_page(error.detail, root), error.status_code, error.headers)
    return PlainTextResponse(f"{error.detail}\n", error.status_code, error.headers)


def _shown(text: str) -> str:
    """Return lines that a browser shows as they are: without control characters, and cut, since it would hang on long ones."""
    lines = (
        line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]} ... {len(line)} characters" for line in text.split("\n")
    )
    return printable("\n".join(lines))


async def _body(request: Request, most: int) -> bytes:
    """Return a request's body, refused above a size, before all of it is read."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise HTTPException(413, f"expected at most {most} bytes")
    return body


def _page(html: str) -> Endpoint:
    async def answer(request: Request) -> Response:
        return HTMLResponse(html)

    return answer


def _file(content: bytes, media_type: str) -> Endpoint:
    """Return an endpoint for static content, compressed once. It needs no thread, so that it answers when all are busy."""
    packed, tag = gzip.compress(content, 9), _tag(content)

    async def answer(request: Request) -> Response:
        headers = {"ETag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return _unpacked(request, packed, media_type, headers)

    return answer


def _unpacked(request: Request, packed: bytes, media_type: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return gzip content, decompressed for clients that do not accept gzip."""
    headers = {**(headers or {}), "Vary": "Accept-Encoding"}
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(gzip.decompress(packed), media_type=media_type, headers=headers)
    return Response(packed, media_type=media_type, headers=headers | {"Content-Encoding": "gzip"})


def _tagged(request: Request, body: bytes, media_type: str) -> Response:
    headers = {"ETag": _tag(body)}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)


def _tag(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()[:24]}"'
