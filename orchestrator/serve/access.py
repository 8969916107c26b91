"""Access control: allowed host names, same-origin requests, and the token."""

import hmac
import ipaddress
import socket
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self' 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy. Only this server's scripts and data are allowed. Inline styles are allowed for the figures."""
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
READ_METHODS = ("GET", "HEAD")


class Access:
    """Middleware that refuses foreign requests before the store is read."""

    def __init__(self, app: ASGIApp, *, names: frozenset[str], token: str | None, cookie: str, writes: bool = False):
        """Create it.

        Args:
            names: Host names of the server besides `localhost` and addresses.
            token: None if no token is required.
            writes: Whether this server's own pages may send changes of tags and notes.
        """
        self._app, self._names, self._token, self._cookie, self._writes = app, names, token, cookie, writes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # no websockets
            return

        async def send_closed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in {"Content-Security-Policy": POLICY, **HEADERS}.items():
                    headers.setdefault(name, value)
            await send(message)

        response = self._refusal(scope) or self._token_response(scope) or self._app
        await response(scope, receive, send_closed)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, method = Headers(scope=scope), scope["method"]
        host = headers.get("host", "")
        if not is_known_host(host, self._names):
            known = ", ".join(sorted({"localhost", *self._names}))
            # prevents DNS rebinding, in which another site's name resolves to this machine
            return _refused(f"this server is not {host[:100]!r}. Use {known}, or an address.", 421)
        origin = headers.get("origin")
        if origin is not None and not _is_of(origin, host):
            return _refused(f"a page of {origin[:100]!r} may not send requests here. Open this server's own page.")
        is_look = method in READ_METHODS and headers.get("sec-fetch-mode") == "navigate"
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not is_look:
            return _refused("a page of another site may not load this. Open this server's own page.")
        if method in READ_METHODS:
            return None
        if not (self._writes and method == "POST"):
            how = "" if self._writes else ". Tags and notes: depthrate serve --write"
            return _refused(f"{method} is refused: this server is read-only{how}", 405)
        if origin is None or headers.get("content-type") != "application/json":  # what a form of another site can send
            return _refused("a change needs the Origin of this server's own page, and JSON")
        return None

    def _token_response(self, scope: Scope) -> Response | None:
        if self._token is None:
            return None
        parameters = parse_qs(scope["query_string"].decode("latin-1"))
        token = parameters.pop("token", [""])[0]
        if _tokens_equal(token, self._token):
            if scope["method"] != "GET":
                return None
            # move the token from the address, which browsers show and store, into a cookie
            rest = f"?{urlencode(parameters, doseq=True)}" if parameters else ""
            response = RedirectResponse(f"./{quote(scope['path'].rpartition('/')[2])}{rest}", 303)
            response.set_cookie(self._cookie, self._token, httponly=True, samesite="lax")
            return response
        cookies = cookie_parser(Headers(scope=scope).get("cookie", ""))
        if _tokens_equal(cookies.get(self._cookie, ""), self._token):
            return None
        return _refused(
            "this page needs its token: open the address that depthrate serve printed, ?token=... included", 401
        )


def is_known_host(host: str, names: frozenset[str]) -> bool:
    """Return whether a Host header names this server: an address, or one of its names."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if "@" in host or "/" in host:
            return False
    except ValueError:
        return False
    return name == "localhost" or name in names or _is_address(name)


def _is_of(origin: str, host: str) -> bool:
    """Return whether an Origin header names this host."""
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False


def own_names(host: str) -> frozenset[str]:
    """Return the names of this machine and `host`."""
    return frozenset(name.lower() for name in (host, socket.gethostname(), socket.getfqdn()) if not _is_address(name))


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable only from this machine."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
        return True
    except ValueError:
        return False


def _tokens_equal(first: str, second: str) -> bool:
    return hmac.compare_digest(first.encode("utf-8", "replace"), second.encode())


def _refused(message: str, status: int = 403) -> Response:
    return PlainTextResponse(f"{message}\n", status)
