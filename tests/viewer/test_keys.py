"""Keys, menus and pointers: each leads to what it says, wherever the focus is."""

from __future__ import annotations

import re
from typing import Any

import pytest

from viewer_server import Screen, Viewer

pytestmark = pytest.mark.slow

# Of the selected slice, whether its row is between the axis and the lower edge of the tracks.
SHOWN = """async () => {
  const { AXIS, trackKey } = await import('/js/layout.js');
  const { timeline, panels: { slice } } = window.rankscope, key = trackKey(slice.rank, slice);
  const row = timeline.layout().rows.find((each) => each.type === 'track' && trackKey(each.rank, each.track) === key);
  const top = row ? row.y - timeline.box.scrollTop : -1;
  return top >= 0 && top < timeline.box.clientHeight - AXIS;
}"""


def chosen(screen: Screen, count: str) -> Any:
    """Until the box of the search says so; the slice that is selected then."""
    screen.until(f"document.querySelector('#search-count').textContent === {count!r}")
    screen.settle()
    return screen.page.evaluate("window.rankscope.panels.slice")


def test_search_goes_to_the_first_hit_and_a_corrected_expression_has_no_error(
    slow2: Viewer, screen: Screen
) -> None:
    page = screen.open(slow2.url).page
    page.fill("#filter", "stream")  # which the op's track is not
    page.click("#search-regex")
    screen.expected = "400"
    page.keyboard.type("aten::(mm")
    page.wait_for_selector("#found:has-text('missing )')")
    page.keyboard.type(")$")
    page.wait_for_selector("#found li .note")
    assert "missing" not in page.inner_text("body") and not page.locator("#message").is_visible()
    page.keyboard.press("Enter")
    assert chosen(screen, "1 of 108")["name"] == "aten::mm"
    screen.until(SHOWN)
    assert "into step 2" in screen.panel()
    page.click("#search-regex")  # Enter goes to the first that is listed, not to the earliest of all names
    page.fill("#search", "e")
    page.wait_for_selector("#found li:nth-child(9)")
    listed = page.get_attribute("#found li", "title")
    page.focus("#search")
    page.keyboard.press("Enter")
    screen.until(f"window.rankscope.panels.slice?.name === {listed!r}")


def test_the_step_of_a_slice_is_that_of_its_own_rank(slow2: Viewer, screen: Screen) -> None:
    sql = (
        "SELECT s.rank, s.segment, s.id, s.start_ns, s.step FROM slices s JOIN steps first ON first.rank = 0 "
        "AND s.start_ns >= first.end_ns - first.time_ns AND s.start_ns < first.end_ns "
        "WHERE s.rank > 0 AND s.step <> first.step LIMIT 1"
    )
    ((rank, segment, id, start, step),) = slow2.ask("query", sql=sql)[1]["rows"]
    screen.open(f"{slow2.url}#v=1&t={start - 1000}-{start + 9000}&slice={rank}.{segment}.{id}&tab=selection")
    screen.until("document.querySelector('#panel').textContent.includes('Compared with')")
    text = screen.panel()
    assert re.findall(r"into step (\d+)", text) == [str(step)] and f"step\n{step}\n" in text


def test_rows_of_tables_lead_to_their_instances(slow2: Viewer, screen: Screen) -> None:
    page = screen.open(slow2.url).page
    for tab, title, count in (
        ("collectives", "Collectives", 24),
        ("kernels", "GPU kernels", 60),
        ("ops", "Operators", 108),
    ):
        page.click(f"#tab-{tab}")
        row = page.locator(f"#panel div:has(> h2:has-text('{title}')) tbody tr").first
        row.click()
        first = chosen(screen, f"1 of {count}")
        screen.until(SHOWN)
        row.click()
        second = chosen(screen, f"2 of {count}")
        assert (first["rank"], first["id"]) != (second["rank"], second["id"])
        assert screen.view()["tab"] == tab


def test_home_works_everywhere_and_the_menu_holds_its_labels(slow2: Viewer, screen: Screen) -> None:
    page = screen.open(slow2.url).page
    run = slow2.ask("run")[1]
    page.click("#tab-reports")
    page.wait_for_selector("#panel tbody tr")
    for place in ("#panel select", "#panel th button", "#search", "#filter", "#tracks"):
        page.evaluate("window.rankscope.show(1e6, 2e6)")
        page.focus(place)
        screen.press("Home")
        assert (screen.view()["begin"], screen.view()["end"]) == (run["begin_ns"], run["end_ns"]), place
    page.click("#tracks-button")
    outside = """() => [...document.querySelectorAll('#tracks-menu *')].filter((part) => {
      const box = document.querySelector('#tracks-menu').getBoundingClientRect(), own = part.getBoundingClientRect();
      return own.left < box.left || own.right > box.right;
    }).length"""
    assert page.evaluate(outside) == 0 and page.locator("#tracks-menu label").count() == 6
    page.keyboard.press("Escape")
    page.click("#dock-button")
    tops = page.evaluate("[...document.querySelectorAll('#tabs button')].map((tab) => tab.offsetTop)")
    assert len(set(tops)) == 1


def test_shift_drag_pans_and_a_tooltip_stays_with_its_slice(slow2: Viewer, screen: Screen) -> None:
    page = screen.open(slow2.url).page
    before = screen.view()
    box = page.locator("#canvas").bounding_box()
    x, y = box["x"] + 700, box["y"] + 190  # a wait of rank 0
    page.mouse.move(x, y)
    tooltip = page.locator("#tooltip")
    screen.until("!document.querySelector('#tooltip').hidden")
    assert "reduce_scatter" in tooltip.inner_text() and "into step 5" in tooltip.inner_text()
    page.evaluate("window.rankscope.show(0, 1e5)")  # nothing is there
    screen.until("document.querySelector('#tooltip').hidden")
    page.evaluate(f"window.rankscope.show({before['begin']}, {before['end']})")
    page.keyboard.down("Shift")
    page.mouse.down()
    page.mouse.move(x + 200, y, steps=4)
    page.mouse.up()
    page.keyboard.up("Shift")
    after = screen.view()
    assert after["begin"] < before["begin"] and after["area"] is None
    assert after["end"] - after["begin"] == pytest.approx(before["end"] - before["begin"], abs=2)


def test_times_count_from_the_step_and_sql_keeps_its_caret(slow2: Viewer, screen: Screen) -> None:
    page = screen.open(slow2.url).page
    screen.press("r")
    assert "axis=step" in page.evaluate(
        "(window.rankscope.store.set({ size: 300 }), new Promise((done) => setTimeout(() => done(location.hash), 400)))"
    )
    written = page.evaluate("""() => new Promise((done) => {
      const { timeline } = window.rankscope, g = timeline.canvas.getContext('2d'), write = g.fillText, texts = [];
      g.fillText = function (text, ...place) { texts.push(text); return write.call(this, text, ...place); };
      timeline.redraw();
      requestAnimationFrame(() => requestAnimationFrame(() => { delete g.fillText; done(texts); }));
    })""")
    assert any(text.startswith("step 5 ") for text in written) and "+2.00 ms" in written
    page.click("#tab-sql")
    page.fill("#panel textarea", "SELECT nme FROM gpu")
    page.keyboard.press("Control+Enter")
    screen.expected = "400"
    page.wait_for_selector("#panel pre")
    line, caret = page.inner_text("#panel pre").splitlines()[-2:]
    assert caret.index("^") == line.index("nme")
