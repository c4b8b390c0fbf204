"""A viewer over a small real run, asked by HTTP as a browser would."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import DATA
from viewer_server import COUNT_REQUESTS, Screen, Viewer, serve, stop


@pytest.fixture(scope="session")
def slow2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    """Four ranks over gloo, rank 2 slow."""
    folder = tmp_path_factory.mktemp("viewer") / "slow2"
    shutil.copytree(DATA / "seqpar-gloo4-slow2", folder)
    viewer = serve(folder)
    yield viewer
    stop(viewer)


@pytest.fixture
def screen(chromium: Any) -> Iterator[Screen]:
    """A fresh page of 1400 by 820; errors and requests that leave the machine fail the test."""
    context = chromium.new_context(viewport={"width": 1400, "height": 820})
    context.add_init_script(COUNT_REQUESTS)
    page = context.new_page()
    found = Screen(page, [])
    page.on(
        "console", lambda message: found.troubles.append(message.text) if message.type == "error" else None
    )
    page.on("pageerror", lambda error: found.troubles.append(str(error)))
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith(("http://127.0.0.1:", "data:"))
            else found.troubles.append(f"asked {request.url}")
        ),
    )
    yield found
    context.close()
    # A page asks every second where an assistant has moved it, also when the server of a test has just ended.
    usual = (found.expected, "ERR_CONNECTION_REFUSED")
    assert [trouble for trouble in found.troubles if not any(one in trouble for one in usual)] == []
