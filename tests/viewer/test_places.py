"""Where a user has been, and where others are led: Back and Forward, rows of SQL, the command that opens a view.

And that the page has no obstacle for screen readers."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from conftest import DATA, ROOT
from rankscope.viewer.address import checked_link
from viewer_server import Screen, Viewer, browser_program, serve, stop

pytestmark = pytest.mark.slow

AXE = ROOT / ".venv/js/node_modules/axe-core/axe.min.js"
"""Fetched by tests/viewer/check-js.sh."""


def window(screen: Screen) -> tuple[int, int]:
    view = screen.view()
    return view["begin"], view["end"]


def wheel(screen: Screen, turns: int) -> None:
    box = screen.page.locator("#canvas").bounding_box()
    screen.page.mouse.move(box["x"] + 700, box["y"] + 60)
    screen.page.keyboard.down("Control")
    for _ in range(turns):
        screen.page.mouse.wheel(0, -60)
    screen.page.keyboard.up("Control")
    screen.settle()


def test_back_undoes_a_zoom_as_a_whole_and_forward_repeats_it(slow2: Viewer, screen: Screen) -> None:
    page = screen.open(slow2.url).page
    screen.link()
    entries = page.evaluate("history.length")
    first = window(screen)
    wheel(screen, 6)
    screen.until("window.rankscope.store.moved === false")  # the view rests
    near = window(screen)
    assert near[1] - near[0] < 0.5 * (first[1] - first[0])
    page.click("#tab-kernels")
    slice = slow2.ask("find", name="aten::mm", at=40_000_000, rank=2)[1]["found"]
    page.evaluate("(s) => window.rankscope.goTo(s)", slice)
    screen.settle()
    chosen = window(screen)
    assert page.evaluate("history.length") == entries + 3  # not one for each turn of the wheel
    seen = []
    for go in (page.go_back, page.go_back, page.go_back, page.go_forward, page.go_forward, page.go_forward):
        go()
        screen.settle()
        view = screen.view()
        seen.append((window(screen), view["tab"], view["slice"] is not None))
    assert seen == [
        (near, "kernels", False),
        (near, "findings", False),
        (first, "findings", False),
        (near, "findings", False),
        (near, "kernels", False),
        (chosen, "selection", True),
    ]
    link = screen.link()
    page.reload()
    page.wait_for_selector("body[data-ready=true]", timeout=60_000)
    assert screen.link() == link and window(screen) == chosen


def test_back_keeps_theme_and_frame_and_undoes_a_drag(slow2: Viewer, screen: Screen) -> None:
    page = screen.open(slow2.url).page
    screen.link()
    entries = page.evaluate("history.length")
    box = page.locator("#canvas").bounding_box()
    page.mouse.move(box["x"] + 400, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 700, box["y"] + 60, steps=8)
    page.mouse.up()
    screen.until("window.rankscope.store.moved === false && window.rankscope.store.view.area !== null")
    assert page.evaluate("history.length") == entries + 1
    page.click("#dock-button")
    screen.press("t")
    theme = page.evaluate("document.documentElement.dataset.theme")
    screen.link()
    page.go_back()
    screen.until("window.rankscope.store.view.area === null")
    assert (screen.view()["dock"], screen.view()["theme"]) == ("right", theme)


def ask_sql(screen: Screen, sql: str) -> Any:
    screen.page.click("#tab-sql")
    screen.page.fill("#panel textarea", sql)
    with screen.page.expect_response(re.compile("/api/query")):
        screen.page.keyboard.press("Control+Enter")
    screen.settle()
    return screen.page.locator("#panel tbody tr")


def test_a_row_of_sql_leads_to_its_slice(slow2: Viewer, screen: Screen) -> None:
    """By its id, with the mouse and by keyboard; without one, by time and rank."""
    page = screen.open(slow2.url).page
    where = "FROM slices WHERE name LIKE 'nvjet%' AND rank = 2 ORDER BY start_ns LIMIT 3"
    rows = ask_sql(screen, f"SELECT rank, segment, id, name, start_ns {where}")
    wanted = [row[0] for row in slow2.ask("query", sql=f"SELECT id {where}")[1]["rows"]]
    rows.nth(1).click()
    screen.until(f"window.rankscope.store.view.slice?.id === {wanted[1]}")
    assert screen.view()["tab"] == "sql" and window(screen)[1] - window(screen)[0] < 20_000_000
    rows.nth(2).focus()
    page.keyboard.press("Enter")
    screen.until(f"window.rankscope.store.view.slice?.id === {wanted[2]}")
    page.go_back()
    screen.until(f"window.rankscope.store.view.slice?.id === {wanted[1]}")
    # No id: the time, on its rank.
    rows = ask_sql(screen, "SELECT rank, start_ns, dur_ns FROM steps WHERE rank = 3 AND step = 6")
    ((start, long),) = slow2.ask(
        "query", sql="SELECT start_ns, dur_ns FROM steps WHERE rank = 3 AND step = 6"
    )[1]["rows"]
    rows.first.click()
    screen.until("window.rankscope.store.view.open.includes(3)")
    begin, end = window(screen)
    assert begin <= start and start + long <= end < begin + 1.5 * long
    # What has no place leads nowhere.
    assert ask_sql(screen, "SELECT count(*) AS many FROM steps").first.get_attribute("data-go") is None


def test_a_colleague_opens_the_same_view(
    slow2: Viewer, screen: Screen, tmp_path: Path, chromium: Any
) -> None:
    """The command of the dialog, in another server that has read the files anew into another store."""
    page = screen.open(slow2.url).page
    slice = slow2.ask("find", name="aten::mm", at=60_000_000, rank=1)[1]["found"]
    page.evaluate("(s) => window.rankscope.goTo(s)", slice)
    page.evaluate(f'window.rankscope.marks.set([{{ at: {slice["start_ns"]}, name: "it\'s, here" }}])')
    page.click("#dock-button")
    screen.press("t")
    page.click("#share-button")
    command, place = page.locator("#share code").all_inner_texts()
    shown = screen.view()
    program, verb, path, at, link = shlex.split(command)
    assert (program, verb, Path(path), at, link) == (
        "rankscope",
        "view",
        slow2.folder.resolve(),
        "--at",
        place,
    )
    assert checked_link(link) == link
    token, port = slow2.server.address.token, str(slow2.server.address.port)
    assert not re.search(f"{token}|{port}|theme|dock|size", command)
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    for file in slow2.folder.glob("rank-*"):
        os.link(file, copy / file.name)
    other = serve(copy)
    context = chromium.new_context(viewport={"width": 1400, "height": 820})
    theirs = Screen(context.new_page(), []).open(other.url + link)
    view = theirs.view()
    same = ("begin", "end", "open", "slice", "tab", "marks", "finding", "folds")
    assert [view[name] for name in same] == [shown[name] for name in same] and view["dock"] == "bottom"
    theirs.until("window.rankscope.panels.slice?.compared")
    theirs_slice = theirs.page.evaluate("window.rankscope.panels.slice")
    assert (theirs_slice["name"], theirs_slice["start_ns"]) == (slice["name"], slice["start_ns"])
    context.close()
    stop(other)


def test_marks_that_were_kept_are_shown_to_the_next_who_opens_the_run(screen: Screen, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for file in (DATA / "seqpar-gloo4-slow2").glob("rank-*"):
        os.link(file, run / file.name)
    viewer = serve(run)
    page = screen.open(viewer.url).page
    page.evaluate("window.rankscope.marks.set([{ at: 60000000, name: 'here it begins' }])")
    screen.press("Shift+M")
    page.click("#marks button:has-text('Keep beside the run')")
    page.wait_for_selector("#marks [role=status]")
    assert len(list(run.glob("*.marks.rankscope.json"))) == 1
    page.goto("about:blank")
    screen.open(viewer.url)
    screen.until("window.rankscope.store.view.marks.length === 1")
    assert screen.view()["marks"] == [{"at": 60_000_000, "name": "here it begins"}]
    stop(viewer)


def test_why_waiting_is_more_than_what_mending_saves(slow2: Viewer, screen: Screen) -> None:
    screen.open(slow2.url)
    text = screen.page.inner_text("#panel .why")
    assert re.match(r"Others wait up to 1\d\.\d ms here; mending saves \d+\.\d ms a step\.", text)


@pytest.fixture
def axe() -> str:
    if browser_program() is None or not AXE.exists():
        pytest.skip("needs axe-core: tests/viewer/check-js.sh fetches it from npm")
    return AXE.read_text(encoding="utf-8")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_serious_obstacle_on_the_first_screen(theme: str, slow2: Viewer, screen: Screen, axe: str) -> None:
    page = screen.open(slow2.url).page
    if theme == "dark":
        screen.press("t")
    page.evaluate(axe)
    result = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    serious = [
        (problem["id"], [node["html"][:120] for node in problem["nodes"]])
        for problem in result["violations"]
        if problem["impact"] in ("serious", "critical")
    ]
    assert serious == []
