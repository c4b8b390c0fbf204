"""Perfetto's page with a trace of this machine: ui.perfetto.dev runs in the user's browser; nothing is uploaded.

A trace that fits into a browser is served to the page as one file. Perfetto's content security policy allows 127.0.0.1
only on port 9001, and the browser requires CORS headers that name its origin. A larger one is held by a trace_processor
on this machine: the page looks for one on port 9001, asks whether to use it, and fetches only what it draws.
"""

from __future__ import annotations

import contextlib
import hmac
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.types import Receive, Scope, Send

from rankscope.errors import RankscopeError, ToolError
from rankscope.viewer.address import Address
from rankscope.viewer.listener import Listener

ORIGIN = "https://ui.perfetto.dev"
PORT = 9001
BROWSER_LIMIT = 2**31 - 1
"""Bytes: the longest array of a browser, into which Perfetto's page reads the trace."""
_TRACE_NAME = "rankscope.perfetto-trace"
_CORS = {"Access-Control-Allow-Origin": ORIGIN, "Vary": "Origin"}
_PREFLIGHT = {"Access-Control-Allow-Methods": "GET", "Access-Control-Allow-Private-Network": "true"}
NAMES = ("trace_processor_shell", "trace_processor")
DOWNLOAD = "https://get.perfetto.dev/trace_processor"
_POLL_SECONDS = 0.1
_ENDING_SECONDS = 5.0


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
        is_trace = request.method == "GET" and hmac.compare_digest(path, self._path.encode())
        if not is_trace or request.headers.get("origin", ORIGIN) != ORIGIN:
            return Response(status_code=404)
        return FileResponse(
            self._trace, media_type="application/octet-stream", headers={**_CORS, "Cache-Control": "no-store"}
        )


def find_trace_processor(given: str | None) -> str | None:
    """The program the user named, else the one on PATH; None if there is none."""
    if given is None:
        return next(filter(None, map(shutil.which, NAMES)), None)
    program = shutil.which(given)
    if program is None:
        raise ToolError(
            f"there is no program {given}",
            why="It is needed to show a trace that is too large for a browser.",
            hint=f"Download it from {DOWNLOAD} and make it executable.",
        )
    return program


class TraceProcessor:
    """A trace_processor that serves one trace to Perfetto's page."""

    def __init__(self, program: str, trace: Path, port: int) -> None:
        self._program = program
        self._port = port
        self._process = subprocess.Popen(
            [program, "--httpd", "--http-port", str(port), str(trace)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # its messages are on stderr
        )

    @property
    def url(self) -> str:
        """Another port than Perfetto's own works only where its page has the flag "Relax CSP"."""
        return ORIGIN if self._port == PORT else f"{ORIGIN}/#!/?rpc_port={self._port}"

    def wait_until_ready(self) -> None:
        """It answers when it has read the trace, which takes seconds for each GB."""
        while self._process.poll() is None:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
                return
            time.sleep(_POLL_SECONDS)
        self.wait()

    def wait(self) -> None:
        """Wait until it ends by itself, which is an error."""
        code = self._process.wait()
        raise RankscopeError(
            f"{self._program} ended with {code}",
            why="Its own message is above.",
            hint="Choose a part of the run: --ranks 0-3 --steps A:B",
        )

    def end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def trace_processor(program: str, trace: Path, port: int) -> Iterator[TraceProcessor]:
    """Runs it for the time of the block."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))  # in use: an OSError here rather than a message of its own
    running = TraceProcessor(program, trace, port)
    try:
        running.wait_until_ready()
        yield running
    finally:
        running.end()
