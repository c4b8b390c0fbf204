"""Serves one exported trace to ui.perfetto.dev, which runs in the user's browser and fetches it from this machine.

Perfetto's content security policy allows 127.0.0.1 only on port 9001, and the browser requires CORS headers that name
its origin. Nothing is uploaded: the trace goes from this server to the browser.
"""

from __future__ import annotations

import secrets
import shutil
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ORIGIN = "https://ui.perfetto.dev"
PORT = 9001
BROWSER_LIMIT = 2**31 - 1
"""Bytes: the longest array of a browser, into which Perfetto's page reads the trace."""
_TRACE_NAME = "rankscope.perfetto-trace"


class PerfettoServer(ThreadingHTTPServer):
    """Serves one file under an unguessable path, to pages of Perfetto's origin only."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, trace: Path, port: int = PORT) -> None:
        self.trace = trace
        self.path = f"/{secrets.token_urlsafe(16)}/{_TRACE_NAME}"
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        return f"{ORIGIN}/#!/?url=http://127.0.0.1:{self.server_address[1]}{self.path}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: PerfettoServer

    def do_OPTIONS(self) -> None:
        """The preflight request that browsers send when a public page accesses a local address."""
        self.send_response(HTTPStatus.NO_CONTENT)
        self._allow()
        self.send_header("Access-Control-Allow-Methods", "GET")
        self.send_header("Access-Control-Allow-Private-Network", "true")
        self.end_headers()

    def do_GET(self) -> None:
        if self.path != self.server.path or self.headers.get("Origin", ORIGIN) != ORIGIN:
            self.send_response(HTTPStatus.NOT_FOUND)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(HTTPStatus.OK)
        self._allow()
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(self.server.trace.stat().st_size))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        with self.server.trace.open("rb") as file:
            shutil.copyfileobj(file, self.wfile)

    def _allow(self) -> None:
        self.send_header("Access-Control-Allow-Origin", ORIGIN)
        self.send_header("Vary", "Origin")

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the terminal belongs to the user."""
