"""Viewers that an assistant can show something in: one that the user has started, or one that is started here."""

from __future__ import annotations

import contextlib
import threading
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

from rankscope.errors import RankscopeError, UsageError
from rankscope.viewer.address import checked_link

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_SECONDS = 10


class Viewers:
    """By the path of the run."""

    def __init__(self, cache: Path | None) -> None:
        self._cache = cache
        self._addresses: dict[Path, str] = {}
        self._started: list[_Started] = []

    def show(self, run: Path, link: str, address: str | None) -> tuple[str, bool]:
        """The address of a page at this place, and whether pages that are open were moved there.

        `address` is that of a viewer that runs: what `rankscope view` has printed. It is remembered.
        """
        checked_link(link)
        if address is not None:
            address = _checked_address(address)
            _move(address, link)
            self._addresses[run] = address
            return f"{address}{link}", True
        known = self._addresses.pop(run, None)
        if known is not None:
            with contextlib.suppress(RankscopeError):  # it has ended: another is started
                _move(known, link)
                self._addresses[run] = known
                return f"{known}{link}", True
        started = _Started(run, self._cache)
        self._started.append(started)
        self._addresses[run] = started.url
        return f"{started.url}{link}", False

    def close(self) -> None:
        for started in self._started:
            started.stop()


class _Started:
    """A viewer in threads of this process."""

    def __init__(self, run: Path, cache: Path | None) -> None:
        from rankscope.store.ingest import Options
        from rankscope.viewer.address import Address
        from rankscope.viewer.server import Server
        from rankscope.viewer.startup import Opening

        self._opening = Opening([run], Options(cache=cache), lambda text: None)
        address = Address("127.0.0.1", 0)
        self._server = Server(address, self._opening.routes())
        self._serving = threading.Thread(target=self._server.serve, daemon=True)
        self._opening.start()
        self._serving.start()
        self.url = address.url

    def stop(self) -> None:
        self._server.stop()
        self._serving.join(_SECONDS)
        self._opening.wait(_SECONDS)
        self._opening.close()


def _checked_address(text: str) -> str:
    """The address of a viewer of this machine, without a place."""
    parts = urlsplit(text)
    if parts.scheme != "http" or parts.hostname not in _LOOPBACK or not parse_qs(parts.query).get("token"):
        raise UsageError(
            f"'{text[:80]}' is not the address of a viewer of this machine",
            why="It is like http://127.0.0.1:PORT/?token=…",
            hint="Give the whole line that `rankscope view` printed, or none: then a viewer is started.",
        )
    return text.partition("#")[0]


def _move(address: str, link: str) -> None:
    parts = urlsplit(address)
    headers = {"X-Rankscope-Token": parse_qs(parts.query)["token"][0]}
    url = f"http://{parts.netloc}/api/move?{urlencode({'link': link})}"
    request = urllib.request.Request(url, method="POST", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS):
            pass
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise RankscopeError(
            f"the viewer at {parts.netloc} cannot be moved",
            why=f"{error}.",
            hint="Start it again (rankscope view RUN) and give its address, or give none.",
        ) from error
