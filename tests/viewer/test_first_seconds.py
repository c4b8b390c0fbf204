"""What the page shows before a run is open, and while a tab is loaded."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from conftest import DATA
from rankscope.store.ingest import Options
from rankscope.viewer.address import Address
from rankscope.viewer.server import Server
from rankscope.viewer.startup import Opening
from viewer_server import Screen, Viewer, stop, watched

pytestmark = pytest.mark.slow


def test_a_skeleton_and_the_phases_until_the_run_is_open(tmp_path: Path, screen: Screen) -> None:
    shutil.copytree(DATA / "hf-trainer-h200", tmp_path / "run")
    said: list[str] = []
    opening = Opening([tmp_path / "run"], Options, said.append)
    viewer = watched(Server(Address("127.0.0.1", 0), opening.routes()), tmp_path, opening)
    page = screen.page
    page.goto(viewer.url)
    phases = page.locator("#verdict .phases li")
    assert phases.all_inner_texts() == ["read", "link", "align clocks", "draw", "findings"]
    skeleton = page.locator("#tracks .skeleton")
    assert skeleton.bounding_box()["height"] > 300 and page.locator("#aside").bounding_box()["height"] > 250
    # Each phase that ends stays in the list, with its time, until the verdict takes its place.
    page.evaluate("""() => {
      window.phases = [];
      new MutationObserver(() => {
        window.phases.push([...document.querySelectorAll('#verdict .phases li')].map((item) => item.innerText));
      }).observe(document.querySelector('#verdict'), { childList: true });
    }""")
    opening.start()
    page.wait_for_selector("body[data-ready=true]", timeout=60_000)
    last = [phases for phases in page.evaluate("window.phases") if phases][-1]
    assert [re.sub(r" [\d.]+ s", "", phase) for phase in last] == [
        "read",
        "link",
        "align clocks",
        "draw",
        "findings",
    ]
    assert all(re.search(r" \d+\.\d s$", phase) for phase in last)
    assert not page.locator("#tracks .skeleton").is_visible() and phases.count() == 0
    assert len(said) == 1 and re.fullmatch(r"Read 1 file \(.*\) in \d+\.\d s; analysing", said[0])
    stop(viewer)


def test_no_tab_shows_the_content_of_another(slow2: Viewer, screen: Screen) -> None:
    page = screen.open(slow2.url).page
    page.click("#tab-kernels")
    page.wait_for_selector("#panel:has-text('nvjet')")
    held: list[Any] = []
    page.route(re.compile("name=ops"), lambda route: held.append(route))
    page.click("#tab-ops")
    screen.until("document.querySelector('#panel').innerText === 'Ops…'")
    while not held:
        page.wait_for_timeout(20)
    held[0].continue_()
    page.wait_for_selector("#panel td:has-text('mm')")
