"""The panel's tabs and marks in a real headless browser."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from conftest import DATA
from viewer_server import Screen, Viewer, serve, stop

pytestmark = pytest.mark.slow

# Of every text of a chart, whether it is inside the chart's own box.
CLIPPED = """() => [...document.querySelectorAll('#panel svg.chart, #panel svg.drawn')].flatMap((svg) => {
  const box = svg.getBoundingClientRect();
  return [...svg.querySelectorAll('text')].filter((text) => {
    const own = text.getBoundingClientRect();
    return own.left < box.left - 1 || own.right > box.right + 1 || own.top < box.top - 1 || own.bottom > box.bottom + 1;
  }).map((text) => text.textContent);
})"""


@pytest.fixture(scope="module")
def gpt() -> Iterator[Viewer]:
    """One GPU, with shapes and memory."""
    viewer = serve(DATA / "gpt-h200")
    yield viewer
    stop(viewer)


def open_tab(screen: Screen, name: str) -> Any:
    screen.page.click(f"#tab-{name}")
    screen.panel()
    return screen.page.locator("#panel")


def drag(screen: Screen, from_: tuple[float, float], to: tuple[float, float]) -> None:
    box = screen.page.locator("#canvas").bounding_box()
    screen.page.mouse.move(box["x"] + from_[0], box["y"] + from_[1])
    screen.page.mouse.down()
    screen.page.mouse.move(box["x"] + to[0], box["y"] + to[1], steps=5)
    screen.page.mouse.up()
    screen.settle()


def test_findings_have_a_list_a_text_with_commands_and_the_collective(slow2: Viewer, screen: Screen) -> None:
    screen.open(slow2.url)
    panel = open_tab(screen, "findings")
    rows = panel.locator("table.wrapping tbody tr")
    assert rows.count() == len(slow2.ask("findings")[1]["findings"])
    assert rows.first.get_attribute("aria-selected") == "true"
    commands = panel.locator(".command code").all_inner_texts()
    assert commands and all(str(slow2.folder) in text for text in commands)
    peers = panel.locator("table", has_text="Arrives").last
    assert "Waits (ms)" in peers.inner_text() and "Transfers" in peers.inner_text()
    assert peers.locator("tbody tr").count() == 4
    assert peers.locator("tr.hot td").first.inner_text() == "2"
    rows.nth(1).click()
    screen.until("window.rankscope.store.view.finding === 1")
    screen.until("document.querySelectorAll('#panel table.wrapping tbody tr')[1].className === 'chosen'")


def test_a_command_is_copied_as_it_is(slow2: Viewer, screen: Screen) -> None:
    screen.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    screen.open(slow2.url)
    row = open_tab(screen, "findings").locator(".command").first
    row.locator("button").click()
    screen.until("document.querySelector('#panel .command button').textContent === 'Copied'")
    assert screen.page.evaluate("navigator.clipboard.readText()") == row.locator("code").inner_text()


def test_events_are_a_virtual_table_in_step_with_the_timeline(slow2: Viewer, screen: Screen) -> None:
    page = screen.open(slow2.url).page
    page.keyboard.press("Home")
    panel = open_tab(screen, "events")
    screen.until("window.rankscope.panels.events.count > 1000")
    assert panel.locator("tbody tr").count() < 60  # of thousands
    # Longest first, by its heading, which names the unit.
    panel.locator("th", has_text="Duration").locator("button").click()
    screen.until("window.rankscope.panels.events.descending")
    screen.until(
        "document.querySelector('#panel .events th[aria-sort=descending]')?.textContent.includes('(ms)')"
    )
    screen.until("window.rankscope.panels.events.pages.get(0)?.[0].dur_ns > 1e6")
    # A row selects its slice; the tab stays.
    panel.locator("tbody tr").nth(2).click()
    screen.until("window.rankscope.store.view.slice !== null")
    assert screen.view()["tab"] == "events"
    screen.until("document.querySelector('#panel tr.chosen') !== null")
    # Scrolling asks for what is there.
    page.evaluate("document.querySelector('#panel .events').scrollTop = 24 * 900")
    screen.until("window.rankscope.panels.events.pages.has(9)")
    # A slice that is chosen elsewhere is scrolled to.
    page.evaluate("window.rankscope.goTo(window.rankscope.panels.events.pages.get(0)[5], { stay: true })")
    screen.until("document.querySelector('#panel .events').scrollTop < 24 * 20")
    screen.until("document.querySelector('#panel tr.chosen') !== null")
    # The filter, then a shorter window.
    page.fill("#panel input[type=search]", "reduce_scatter")
    screen.until("window.rankscope.panels.events.count < 200 && window.rankscope.panels.events.count > 0")
    count = page.evaluate("window.rankscope.panels.events.count")
    begin = screen.view()["begin"]
    page.evaluate(f"window.rankscope.show({begin}, {begin + 20_000_000})")
    screen.until(f"window.rankscope.panels.events.count < {count}")


def test_a_dragged_box_is_summed_up(slow2: Viewer, screen: Screen) -> None:
    page = screen.open(slow2.url).page
    drag(screen, (400, 90), (700, 90))
    screen.until("document.querySelector('#panel').innerText.includes('On the device')")
    view = screen.view()
    assert view["tab"] == "area" and view["area"][1] > view["area"][0] and view["box"] == []
    for by in ("track", "rank", "category", "name"):
        page.select_option("#panel select", by)
        screen.until(
            f"document.querySelector('#panel th')?.textContent.toLowerCase() === {by.replace('track', 'rank')!r}"
        )
    # Over several rows: only these tracks.
    drag(screen, (400, 60), (700, 110))
    screen.until("window.rankscope.store.view.box.length > 0")
    screen.until("document.querySelector('#panel').innerText.includes('track')")
    assert "Selected" in screen.panel()


def test_a_flame_graph_can_be_searched_focused_and_inverted(slow2: Viewer, screen: Screen) -> None:
    page = screen.open(slow2.url).page
    panel = open_tab(screen, "flame")
    page.wait_for_selector("#panel svg.chart g")
    assert "all ranks merged" in panel.locator("select[aria-label=Rank]").inner_text()
    page.fill("#panel input[type=search]", "aten::mm")
    screen.until("/%/.test(document.querySelector('#panel [role=status]').textContent)")
    panel.locator("svg.chart g[role=treeitem]").nth(1).click()
    screen.until("document.querySelectorAll('#panel .crumbs button').length === 2")
    panel.locator(".crumbs button").first.click()
    whole = panel.locator("svg.chart g title").first.text_content()
    page.check("#panel input[type=checkbox]")
    screen.until("document.querySelector('#panel svg.chart g title')?.textContent.startsWith('all')")
    assert panel.locator("svg.chart g title").first.text_content().split(",")[0] == whole.split(",")[0]
    page.uncheck("#panel input[type=checkbox]")
    page.select_option("#panel select[aria-label=time]", "device")
    screen.until("document.querySelector('#panel select[aria-label=time]').value === 'device'")
    page.select_option("#panel select[aria-label=Rank]", "2")
    screen.until("window.rankscope.panels.rank === 2")
    assert page.evaluate(CLIPPED) == []


def test_a_flame_graph_opens_on_python_functions_where_there_are_stacks(
    slow2: Viewer, screen: Screen
) -> None:
    stacks = serve(DATA / "gpt-h200-stack")
    for viewer, kind in ((stacks, "python"), (slow2, "op")):
        page = screen.open(viewer.url + "#v=1&tab=flame").page
        page.wait_for_selector("#panel svg.chart g")
        assert page.input_value("#panel select[aria-label=by]") == kind
    stop(stacks)


def test_a_flame_graph_of_two_runs_shows_the_change(slow2: Viewer, screen: Screen) -> None:
    viewer = serve(DATA / "seqpar-gloo4", slow2.folder)
    screen.open(viewer.url)
    panel = open_tab(screen, "flame")
    screen.page.wait_for_selector("#panel svg.chart g")
    titles = panel.locator("svg.chart g title").all_text_contents()
    assert any("was" in title for title in titles) and "longer than in A" in panel.inner_text()
    assert "color-mix" in (panel.locator("svg.chart").inner_html())
    stop(viewer)


def test_memory_is_drawn_as_steps_with_its_peak(gpt: Viewer, screen: Screen) -> None:
    screen.open(gpt.url)
    panel = open_tab(screen, "memory")
    screen.page.wait_for_selector("#panel svg.drawn polyline", state="attached")
    line = panel.locator("svg.drawn polyline").last.get_attribute("points")
    corners = [point.split(",") for point in line.split()]
    assert len(corners) > 10 and all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(corners))
    assert "peak" in panel.inner_text() and "Allocated at the peak" in panel.inner_text()
    assert screen.page.evaluate(CLIPPED) == []


@pytest.mark.parametrize("width", [1440, 1000])
def test_the_roofline_has_roofs_and_labels_that_do_not_clip(gpt: Viewer, screen: Screen, width: int) -> None:
    screen.page.set_viewport_size({"width": width, "height": 900})
    screen.open(gpt.url)
    panel = open_tab(screen, "roofline")
    screen.page.wait_for_selector("#panel svg.drawn circle")
    text = panel.locator("svg.drawn").text_content()
    assert "TFLOP/s" in text and "memory 4,800 GB/s" in text and "ridge" in text
    assert screen.page.evaluate(CLIPPED) == []


def test_tables_name_their_units_and_lead_to_slices(slow2: Viewer, screen: Screen) -> None:
    screen.open(slow2.url)
    panel = open_tab(screen, "kernels")
    assert "(ms)" in panel.locator("thead").inner_text()
    cells = panel.locator("tbody tr").first.locator("td").all_inner_texts()
    assert not any(cell.endswith((" ms", " µs", " s")) for cell in cells)
    panel.locator("tbody tr").first.click()
    screen.until("window.rankscope.store.view.slice !== null")
    assert screen.view()["tab"] == "kernels"
    panel.locator("input[type=search]").fill("no such kernel")
    assert panel.locator("tbody tr").count() == 0
    for tab, text in {"ops": "copy_", "collectives": "reduce_scatter", "reports": "Breakdown"}.items():
        assert text.lower() in open_tab(screen, tab).inner_text().lower()


def test_marks_have_names_and_stay_in_the_address(slow2: Viewer, screen: Screen) -> None:
    page = screen.open(slow2.url).page
    box = page.locator("#canvas").bounding_box()
    page.mouse.move(box["x"] + 600, box["y"] + 100)
    page.keyboard.press("m")
    page.wait_for_selector("#marks[open] input")
    screen.until("document.activeElement.selectionEnd > document.activeElement.selectionStart")
    page.keyboard.type("here, it waits")
    page.keyboard.press("Enter")
    (mark,) = screen.view()["marks"]
    assert mark["name"] == "here, it waits" and not page.is_visible("#marks")
    link = screen.link()
    page.goto("about:blank")
    screen.open(link)
    assert screen.view()["marks"] == [mark]
    page.keyboard.press("Shift+M")
    page.click("#marks button:has-text('Keep beside the run')")
    page.wait_for_selector("#marks [role=status]")
    (file,) = slow2.folder.glob("*.marks.rankscope.json")
    assert json.loads(file.read_text())["marks"] == [{"at_ns": mark["at"], "name": mark["name"]}]
    page.click("#marks button:has-text('Remove')")
    assert screen.view()["marks"] == []
    page.click("#marks button:has-text('Show')")
    assert screen.view()["marks"] == [mark]
    file.unlink()


@pytest.mark.parametrize(("width", "dock"), [(1440, "bottom"), (1000, "bottom"), (1440, "right")])
def test_no_tab_overflows(slow2: Viewer, screen: Screen, width: int, dock: str) -> None:
    page = screen.page
    page.set_viewport_size({"width": width, "height": 800})
    screen.open(slow2.url)
    if dock == "right":
        page.click("#dock-button")
    for tab in page.locator("#tabs button").all():
        tab.click()
        screen.panel()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        outer = "document.querySelector('#panel')"
        assert page.evaluate(f"{outer}.scrollWidth <= {outer}.clientWidth + 1"), tab.inner_text()


TABS = ("findings", "events", "area", "flame", "kernels", "collectives", "memory", "roofline")


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_no_serious_fault_for_readers_of_the_page(
    slow2: Viewer, screen: Screen, accessibility_faults: Callable[[Any], list[str]], colours: str
) -> None:
    screen.page.emulate_media(color_scheme=colours)
    screen.open(slow2.url)
    found = {}
    for name in TABS:
        open_tab(screen, name)
        found[name] = accessibility_faults(screen.page)
    assert found == {name: [] for name in TABS}
