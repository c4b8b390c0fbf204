"""Where a page is served: a listening socket and its token. It imports little: the address is printed at once."""

from __future__ import annotations

import secrets
import socket

WAITING_CLIENTS = 128
"""Of those that are not accepted yet."""


class Address:
    """Clients can connect as soon as it exists; they are answered when a server takes it."""

    def __init__(self, host: str, port: int, token: str | None = None) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.socket = socket.create_server((host, port), family=family, backlog=WAITING_CLIENTS)
        self.host: str = self.socket.getsockname()[0]
        self.port: int = self.socket.getsockname()[1]
        self.token = token or secrets.token_urlsafe(16)

    @property
    def url(self) -> str:
        """Of the viewer's page."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.port}/?token={self.token}"
