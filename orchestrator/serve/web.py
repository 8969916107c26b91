"""The web application of `depthrate serve`: its routes and their responses."""

import asyncio
import gzip
import hashlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Mapping
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

from depthrate.orchestrator.api.logs import attempts_text
from depthrate.orchestrator.api.status import POLL_INTERVAL_S
from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.console.tables import json_text, printable
from depthrate.orchestrator.report.page import library, page_policy
from depthrate.orchestrator.serve.access import Access
from depthrate.orchestrator.serve.errors import BusyError, ClientGoneError
from depthrate.orchestrator.serve.pages import (
    index_page,
    missing_page,
    script,
    sql_page,
    style,
    sweep_page,
    trial_page,
)
from depthrate.orchestrator.serve.poller import Poller, StoreView
from depthrate.orchestrator.serve.renderer import Renderer
from depthrate.orchestrator.serve.rows import SweepRows, state_of
from depthrate.orchestrator.serve.sql import MAX_ROWS, Limits, SqlProcesses
from depthrate.orchestrator.serve.summary import summaries, summary
from depthrate.storage.attempts.records import RecordReader, read_records
from depthrate.storage.commits.visible_commits import first_line
from depthrate.storage.files.store import Store, StoreError
from depthrate.storage.query.sql_checks import QueryError

MAX_CACHED_RESPONSES = 8
"""Maximum number of sweeps with cached rows. The most recently used sweeps stay cached."""
MAX_CACHED_ADDRESSES = 40
"""Maximum number of addresses with a cached response."""
CLIENT_POLL_INTERVAL_S = 0.2
"""Seconds between two checks whether a client of a query is still connected."""
MAX_QUERY_BYTES = 100_000
MAX_LOG_CHARACTERS = 200_000
"""Maximum number of characters of a trial's logs. The last characters are sent."""
Make = Callable[[StoreView], dict[str, Any]]


class Pages:
    """Responses per route."""

    def __init__(self, store: Store, poller: Poller, renderer: Renderer, limits: Limits):
        self._store, self._poller, self._renderer, self._limits = store, poller, renderer, limits
        self.sql_processes = SqlProcesses(store, limits)
        self._records, self._reading = RecordReader(store), threading.Lock()
        self._rows = lru_cache(MAX_CACHED_RESPONSES)(partial(SweepRows, store))
        self._answers = lru_cache(MAX_CACHED_ADDRESSES)(lambda address: _CachedResponse())

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/", _page(index_page(self._store.url))),
            Route("/state.json", self._state),
            Route("/sql", _page(sql_page(self._store.url, self._limits.timeout_s, MAX_ROWS))),
            Route("/sql", self._sql, methods=["POST"]),
            Route("/sweep/{sweep}/", self._sweep),
            Route("/sweep/{sweep}/trials.json", self._trials),
            Route("/sweep/{sweep}/curves.json", self._curves),
            Route("/sweep/{sweep}/figures.json", self._figures),
            Route("/sweep/{sweep}/figures/{name}.json", self._rendered),
            Route("/sweep/{sweep}/report", self._report),
            Route("/sweep/{sweep}/trial/{trial}.json", self._trial_values),
            Route("/sweep/{sweep}/trial/{trial}.log", self._log),
            Route("/sweep/{sweep}/trial/{trial}", self._trial),
            Route("/page.js", _file(script().encode(), "text/javascript")),
            Route("/page.css", _file(style().encode(), "text/css")),
            Route("/plotly.js", _file(library().encode(), "text/javascript")),
        ]

    def _sweep(self, request: Request) -> Response:
        self._known(request)
        return HTMLResponse(sweep_page(request.path_params["sweep"]))

    def _trial(self, request: Request) -> Response:
        self._known(request)
        return HTMLResponse(trial_page(request.path_params["sweep"], request.path_params["trial"]))

    def _state(self, request: Request) -> Response:
        return self._answer(
            request,
            lambda view: {"sweeps": summaries(view.status) if view.status else [], "is_seen": view.status is not None},
        )

    def _trials(self, request: Request) -> Response:
        rows = self._rows(self._known(request))

        def make(view: StoreView) -> dict[str, Any]:
            assert view.status is not None
            return {"sweep": summary(view.status, state_of(view, request.path_params["sweep"])), **rows.table(view)}

        return self._answer(request, make)

    def _curves(self, request: Request) -> Response:
        rows, of = self._rows(self._known(request)), request.query_params.get("of")
        return self._answer(request, lambda view: rows.curves(view, of))

    def _trial_values(self, request: Request) -> Response:
        rows = self._rows(self._known(request))

        def make(view: StoreView) -> dict[str, Any]:
            found = rows.trial(view, request.path_params["trial"])
            return found | {"trial_error": found["error"]}

        return self._answer(request, make)

    def _log(self, request: Request) -> Response:
        self._known(request)

        def make(view: StoreView) -> dict[str, Any]:
            assert view.status is not None
            snapshot = view.status.snapshot
            try:
                with self._reading:
                    records = read_records(self._store, snapshot, reader=self._records)
                text = attempts_text(self._store, snapshot, request.path_params["trial"], records)
            except UsageError as error:
                return {"log": str(error)}
            return {"log": printable(text)[-MAX_LOG_CHARACTERS:]}

        return self._answer(request, make)

    def _figures(self, request: Request) -> Response:
        sweep = self._known(request)

        def make(view: StoreView) -> dict[str, Any]:
            render = self._renderer.figures(sweep, view)
            return {"rendered": render.name, "render_error": render.last_error}

        return self._answer(request, make)

    def _rendered(self, request: Request) -> Response:
        packed = self._renderer.packed_figures(request.path_params["name"])
        if packed is None:
            raise HTTPException(404, "a newer render has replaced these figures")
        return _unpacked(request, packed, "application/json")

    def _report(self, request: Request) -> Response:
        packed, problem = self._renderer.page(self._known(request), self._poller.view())
        if packed is None:
            return HTMLResponse(missing_page(problem, "../../"), 503)
        policy = f"{page_policy()}; frame-ancestors 'none'"
        return _unpacked(request, packed, "text/html", {"Content-Security-Policy": policy})

    async def _sql(self, request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MAX_QUERY_BYTES:
                return PlainTextResponse(
                    f"the request is larger than {MAX_QUERY_BYTES:,} bytes. Shorten the query.\n", 413
                )
        try:
            fields = json.loads(body)
            query, sweep = fields["sql"], fields.get("sweep")
            if not isinstance(query, str) or not isinstance(sweep, str | None):
                raise TypeError
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return PlainTextResponse(
                'the request is not JSON of the form {"sql": "select ...", "sweep": null or a name}\n', 400
            )
        try:
            client = "" if request.client is None else request.client.host
            async with _watched(request) as is_gone:
                answer = await run_in_threadpool(self.sql_processes.run, query, sweep, client, is_gone)
        except ClientGoneError:
            return Response(status_code=499)
        except QueryError as error:
            return PlainTextResponse(f"{error}\n", 400)
        except BusyError as error:
            return PlainTextResponse(f"{error}\n", 503)
        return Response(answer, media_type="application/json")

    def _known(self, request: Request) -> str:
        """Return the requested sweep, after a check that it and the requested trial exist."""
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
            raise HTTPException(404, f"no sweep {sweep!r:.100} was launched in {self._store.url}") from None
        if trial is not None and trial not in state.states:
            raise HTTPException(404, f"sweep {sweep!r} has no trial {trial!r:.100}")
        return str(sweep)

    def _answer(self, request: Request, make: Make) -> Response:
        """Return the response made from the last poll, cached for all clients, or 304 if the browser has it."""
        view, cached = self._poller.view(), self._answers(f"{request.url.path}?{request.url.query}")
        with cached.lock:
            if cached.number != view.number or view.error:
                try:
                    cached.body = json_text(make(view) | {"error": view.error})
                except (OSError, StoreError) as error:
                    problem = view.error or f"{self._store.url} does not answer ({first_line(error)}). Retrying."
                    return PlainTextResponse(f"{problem}\n", 503)
                cached.number = view.number
            body = cached.body
        return _tagged(request, body, "application/json")


@dataclass
class _CachedResponse:
    """A response with the number of the poll that it is based on. Concurrent requests wait for the lock."""

    number: int = -1
    body: bytes = b""
    lock: threading.Lock = field(default_factory=threading.Lock)


def make_app(
    store: Store,
    *,
    limits: Limits,
    names: frozenset[str] = frozenset(),
    token: str | None = None,
    cookie: str = "depthrate",
    every_s: float = POLL_INTERVAL_S,
) -> Starlette:
    """Create the application. It polls the store while it is served.

    Args:
        store: The store.
        limits: Limits of SQL queries.
        names: Host names of the server.
        token: Token that requests must carry. None if no token is required.
        cookie: Name of the token's cookie.
        every_s: Seconds between polls.
    """
    poller, renderer = Poller(store, every_s), Renderer(store)
    pages = Pages(store, poller, renderer, limits)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        poller.start()
        yield
        poller.stop()
        await run_in_threadpool(renderer.stop)
        await run_in_threadpool(pages.sql_processes.stop)

    access = Middleware(Access, names=names, token=token, cookie=cookie)
    middleware = [access, Middleware(GZipMiddleware, minimum_size=1000, compresslevel=4)]
    return Starlette(
        routes=pages.routes(),
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


@asynccontextmanager
async def _watched(request: Request) -> AsyncIterator[Callable[[], bool]]:
    """Yield a function that returns whether the client has closed its connection."""
    gone = threading.Event()

    async def watch() -> None:
        while not await request.is_disconnected():
            await asyncio.sleep(CLIENT_POLL_INTERVAL_S)
        gone.set()

    watcher = asyncio.create_task(watch())
    try:
        yield gone.is_set
    finally:
        watcher.cancel()


def _page(html: str) -> Callable[[Request], Response]:
    return lambda request: HTMLResponse(html)


def _file(content: bytes, media_type: str) -> Callable[[Request], Response]:
    """Return an endpoint for static content, compressed once."""
    packed, tag = gzip.compress(content, 9), _tag(content)

    def answer(request: Request) -> Response:
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
