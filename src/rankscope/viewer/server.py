"""The HTTP side: who may ask, what is answered, and in which form. What is asked is in api.py.

Standard library only: threads are enough, since an answer takes milliseconds, and nothing must be installed.
Reads only. One token for the whole session, as Jupyter does it; Host and Origin are checked, so that a page of
somebody else's cannot ask through the user's browser, whatever name it gives this address.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from rankscope.errors import RankscopeError
from rankscope.viewer.binary_columns import TYPE, as_json, pack

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_COOKIE = "rankscope"
_COMPRESS_FROM = 4096

Answer = dict[str, Any] | list[Any] | tuple[dict[str, Any], dict[str, Any]]
"""JSON, or facts with columns."""
Route = Callable[[dict[str, str]], Answer]


class Server(ThreadingHTTPServer):
    """Serves the routes of one API to those who know the token."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self,
        host: str,
        port: int,
        routes: dict[str, Route],
        token: str | None = None,
        tunnel: int | None = None,
    ) -> None:
        """`tunnel`: the port on another machine under which a browser there sees this one."""
        self.routes = routes
        self._tunnel = tunnel
        self.token = token or secrets.token_urlsafe(16)
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        name = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{name}:{port}/?token={self.token}"

    def names(self) -> set[str]:
        """What the Host header may be: this address under the names a browser on this machine or a tunnel uses."""
        host, port = str(self.server_address[0]), self.server_address[1]
        hosts = {"127.0.0.1", "localhost", "[::1]", f"[{host}]" if ":" in host else host}
        if host in ("0.0.0.0", "::"):
            hosts |= {socket.gethostname(), socket.getfqdn()}
        ports = {port, self._tunnel or port}
        return {f"{name}:{number}" for name in hosts for number in ports} | hosts

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away in mid-answer is no news."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else an answer waits 40 ms for the browser to acknowledge its headers
    wbufsize = 1 << 16
    server: Server
    static: ClassVar[dict[str, tuple[bytes, str]]] = {}

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        if not self._may_ask(query):
            return
        if parts.path.startswith("/api/"):
            self._api(parts.path.removeprefix("/api/"), query)
        else:
            self._file("index.html" if parts.path == "/" else parts.path.lstrip("/"), "token" in query)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _may_ask(self, query: dict[str, str]) -> bool:
        origin = self.headers.get("Origin")
        names = self.server.names()
        if self.headers.get("Host") not in names or (origin and urlsplit(origin).netloc not in names):
            self._error(
                HTTPStatus.FORBIDDEN, "this address is not ours", "Use the address rankscope printed."
            )
            return False
        given = query.get("token") or self.headers.get("X-Rankscope-Token") or self._cookie()
        if not hmac.compare_digest(given.encode(), self.server.token.encode()):
            self._error(
                HTTPStatus.UNAUTHORIZED,
                "the token is missing or wrong",
                "Use the whole address rankscope printed.",
            )
            return False
        return True

    def _cookie(self) -> str:
        cookie = SimpleCookie(self.headers.get("Cookie", ""))
        return cookie[self._cookie_name()].value if self._cookie_name() in cookie else ""

    def _cookie_name(self) -> str:
        """Ports share cookies, so each viewer has its own name."""
        return f"{_COOKIE}-{self.server.server_address[1]}"

    def _api(self, name: str, query: dict[str, str]) -> None:
        as_text = name.endswith(".json") or query.get("format") == "json"
        route = self.server.routes.get(name.removesuffix(".json"))
        if route is None:
            self._error(HTTPStatus.NOT_FOUND, f"there is no /api/{name}", "See /api/index.")
            return
        try:
            answer = route(query)
        except RankscopeError as error:
            self._error(HTTPStatus.BAD_REQUEST, error.message, error.hint, error.why)
            return
        except (KeyError, ValueError) as error:
            self._error(HTTPStatus.BAD_REQUEST, f"/api/{name} cannot be answered so", f"{error!r}")
            return
        except Exception as error:  # noqa: BLE001 - one question failed; the page says so, and the others go on
            self._error(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                f"/api/{name} failed",
                "Please report it, with what was on the screen.",
                f"{type(error).__name__}: {error}",
            )
            return
        if isinstance(answer, tuple):
            facts, columns = answer
            if not as_text:
                self._send(pack(facts, columns), TYPE)
                return
            answer = as_json(facts, columns)
        self._send(json.dumps(answer, allow_nan=False, default=str).encode(), "application/json")

    def _file(self, name: str, first: bool) -> None:
        """One of our own pages; names are looked up in a list, so no path can lead elsewhere."""
        if not self.static:
            self.static.update(_static_files())
        if name not in self.static:
            self._error(
                HTTPStatus.NOT_FOUND, f"there is no /{name}", "Start at the address rankscope printed."
            )
            return
        content, kind = self.static[name]
        cookie = (
            f"{self._cookie_name()}={self.server.token}; HttpOnly; SameSite=Strict; Path=/" if first else ""
        )
        self._send(content, f"{kind}; charset=utf-8", cookie=cookie)

    def _error(self, status: HTTPStatus, message: str, hint: str, why: str = "") -> None:
        body = json.dumps({"error": message, "why": why, "hint": hint}).encode()
        self._send(body, "application/json", status)

    def _send(self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK, cookie: str = "") -> None:
        packed = len(body) >= _COMPRESS_FROM and "gzip" in self.headers.get("Accept-Encoding", "")
        if packed and self.client_address[0] not in ("127.0.0.1", "::1"):  # a loopback has no slow line
            from isal import igzip

            body = igzip.compress(body)
        else:
            packed = False
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", CSP)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        if packed:
            self.send_header("Content-Encoding", "gzip")
        if cookie:
            self.send_header("Set-Cookie", cookie)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal is the user's."""


def _static_files() -> dict[str, tuple[bytes, str]]:
    found: dict[str, tuple[bytes, str]] = {}

    def walk(folder: Any, prefix: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                walk(entry, f"{prefix}{entry.name}/")
            elif kind := _TYPES.get("." + entry.name.rpartition(".")[2]):
                found[prefix + entry.name] = (entry.read_bytes(), kind)

    walk(files("rankscope.viewer") / "static", "")
    return found
