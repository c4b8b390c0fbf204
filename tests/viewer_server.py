"""A running viewer, and its page in a browser, for the tests in tests/viewer.

Not in their conftest.py: a module of that folder would be looked for in benchmarks/viewer.py.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from rankscope.store.ingest import Options
from rankscope.viewer.address import Address
from rankscope.viewer.server import Server
from rankscope.viewer.startup import Opening


@dataclass
class Viewer:
    """A running server."""

    server: Server
    folder: Path
    opening: Opening
    serving: threading.Thread

    @property
    def url(self) -> str:
        return self.server.address.url

    def ask(self, route: str, headers: dict[str, str] | None = None, /, **query: Any) -> tuple[int, Any]:
        """Status and answer of an API route; columns come as JSON."""
        words = urlencode({"token": self.server.address.token, "format": "json", **query})
        return self.get(f"/api/{route}?{words}", headers)

    def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        base = "http://" + urlsplit(self.server.address.url).netloc
        request = urllib.request.Request(base + path, headers=headers or {})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, _content(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _content(error.read())


def _content(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body


_STORES = tempfile.TemporaryDirectory(prefix="rankscope-viewer-")  # nothing is written into tests/data


def browser_program() -> str | None:
    """The browser that tests/install-packages.sh installs, or another."""
    names = ("chromium-headless-shell", "chromium", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


def serve(*runs: Path) -> Viewer:
    opening = Opening(list(runs), lambda: Options(cache=Path(_STORES.name)), lambda text: None)
    viewer = watched(Server(Address("127.0.0.1", 0), opening.routes()), runs[0], opening)
    opening.start()
    assert opening.wait(60)
    return viewer


def watched(server: Server, folder: Path, opening: Opening) -> Viewer:
    """The server, serving in a thread."""
    serving = threading.Thread(target=server.serve, daemon=True)
    serving.start()
    return Viewer(server, folder, opening, serving)


def stop(viewer: Viewer) -> None:
    viewer.server.stop()
    viewer.serving.join(10)
    viewer.opening.close()


# Pairs of labels whose boxes meet; a pixel is rounding.
OVERLAPS = """() => {
  const { boxes } = window.rankscope.timeline.labels;
  const before = (a, b) => a.x + a.width <= b.x + 1 || a.y + a.height <= b.y + 1;
  const apart = (a, b) => before(a, b) || before(b, a);
  return boxes.flatMap((a, at) => boxes.slice(at + 1).filter((b) => !apart(a, b)).map((b) => [a.text, b.text]));
}"""
# What the page asks for and has not got yet; it runs before the scripts of the page.
COUNT_REQUESTS = """
window.asked = 0;
const request = window.fetch;
window.fetch = (...words) => { window.asked++; return request(...words).finally(() => { window.asked--; }); };
"""
SETTLED = """() => new Promise((done, fail) => {
  const last = performance.now() + 60_000;
  let calm = 0; // frames one after the other in which nothing is drawn or awaited
  const look = () => {
    const { timeline } = window.rankscope;
    calm = timeline.pending || timeline.tiles.busy || window.asked ? 0 : calm + 1;
    if (calm > 3) done();
    else if (performance.now() > last) fail(new Error(`still drawing, or awaiting ${window.asked} answers`));
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})"""


@dataclass
class Screen:
    """One page, and what went wrong on it."""

    page: Any
    troubles: list[str]
    expected: str = "nothing of the kind"
    """A word of the troubles that the test is about; they may come late."""

    def open(self, url: str) -> Screen:
        self.page.goto(url)
        self.page.wait_for_selector("body[data-ready=true]", timeout=60_000)
        self.settle()
        return self

    def settle(self) -> None:
        """Until everything that is wanted is drawn."""
        self.page.evaluate(SETTLED)

    def until(self, expression: str, seconds: float = 60) -> None:
        """Asked again and again from outside: the page itself may not evaluate text (its CSP)."""
        deadline = time.monotonic() + seconds
        while not self.page.evaluate(expression):
            assert time.monotonic() < deadline, f"never became true: {expression}"
            self.page.wait_for_timeout(50)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()

    def link(self) -> str:
        """The address, which follows the view."""
        view = "window.rankscope.store.view"
        self.until(f"async () => (await import('/js/state.js')).encode({view}) === location.hash")
        return str(self.page.evaluate("location.href"))

    def view(self) -> dict[str, Any]:
        state: dict[str, Any] = self.page.evaluate("window.rankscope.store.view")
        return state

    def panel(self) -> str:
        self.page.wait_for_selector("#panel[aria-busy=false]", timeout=30_000)
        return str(self.page.inner_text("#panel"))
