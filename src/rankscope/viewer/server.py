"""The viewer's HTTP application: who may ask, static files, and the encoding of answers. The routes are given to it.

Read-only, except for the routes in WRITING, which take POST alone. One token for the whole session, as in Jupyter.
Host, Origin and Sec-Fetch-Site are checked against DNS rebinding and requests from other sites. A route runs in a
thread; SQL ends when its client leaves.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from starlette.requests import Request, cookie_parser
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rankscope.errors import RankscopeError
from rankscope.viewer.address import Address
from rankscope.viewer.answers import (
    COLUMNS_TYPE,
    NotReadyError,
    Route,
    as_json,
    client_left,
    json_bytes,
    pack,
)
from rankscope.viewer.dropped import Dropped
from rankscope.viewer.listener import Listener
from rankscope.viewer.static_files import static_files

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_PAGES = {"/": "index.html", "/watch": "watch.html"}
_OF_LOGIN = ("/js/login.js", "/style.css", "/icon.svg")
"""What the page that asks for the token is made of."""
_COMPRESS_FROM = 4096
"""Bytes; smaller answers are sent as they are."""
_DROP = "drop"
"""The route of a file that is dropped onto the page: the only one with a body, and there with `view --drop` alone."""
WRITING = frozenset({"keep-marks", "move", "capture", _DROP, "open-dropped"})
"""Routes that change something: no link, image or form of another page can ask for them."""
_MOST_THREADS = 16
"""Routes that run at once; most wait for the database, and tiles must not wait for those."""
_SQL = "query"
"""The route of users' queries, which may take half a minute each: they wait for each other, and nobody for them."""
_SQL_THREADS = 2


class Server(Listener):
    """Serves the page and the routes to clients that send the token."""

    def __init__(
        self,
        address: Address,
        routes: Mapping[str, Route],
        tunnel: int | None = None,
        dropped: Dropped | None = None,
    ) -> None:
        """`tunnel`: the port at the far end of an ssh tunnel, which browsers there send in the Host header."""
        super().__init__(self._app, address, f"/api/{_DROP}" if dropped else "")
        self._dropped = dropped
        self.routes = {**routes, "open-dropped": dropped.open} if dropped else routes
        self.busy = 0
        """Routes that are running; their threads outlive a stop."""
        self._threads = ThreadPoolExecutor(_MOST_THREADS)
        self._sql_threads = ThreadPoolExecutor(_SQL_THREADS)
        self._hosts = _names(address.host, {address.port, tunnel or address.port})
        self._cookie = f"rankscope-{tunnel or address.port}"  # cookies are shared between the ports of a host

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await self._answer(request)
        response.headers.update(_HEADERS)
        if response.status_code != 200:  # the rest of its body is not read
            response.headers["Connection"] = "close"
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        query = dict(request.query_params)
        refused = self._refusal(request, query)
        if refused is not None:
            return refused
        path = request.url.path
        if path.startswith("/api/"):
            return await self._api(request, path.removeprefix("/api/"), query)
        response = self._file(_PAGES.get(path, path.removeprefix("/")))
        if "token" in query and path in _PAGES:  # that which let the request pass
            response.set_cookie(self._cookie, self.address.token, httponly=True, samesite="strict")
        return response

    def _refusal(self, request: Request, query: dict[str, str]) -> Response | None:
        headers, path = request.headers, request.url.path
        origin = headers.get("origin")
        is_other = origin and origin not in {f"http://{host}" for host in self._hosts}
        if headers.get("host") not in self._hosts or is_other:
            return _error(
                403, "the host name in the address is not allowed", "Use the address that rankscope printed."
            )
        # A link to the page may be anywhere; everything else is requested by the page itself.
        is_link = path in _PAGES and headers.get("sec-fetch-mode") == "navigate"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not is_link:
            return _error(403, "another site sent this request", "Use the address that rankscope printed.")
        given = (
            query.get("token")
            or headers.get("x-rankscope-token")
            or cookie_parser(headers.get("cookie", "")).get(self._cookie, "")
        )
        if not hmac.compare_digest(given.encode("utf-8", "replace"), self.address.token.encode()):
            if path in _PAGES:
                return self._file("login.html", 401)
            if path not in _OF_LOGIN:
                hint = "Use the whole address that rankscope printed, with its token."
                return _error(401, "the token is missing or wrong", hint)
        writes = path.removeprefix("/api/").removesuffix(".json") in WRITING
        allowed = ("POST",) if writes else ("GET", "HEAD")
        if request.method not in allowed:
            more = {"Allow": ", ".join(allowed)}
            return _error(405, f"{request.method} is not allowed", f"Only {allowed[0]} is.", more=more)
        return None

    async def _api(self, request: Request, name: str, query: dict[str, str]) -> Response:
        if name == _DROP and self._dropped:
            taking = asyncio.ensure_future(self._dropped.take(request, query))
            await asyncio.wait([taking])
            return _respond(name, lambda query: taking.result(), query, True)
        route = self.routes.get(name.removesuffix(".json"))
        if route is None:
            return _error(404, f"there is no /api/{name}", "See /api/index.")
        as_text = name.endswith(".json") or query.get("format") == "json"
        left = threading.Event()

        def run() -> Response:
            client_left.set(left)
            self.busy += 1
            try:
                return _respond(name, route, query, as_text)
            finally:
                self.busy -= 1

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            left.set()

        watching = asyncio.create_task(watch())
        try:
            threads = self._sql_threads if name.removesuffix(".json") == _SQL else self._threads
            response = await asyncio.get_running_loop().run_in_executor(threads, run)
        finally:  # also when the server is stopped meanwhile
            watching.cancel()
            left.set()
        return _compressed(request, response)

    def _file(self, name: str, status: int = 200) -> Response:
        """A static file. Names are looked up in a dictionary, so no path can leave the folder."""
        if name not in static_files():
            return _error(404, f"there is no /{name}", "Use the address that rankscope printed.")
        content, kind = static_files()[name]
        return Response(content, status, media_type=f"{kind}; charset=utf-8")


def _names(host: str, ports: set[int]) -> set[str]:
    """Accepted values of the Host header: the names of this address, with one of the ports."""
    names = {"127.0.0.1", "localhost", "[::1]", f"[{host}]" if ":" in host else host}
    if host in ("0.0.0.0", "::"):
        names |= {socket.gethostname(), socket.getfqdn()}
    return {f"{name}:{port}" for name in names for port in ports} | names


def _respond(name: str, route: Route, query: dict[str, str], as_text: bool) -> Response:
    try:
        answer = route(query)
        if isinstance(answer, str):
            # A file to keep: it is never run at this address.
            headers = {"Content-Disposition": "attachment"}
            return Response(answer, headers=headers, media_type="text/html; charset=utf-8")
        if not isinstance(answer, tuple):
            return Response(json_bytes(answer), media_type="application/json")
        if as_text:
            return Response(json_bytes(as_json(*answer)), media_type="application/json")
        return Response(pack(*answer), media_type=COLUMNS_TYPE)
    except NotReadyError as error:
        return _error(503, error.message, error.hint, more={"Retry-After": "1"})
    except RankscopeError as error:
        return _error(400, error.message, error.hint, error.why)
    except (KeyError, ValueError, OverflowError) as error:
        return _error(400, f"invalid parameters for /api/{name}", f"{error!r}")
    except Exception as error:  # noqa: BLE001 - one failed request must not end the server
        return _error(
            500,
            f"/api/{name} failed",
            "Please report it, with the address of the page.",
            f"{type(error).__name__}: {error}",
        )


def _error(
    status: int, message: str, hint: str, why: str = "", more: Mapping[str, str] | None = None
) -> Response:
    body = json_bytes({"error": message, "why": why, "hint": hint})
    return Response(body, status, more, media_type="application/json")


def _compressed(request: Request, response: Response) -> Response:
    local = request.client is not None and request.client.host in ("127.0.0.1", "::1")
    if (
        local  # loopback is faster uncompressed
        or len(response.body) < _COMPRESS_FROM
        or "gzip" not in request.headers.get("accept-encoding", "")
    ):
        return response
    from isal import igzip

    packed = Response(
        igzip.compress(bytes(response.body)), response.status_code, media_type=response.media_type
    )
    packed.headers["Content-Encoding"] = "gzip"
    return packed
