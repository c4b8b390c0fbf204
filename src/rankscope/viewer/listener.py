"""One way to serve HTTP for all pages: uvicorn, with limits on what a client can hold.

A client has a deadline for its request and for taking the answer, requests have no body but at one address, and when
there are too many connections the one that has waited longest without a request is closed. So half-open and slow
clients cannot keep others out.
"""

from __future__ import annotations

import asyncio
import logging

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn import Config
from uvicorn import Server as Uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from rankscope.viewer.address import PROGRESS_SECONDS, WAITING_CLIENTS, Address

DEADLINE_SECONDS = PROGRESS_SECONDS
MOST_CONNECTIONS = 200
MOST_HEADER_BYTES = 64 * 1024
"""Also of the address: SQL is sent in it."""
MOST_HEADERS = 100
_STOPPING_SECONDS = 2


class Listener:
    """The server behind an address."""

    def __init__(self, app: ASGIApp, address: Address, taking: str = "") -> None:
        """`taking`: the path of requests that may have a body."""
        self.address = address
        config = Config(
            _with_limits(app, taking),
            http=_Connection,
            loop="asyncio",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=WAITING_CLIENTS,
            h11_max_incomplete_event_size=MOST_HEADER_BYTES,
            timeout_graceful_shutdown=_STOPPING_SECONDS,
        )
        self._uvicorn = Uvicorn(config)

    def serve(self) -> None:
        """Until Ctrl-C, or until `stop` is called."""
        log = logging.getLogger("uvicorn")  # the terminal belongs to the user
        log.addHandler(logging.NullHandler())
        log.propagate = False
        try:
            asyncio.run(self._serve())
        finally:
            self.address.socket.close()

    async def _serve(self) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        await self._uvicorn.serve(sockets=[self.address.socket])

    def stop(self) -> None:
        """From any thread; requests in progress have two seconds."""
        self._uvicorn.should_exit = True


class _Connection(H11Protocol):
    """One client."""

    _answered = 0
    _resumed = 0
    """How often the client has taken enough of an answer for more to be written."""
    _before: tuple[int, int, int] | None = None
    """Answers, resumptions, and bytes not taken yet, when the connection was last looked at."""
    _look: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._opened = self.loop.time()
        self._look_later()
        if len(self.connections) > MOST_CONNECTIONS:
            waiting = [
                each for each in self.connections if isinstance(each, _Connection) and each._is_waiting
            ]
            min(waiting, key=lambda each: each._opened, default=self).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._look.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # nonsense, while an answer is being sent
            self.transport.abort()

    def on_response_complete(self) -> None:
        self._answered += 1
        super().on_response_complete()

    def resume_writing(self) -> None:
        self._resumed += 1
        super().resume_writing()

    @property
    def _is_waiting(self) -> bool:
        """No request has arrived that is not answered."""
        return self.cycle is None or self.cycle.response_complete

    def _look_later(self) -> None:
        self._look = self.loop.call_later(DEADLINE_SECONDS, self._close_without_progress)

    def _close_without_progress(self) -> None:
        not_taken = self.transport.get_write_buffer_size()
        now = (self._answered, self._resumed, not_taken)
        if now == self._before and (self._is_waiting or not_taken):
            self.transport.abort()
        else:
            self._before = now
            self._look_later()


def _with_limits(app: ASGIApp, taking: str) -> ASGIApp:
    async def limited(scope: Scope, receive: Receive, send: Send) -> None:
        headers = scope["headers"]
        size = len(scope["query_string"]) + sum(len(name) + len(value) for name, value in headers)
        names = {name for name, _ in headers}
        has_body = b"transfer-encoding" in names or any(
            value.strip() != b"0" and scope["path"] != taking
            for name, value in headers
            if name == b"content-length"
        )
        if size > MOST_HEADER_BYTES or len(headers) > MOST_HEADERS:
            await _refuse(send, 431)
        elif has_body:
            await _refuse(send, 413)
        else:
            await app(scope, receive, send)

    return limited


async def _refuse(send: Send, status: int) -> None:
    """An answer without content; the connection ends, so the rest of the request is not read."""
    headers = [(b"connection", b"close"), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
