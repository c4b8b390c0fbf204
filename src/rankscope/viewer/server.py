"""The HTTP server: authorisation, static files, and the encoding of answers. The routes are given to it.

Standard library only: threads are enough, since an answer takes milliseconds. Read-only. One token for the whole
session, as in Jupyter. Host and Origin are checked against DNS rebinding and requests from other sites.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import sys
from http import HTTPStatus
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from rankscope.errors import RankscopeError
from rankscope.viewer.answers import COLUMNS_TYPE, Route, as_json, pack

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_CONTENT_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_COOKIE = "rankscope"
_COMPRESS_FROM = 4096
"""Bytes; smaller answers are sent as they are."""


class Server(ThreadingHTTPServer):
    """Serves the page and the routes to clients that send the token."""

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
        """`tunnel`: the port at the far end of an ssh tunnel, which browsers there send in the Host header."""
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

    def allowed_hosts(self) -> set[str]:
        """Accepted values of the Host header: the names of this address, with this port or the tunnel's."""
        host, port = str(self.server_address[0]), self.server_address[1]
        hosts = {"127.0.0.1", "localhost", "[::1]", f"[{host}]" if ":" in host else host}
        if host in ("0.0.0.0", "::"):
            hosts |= {socket.gethostname(), socket.getfqdn()}
        ports = {port, self._tunnel or port}
        return {f"{name}:{number}" for name in hosts for number in ports} | hosts

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that the browser closed before the answer was sent."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise the body waits up to 40 ms for the delayed ACK of the headers
    wbufsize = 1 << 16
    server: Server
    static: ClassVar[dict[str, tuple[bytes, str]]] = {}

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        if not self._authorised(query):
            return
        if parts.path.startswith("/api/"):
            self._api(parts.path.removeprefix("/api/"), query)
        else:
            self._file("index.html" if parts.path == "/" else parts.path.lstrip("/"), "token" in query)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _authorised(self, query: dict[str, str]) -> bool:
        origin = self.headers.get("Origin")
        hosts = self.server.allowed_hosts()
        if self.headers.get("Host") not in hosts or (origin and urlsplit(origin).netloc not in hosts):
            self._error(
                HTTPStatus.FORBIDDEN,
                "the host name in the address is not allowed",
                "Use the address that rankscope printed.",
            )
            return False
        given = query.get("token") or self.headers.get("X-Rankscope-Token") or self._cookie()
        if not hmac.compare_digest(given.encode(), self.server.token.encode()):
            self._error(
                HTTPStatus.UNAUTHORIZED,
                "the token is missing or wrong",
                "Use the whole address that rankscope printed, with its token.",
            )
            return False
        return True

    def _cookie(self) -> str:
        cookie = SimpleCookie(self.headers.get("Cookie", ""))
        return cookie[self._cookie_name()].value if self._cookie_name() in cookie else ""

    def _cookie_name(self) -> str:
        """Cookies are shared between the ports of a host, so the name contains the port."""
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
            self._error(HTTPStatus.BAD_REQUEST, f"invalid parameters for /api/{name}", f"{error!r}")
            return
        except Exception as error:  # noqa: BLE001 - one failed request must not end the server
            self._error(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                f"/api/{name} failed",
                "Please report it, with the address of the page.",
                f"{type(error).__name__}: {error}",
            )
            return
        if isinstance(answer, tuple):
            header, columns = answer
            if not as_text:
                self._send(pack(header, columns), COLUMNS_TYPE)
                return
            answer = as_json(header, columns)
        self._send(json.dumps(answer, allow_nan=False, default=str).encode(), "application/json")

    def _file(self, name: str, first: bool) -> None:
        """A static file. Names are looked up in a dictionary, so no path can leave the folder."""
        if not self.static:
            self.static.update(_static_files())
        if name not in self.static:
            self._error(
                HTTPStatus.NOT_FOUND, f"there is no /{name}", "Use the address that rankscope printed."
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
        if packed and self.client_address[0] not in ("127.0.0.1", "::1"):  # loopback is faster uncompressed
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
        """Log nothing: the terminal belongs to the user."""


def _static_files() -> dict[str, tuple[bytes, str]]:
    found: dict[str, tuple[bytes, str]] = {}

    def add(folder: Any, prefix: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                add(entry, f"{prefix}{entry.name}/")
            elif kind := _CONTENT_TYPES.get("." + entry.name.rpartition(".")[2]):
                found[prefix + entry.name] = (entry.read_bytes(), kind)

    add(files("rankscope.viewer") / "static", "")
    return found
