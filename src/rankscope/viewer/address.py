"""Where a page is served: a listening socket and its token, and the end of its address, which holds the page's state
(static/js/state.js). It imports little: the address is printed at once."""

from __future__ import annotations

import re
import secrets
import socket
from dataclasses import asdict
from typing import Any

from rankscope.errors import UsageError
from rankscope.records import dataclass

PROGRESS_SECONDS = 10.0
"""Clients without progress for this long, or at most twice as long, are left."""
MOST_DROPPED = 4 * 2**30
"""Bytes of the files that are dropped onto a page at once."""
WAITING_CLIENTS = 128
"""Of those that are not accepted yet."""
_LINK = re.compile(r"#v=1(?:&[a-z]+=[\w.,:%+*-]*)*")
_LONGEST = 16_000
"""A place can hold marks and SQL."""


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


def checked_link(link: str) -> str:
    """The link, if it can be part of the viewer's address."""
    if len(link) > _LONGEST or not _LINK.fullmatch(link):
        raise UsageError(
            f"'{link[:80]}' is not a place in the viewer",
            why="It begins with #v=1, as the end of the address of its page does.",
            hint="Findings have one in their JSON: link.",
        )
    return link


@dataclass(frozen=True)
class ViewLink:
    """The place that pages were last moved to."""

    number: int = 0
    """Counts the moves: a page follows those that come after it was opened."""
    link: str = ""

    def moved(self, link: str) -> ViewLink:
        return ViewLink(self.number + 1, checked_link(link))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
