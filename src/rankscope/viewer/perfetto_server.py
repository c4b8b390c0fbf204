"""Serves one exported trace to ui.perfetto.dev, which runs in the user's browser and fetches it from this machine.

Perfetto's content security policy allows 127.0.0.1 only on port 9001, and the browser requires CORS headers that name
its origin. Nothing is uploaded: the trace goes from this server to the browser.
"""

from __future__ import annotations

import hmac
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.types import Receive, Scope, Send

from rankscope.viewer.address import Address
from rankscope.viewer.listener import Listener

ORIGIN = "https://ui.perfetto.dev"
PORT = 9001
BROWSER_LIMIT = 2**31 - 1
"""Bytes: the longest array of a browser, into which Perfetto's page reads the trace."""
_TRACE_NAME = "rankscope.perfetto-trace"
_CORS = {"Access-Control-Allow-Origin": ORIGIN, "Vary": "Origin"}
_PREFLIGHT = {"Access-Control-Allow-Methods": "GET", "Access-Control-Allow-Private-Network": "true"}


class PerfettoServer(Listener):
    """Serves one file under an unguessable path, to pages of Perfetto's origin only."""

    def __init__(self, trace: Path, port: int = PORT) -> None:
        super().__init__(self._app, Address("127.0.0.1", port))
        self._trace = trace
        self._path = f"/{self.address.token}/{_TRACE_NAME}"

    @property
    def url(self) -> str:
        return f"{ORIGIN}/#!/?url=http://127.0.0.1:{self.address.port}{self._path}"

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._answer(Request(scope))(scope, receive, send)

    def _answer(self, request: Request) -> Response:
        if request.method == "OPTIONS":  # browsers send it before a public page accesses a local address
            return Response(status_code=204, headers={**_CORS, **_PREFLIGHT})
        path = request.url.path.encode("utf-8", "replace")
        known = request.method == "GET" and hmac.compare_digest(path, self._path.encode())
        if not known or request.headers.get("origin", ORIGIN) != ORIGIN:
            return Response(status_code=404)
        return FileResponse(
            self._trace, media_type="application/octet-stream", headers={**_CORS, "Cache-Control": "no-store"}
        )
