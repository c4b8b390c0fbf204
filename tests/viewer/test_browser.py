"""The page in a real headless browser: what a user does, and what they then see."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from conftest import DATA, kernel_event, slice_event, write_kineto
from viewer_server import Screen, Viewer, serve, stop

pytestmark = pytest.mark.slow

# Where the page keeps the picture of a track: asked of the page itself, so tests do not depend on heights.
PLACE_OF = """async (slice) => {
  const { AXIS, LANE } = await import('/js/layout.js');
  const { timeline } = window.rankscope, { rows, pinsHeight } = timeline.layout();
  const row = rows.find((r) => r.type === 'track' && r.rank === slice.rank && r.track.track === slice.track);
  const box = timeline.canvas.getBoundingClientRect();
  const x = timeline.x(slice.start_ns + slice.dur_ns / 2, slice.rank);
  return [box.x + x, box.y + AXIS + pinsHeight + row.y + slice.depth * LANE + LANE / 2 - timeline.box.scrollTop];
}"""
# What the page writes on the canvas of the tracks, with the place of each text.
TEXTS = """() => new Promise((done) => {
  const { timeline } = window.rankscope;
  const g = timeline.canvas.getContext('2d'), write = g.fillText, texts = [];
  g.fillText = function (text, x, y) {
    texts.push([text, x, this.getTransform().f / devicePixelRatio + y]);
    return write.call(this, text, x, y);
  };
  timeline.redraw();
  requestAnimationFrame(() => requestAnimationFrame(() => { delete g.fillText; done(texts); }));
})"""


def texts(screen: Screen) -> list[str]:
    return [text for text, _, _ in screen.page.evaluate(TEXTS)]


def click_slice(screen: Screen, slice: dict[str, Any]) -> None:
    x, y = screen.page.evaluate(PLACE_OF, slice)
    screen.page.mouse.click(x, y)
    screen.settle()


def painted(screen: Screen) -> int:
    """How many colours the tracks show: an empty picture has few."""
    script = """() => {
      const canvas = document.querySelector('#canvas');
      const { data } = canvas.getContext('2d').getImageData(151, 20, canvas.width - 152, 300);
      return new Set(new Uint32Array(data.buffer)).size;
    }"""
    return int(screen.page.evaluate(script))


def test_the_first_picture(slow2: Viewer, screen: Screen) -> None:
    page = screen.open(slow2.url).page
    assert "4 ranks" in page.inner_text("#title") and "clocks ±" in page.inner_text("#title")
    assert re.search(r"\d+\.\d %", page.inner_text("#verdict"))
    assert painted(screen) > 5
    # The token has left the address bar; the cookie is enough.
    assert "token" not in page.url
    page.reload()
    page.wait_for_selector("body[data-ready=true]", timeout=60_000)


def test_it_opens_on_the_culprit(slow2: Viewer, screen: Screen) -> None:
    """Nothing is clicked: the slow kernels of rank 2 and the three reduce_scatters that wait for it, named."""
    page = screen.open(slow2.url).page
    heading = page.inner_text("#verdict h1")
    assert re.fullmatch(r"Rank 2 costs \d+\.\d ms per step \(\d+ %\)", heading)
    assert "slow_extra" in page.inner_text("#verdict p")
    assert re.search(r"fix saves \d+\.\d ms a step \(\d+ %\)", page.inner_text("#verdict .pill"))
    assert re.search("finding 1 of [3-9]", page.inner_text("#verdict .walk"))
    view = screen.view()
    assert (view["finding"], view["open"]) == (0, [2])
    screen.until("window.rankscope.timeline.strips.size === 4")
    written = texts(screen)
    waiting = [
        text for text in written if re.fullmatch(r"reduce_scatter #7 waits 1\d\.\d ms for rank 2", text)
    ]
    assert len(waiting) == 3
    assert len([text for text in written if text.startswith("nvjet")]) == 10
    assert any(text.startswith("slow_extra") for text in written)
    assert re.search(r"rank 2 arrives 1\d\.\d ms after the first", " | ".join(written))
    assert "▸ 18 more streams" in written and "stream 7" in written and "annotations" in written
    labels = [text for text in written if re.fullmatch(r"[▾▸] rank \d", text)]
    assert labels == ["▾ rank 2", "▸ rank 0", "▸ rank 1", "▸ rank 3"]
    # Waiting has a colour of its own in the map and in the tracks.
    for canvas in ("overview", "canvas"):
        assert shows_colour(screen, canvas, "wait") > 500, canvas


def shows_colour(screen: Screen, canvas: str, name: str) -> int:
    """How many pixels of a canvas have a colour of the palette."""
    script = """([id, name]) => {
      const canvas = document.getElementById(id), wanted = window.rankscope.palette[name];
      const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
      return new Uint32Array(data.buffer).filter((pixel) => pixel === wanted).length;
    }"""
    return int(screen.page.evaluate(script, [canvas, name]))


def test_findings_are_walked_through_and_home_shows_everything(slow2: Viewer, screen: Screen) -> None:
    page = screen.open(slow2.url).page
    first = screen.view()
    titles = [page.inner_text("#verdict h1")]
    screen.press("n")
    second = screen.view()
    titles.append(page.inner_text("#verdict h1"))
    assert second["finding"] == 1 and second["open"] != first["open"] and titles[0] != titles[1]
    assert "finding 2 of" in page.inner_text("#verdict .walk")
    screen.press("p")
    assert screen.view() == first
    page.click("#verdict button:has-text('P')")
    screen.settle()
    assert screen.view()["finding"] == page.evaluate("window.rankscope.findings.length") - 1
    screen.press("Home")
    whole, run = screen.view(), slow2.ask("run")[1]
    assert (whole["begin"], whole["end"]) == (run["begin_ns"], run["end_ns"])
    assert whole["open"] == [] and whole["finding"] == -1
    for place in (
        "#v=1&finding=77",
        f"#v=1&t={first['begin']}-{first['end']}&finding=77",
    ):  # of an old address
        page.goto("about:blank")
        page.goto(slow2.url + place)
        page.wait_for_selector("body[data-ready=true]", timeout=60_000)
        assert page.inner_text("#verdict h1") == titles[0]
    assert "finding 1 of" in page.inner_text("#verdict .walk")


def test_a_run_without_a_finding_opens_on_the_whole(screen: Screen, tmp_path: Path) -> None:
    viewer = serve(
        write_kineto(tmp_path / "rank-0.json", [slice_event("aten::mm", 1, 900), kernel_event("k", 5, 890)])
    )
    screen.open(viewer.url)
    view, run = screen.view(), viewer.ask("run")[1]
    if not viewer.ask("findings")[1]["findings"]:
        assert (view["begin"], view["end"], view["open"]) == (run["begin_ns"], run["end_ns"], [0])
        assert "Nothing to compare with: one rank" in screen.page.inner_text("#verdict")
    stop(viewer)


def test_groups_fold_and_the_filter_finds_tracks(slow2: Viewer, screen: Screen) -> None:
    page = screen.open(slow2.url).page
    rows = (
        "window.rankscope.timeline.layout().rows.filter((r) => r.type === 'track').map((r) => r.track.short)"
    )
    assert page.evaluate(rows) == ["communication", "stream 7", "annotations"]
    page.fill("#filter", "stream 7")
    screen.until(f"{rows}.length === 2")
    assert "filter=stream" in screen.link()
    page.fill("#filter", "cpu_op")
    screen.until(f"{rows}.every((name) => name.startsWith('thread')) && {rows}.length > 0")
    page.fill("#filter", "")
    screen.until(f"{rows}.includes('communication')")
    # The folded row of the little-used streams opens on a click.
    x, y = place_of_text(screen, "▸ 18 more streams")
    page.mouse.click(x, y)
    screen.until(f"{rows}.length === 3 + 36")
    # All ranks at once, by the menu.
    page.click("#tracks-button")
    page.click("#tracks-menu label:has-text('host')")
    page.click("#tracks-menu button:has-text('Expand all')")
    page.keyboard.press("Escape")
    host = "window.rankscope.timeline.layout().rows.filter((r) => r.group === 'host' && r.type === 'track')"
    screen.until(f"new Set({host}.map((r) => r.rank)).size === 4")
    screen.settle()
    link = screen.link()
    folds = screen.view()["folds"]
    assert "fold=" in link and screen.open(link).view()["folds"] == folds


def place_of_text(screen: Screen, wanted: str) -> tuple[float, float]:
    box = screen.page.locator("#canvas").bounding_box()
    y = next(y for text, _, y in screen.page.evaluate(TEXTS) if text == wanted)
    return box["x"] + 120, box["y"] + y


def test_tracks_are_pinned_and_moved(slow2: Viewer, screen: Screen) -> None:
    page = screen.open(slow2.url).page
    for label in ("stream 7", "communication"):
        page.mouse.click(*place_of_text(screen, label))
        screen.settle()
    pins = screen.view()["pins"]
    assert len(pins) == 2 and pins[1] == "2.0.-1"
    screen.press("Home")  # the rank is collapsed, its pinned tracks stay
    assert [text for text in texts(screen) if text.startswith("• 2")] == ["• 2 stream 7", "• 2 communication"]
    page.mouse.move(*place_of_text(screen, "• 2 communication"))
    screen.press("{")
    assert screen.view()["pins"] == pins[::-1]
    link = screen.link()
    assert screen.open(link).view()["pins"] == pins[::-1]
    page.mouse.click(*place_of_text(screen, "• 2 communication"))
    screen.until("window.rankscope.store.view.pins.length === 1")


def test_map_and_tracks_share_one_scale(slow2: Viewer, screen: Screen) -> None:
    page = screen.open(slow2.url).page
    screen.press("Home", "s")
    script = """() => {
      const { overview, timeline, run } = window.rankscope;
      const box = (e) => e.getBoundingClientRect();
      const ends = [run.begin_ns, run.end_ns];
      const wide = overview.canvas.clientWidth - 168 - 16;
      const map = ends.map((t) => box(overview.canvas).x + 168 + overview.toX(t, wide));
      return [map, ends.map((t) => box(timeline.canvas).x + timeline.x(t, 0))];
    }"""
    for dock in ("bottom", "right"):
        page.evaluate("(dock) => window.rankscope.store.set({ dock })", dock)
        screen.settle()
        map, tracks = page.evaluate(script)
        assert map == tracks
    assert screen.view()["begin"] == 0 and not any(text.startswith("-") for text in texts(screen))


def test_the_panel_is_resized_and_docked(slow2: Viewer, screen: Screen) -> None:
    page = screen.open(slow2.url).page
    tall = page.locator("#aside").bounding_box()["height"]
    box = page.locator("#splitter").bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] - 98, steps=3)
    page.mouse.up()
    assert abs(page.locator("#aside").bounding_box()["height"] - tall - 100) < 4
    page.click("#dock-button")
    screen.settle()
    aside = page.locator("#aside").bounding_box()
    assert aside["x"] > 700 and aside["height"] > 500
    assert "dock=right" in screen.link()
    page.focus("#splitter")
    page.keyboard.press("ArrowLeft")
    assert page.locator("#aside").bounding_box()["width"] > aside["width"]
    screen.open(slow2.url)  # kept for the next page
    assert page.locator("#aside").bounding_box()["x"] > 600


def test_zoom_pan_fit_and_back(slow2: Viewer, screen: Screen) -> None:
    screen.open(slow2.url)
    screen.press("f")
    whole = screen.view()
    screen.press("w", "w")
    near = screen.view()
    assert near["end"] - near["begin"] < (whole["end"] - whole["begin"]) * 0.4
    screen.press("d")
    assert screen.view()["begin"] > near["begin"]
    screen.press("a", "s")
    screen.press("f")
    fitted = screen.view()
    assert fitted["begin"] == whole["begin"] and fitted["end"] == whole["end"]
    screen.page.go_back()
    screen.settle()
    assert screen.view()["end"] - screen.view()["begin"] < whole["end"] - whole["begin"]


def test_search_goes_to_the_first_and_on(slow2: Viewer, screen: Screen) -> None:
    page = screen.open(slow2.url).page
    page.keyboard.press("/")
    page.keyboard.type("aten::mm")
    page.wait_for_selector("#found li .note")
    page.keyboard.press("Enter")
    screen.settle()
    screen.until("window.rankscope.panels.slice?.name.includes('aten::mm')")
    first = screen.view()["slice"]
    assert "Compared with" in screen.panel()
    count = page.inner_text("#search-count")
    assert re.fullmatch(r"\d+ of [\d,]+", count)
    screen.press("]")
    screen.until(
        f"JSON.stringify(window.rankscope.store.view.slice) !== '{json.dumps(first, separators=(',', ':'))}'"
    )
    assert page.inner_text("#search-count") != count
    screen.press("[")
    screen.until(
        f"JSON.stringify(window.rankscope.store.view.slice) === '{json.dumps(first, separators=(',', ':'))}'"
    )
    page.click("#search-next")
    screen.until(
        f"JSON.stringify(window.rankscope.store.view.slice) !== '{json.dumps(first, separators=(',', ':'))}'"
    )


def test_search_by_regular_expression_names_category_and_ranks(slow2: Viewer, screen: Screen) -> None:
    page = screen.open(slow2.url).page
    page.keyboard.press("/")
    page.keyboard.type("^nvjet.*NNT$")
    page.wait_for_selector("#found li")
    assert "No name matches" in page.inner_text("#found")
    page.click("#search-regex")
    page.wait_for_selector("#found li .note")
    assert re.search(r"kernel\s+60 on rank 2", page.inner_text("#found"))
    assert page.inner_text("#search-count") == "60"
    page.click("#found li")
    screen.until("window.rankscope.panels.slice?.name?.startsWith('nvjet')")
    assert page.inner_text("#search-count").endswith("of 60")


def test_flows_of_a_visible_op(slow2: Viewer, screen: Screen) -> None:
    screen.open(slow2.url)
    found = slow2.ask("find", name="aten::mm", at=40_000_000, rank=2)[1]["found"]
    screen.page.evaluate("(s) => window.rankscope.goTo(s)", found)
    screen.until("window.rankscope.panels.slice?.launched !== undefined")
    screen.press("g")
    screen.until("window.rankscope.timeline.flows.length > 0")
    screen.press("g")
    assert screen.page.evaluate("window.rankscope.timeline.flows.length") == 0


def test_a_collective_is_shown_on_every_rank(slow2: Viewer, screen: Screen) -> None:
    screen.open(slow2.url)
    sql = (
        "SELECT c.rank, c.segment, c.id, c.track, s.depth, s.start_ns, s.dur_ns FROM collectives c "
        "JOIN slices s USING (rank, segment, id) WHERE c.kind = 'reduce_scatter' AND c.rank = 0 AND c.step = 4"
    )
    answer = slow2.ask("query", sql=sql)[1]
    slice = dict(zip(answer["columns"], answer["rows"][0], strict=True))
    screen.page.evaluate("(s) => window.rankscope.goTo(s)", slice)
    screen.until("window.rankscope.panels.slice?.is_collective")
    screen.until("document.querySelectorAll('#panel table tbody tr').length === 4")
    assert "on every rank" in screen.panel()
    rows = screen.page.locator("#panel table tbody tr")
    assert rows.count() == 4
    assert rows.last.inner_text().startswith("2") and "hot" in (rows.last.get_attribute("class") or "")
    rows.last.click()
    screen.until("window.rankscope.store.view.slice.rank === 2")


def test_a_click_chooses_and_escape_lets_go(slow2: Viewer, screen: Screen) -> None:
    screen.open(slow2.url)
    found = slow2.ask("find", name="ProfilerStep#5", at=-1, rank=0)[1]["found"]
    screen.page.evaluate("window.rankscope.store.set({ open: [0], folds: [] })")
    screen.until("window.rankscope.timeline.tracks.get(0)?.length > 0")
    screen.page.evaluate("(s) => window.rankscope.timeline.scrollTo(s.rank, s)", found)
    screen.settle()
    click_slice(screen, found)
    screen.until("window.rankscope.panels.slice?.name === 'ProfilerStep#5'")
    screen.press("Escape")
    assert screen.view()["slice"] is None


def test_findings_lead_to_their_time_and_rank(slow2: Viewer, screen: Screen) -> None:
    page = screen.open(slow2.url).page
    before = screen.view()
    page.locator("#panel table.wrapping tbody tr").nth(1).click()
    screen.settle()
    after = screen.view()
    assert (after["begin"], after["end"], after["open"]) != (before["begin"], before["end"], before["open"])


def test_a_link_shows_the_same_picture(slow2: Viewer, screen: Screen) -> None:
    screen.open(slow2.url)
    screen.press("w", "w", "d", "3")
    link, view = screen.link(), screen.view()
    assert "#v=1" in link
    screen.page.goto("about:blank")
    assert screen.open(link).view() == view


def test_every_panel_draws(slow2: Viewer, screen: Screen) -> None:
    screen.open(slow2.url)
    expected = {
        "1": "Saves a step", "2": "Click a slice", "3": "events", "4": "On the device", "5": "ranks merged",
        "6": "Total", "7": "copy_", "8": "reduce_scatter", "9": "peak", "0": "oof|FLOP",
    }  # fmt: skip
    for key, text in expected.items():
        screen.press(key)
        assert re.search(text, screen.panel()), key


def test_sql_answers_and_refuses(slow2: Viewer, screen: Screen) -> None:
    page = screen.open(slow2.url).page
    page.click("#tab-sql")
    page.fill("#panel textarea", "SELECT count(*) AS many FROM steps")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#panel table")
    assert "many" in screen.panel() and "24" in screen.panel()
    page.fill("#panel textarea", "DROP TABLE steps")
    page.click("#panel button:has-text('Run')")
    screen.until("document.querySelector('#panel').innerText.includes('only one SELECT')")
    screen.expected = "400"  # the browser logs the refusal by itself


def test_tables_sort_by_keyboard(slow2: Viewer, screen: Screen) -> None:
    page = screen.open(slow2.url).page
    page.click("#tab-reports")
    page.wait_for_selector("#panel table")
    button = page.locator("#panel th button", has_text="Compute").first
    button.focus()
    page.keyboard.press("Enter")
    heading = page.locator("#panel th", has=page.locator("button", has_text="Compute")).first
    assert heading.get_attribute("aria-sort") == "descending"
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"


def test_keyboard_alone_opens_ranks(slow2: Viewer, screen: Screen) -> None:
    page = screen.open(slow2.url).page
    page.locator("#twin button", has_text="rank 3").focus()
    page.keyboard.press("Enter")
    screen.settle()
    assert 3 in screen.view()["open"]
    screen.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#help").is_visible()


def test_dark_is_dark(slow2: Viewer, screen: Screen) -> None:
    page = screen.open(slow2.url).page
    page.evaluate("window.rankscope.setTheme('light')")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    screen.press("t")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    assert painted(screen) > 5


def test_a_name_with_html_stays_text(screen: Screen, tmp_path: Path) -> None:
    name = "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>"
    launch = slice_event("cudaLaunchKernel", 1, 2, cat="cuda_runtime", args={"correlation": 5})
    write_kineto(
        tmp_path / "rank-0.json",
        [launch, kernel_event(name, 5, 400, correlation=5), slice_event(name, 6, 300)],
    )
    viewer = serve(tmp_path / "rank-0.json")
    page = screen.open(viewer.url).page
    page.keyboard.press("/")
    page.keyboard.type("onerror")
    page.wait_for_selector("#found li .note")
    page.keyboard.press("Enter")
    screen.until("document.querySelector('#panel').innerText.includes('<script>')")
    box = page.locator("#canvas").bounding_box()
    page.mouse.move(box["x"] + 700, box["y"] + 60)
    for tab in "1234567890":
        screen.press(tab)
    assert page.title() != "owned" and page.locator("#panel img, #panel script, #found img").count() == 0
    stop(viewer)


@pytest.mark.thorough
def test_two_runs_one_above_the_other(slow2: Viewer, screen: Screen) -> None:
    """Each rank above its twin, both from the same step; the headline is the change."""
    viewer = serve(slow2.folder, DATA / "ddp-gloo4")
    page = screen.open(viewer.url).page
    assert page.inner_text("#title").startswith("A: slow2") and "aligned by step" in page.inner_text("#title")
    changes = viewer.ask("diff")[1]["findings"]
    assert page.inner_text("#verdict h1") == changes[0]["title"] and len(changes) > 1
    screen.press("n")
    screen.until(
        f"document.querySelector('.card[aria-current=true] h3').textContent === {changes[1]['title']!r}"
    )
    assert page.inner_text("#verdict h1") == changes[1]["title"]
    assert f"difference 2 of {len(changes)}" in page.inner_text("#verdict")
    screen.press("Home")
    labels = [text for text in texts(screen) if re.search(r"rank \d", text)]
    assert [label.removeprefix("▾ ").removeprefix("▸ ") for label in labels[:2]] == ["A rank 0", "B rank 0"]
    run = viewer.ask("run")[1]
    first, second = (
        {step["step"]: step["start_ns"] for step in run[name]} for name in ("steps", "second_steps")
    )
    for step in first.keys() & second.keys():  # at one place on the tracks and in the overview
        places = page.evaluate(
            "([a, b]) => { const { axis } = window.rankscope; return [axis.of(a, 0), axis.of(b, 1000000)]; }",
            [first[step], second[step]],
        )
        assert places[0] == places[1]
    page.evaluate(
        "window.rankscope.search.walk({ name: 'aten::mm', rank: 1000002 })"
    )  # a slice of B is shown
    screen.until("window.rankscope.panels.slice?.compared && window.rankscope.timeline.inView.has(1000002)")
    assert "B 2, thread" in screen.panel()
    slice = page.evaluate("window.rankscope.panels.slice")
    x = page.evaluate("(ns) => window.rankscope.timeline.x(ns, 1000002)", slice["start_ns"])
    assert slice["rank"] == 1_000_002 and 168 < x < 1400
    page.click("#tab-diff")
    page.wait_for_selector("#panel table")
    assert re.search("slower|faster|new|gone", screen.panel())
    stop(viewer)


def test_a_link_without_the_token_asks_for_it_once(slow2: Viewer, screen: Screen) -> None:
    screen.expected = "401"  # of the page without its token
    base, token = slow2.url.split("?token=")
    place = "#v=1&t=0-20000000&open=2"
    page = screen.page
    page.goto(base + place)
    for text, is_wrong in (("nonsense", True), (f"{base}?token={token}#v=1", False)):
        page.fill("#token", text)
        page.keyboard.press("Enter")
        if is_wrong:
            page.wait_for_selector("#wrong")
    page.wait_for_selector("body[data-ready=true]", timeout=60_000)
    assert page.evaluate("location.href").startswith(base + "#v=1&t=0-20000000") and screen.view()[
        "open"
    ] == [2]
    page.goto(base + place + "&tab=ops")
    page.wait_for_selector("#tab-ops[aria-selected=true]")


@pytest.mark.thorough
def test_a_server_that_is_gone_is_said(slow2: Viewer, screen: Screen) -> None:
    """The command itself, as a user starts it, and killed while the page is open."""
    command = [sys.executable, "-m", "rankscope", "view", str(slow2.folder), "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        page = screen.open(process.stdout.readline().strip()).page
        picture = painted(screen)
        process.kill()
    page.keyboard.press("w")
    page.keyboard.press("w")
    page.wait_for_selector("#message:not([hidden])")
    assert "does not answer" in page.inner_text("#message") and "reload" in page.inner_text("#message")
    assert painted(screen) > 3 and picture > 3
    screen.expected = "ERR_"  # connection refused, reset: what this is about


def test_a_file_that_cannot_be_read_is_said(screen: Screen, tmp_path: Path) -> None:
    (tmp_path / "rank-0.json").write_text("{")
    viewer = serve(tmp_path)
    screen.page.goto(viewer.url)
    screen.page.wait_for_selector("#verdict h1")
    assert "rank-0.json" in screen.page.inner_text("#verdict") or str(
        tmp_path.name
    ) in screen.page.inner_text("#verdict")
    stop(viewer)


def test_on_a_phone_nothing_sticks_out(slow2: Viewer, screen: Screen) -> None:
    screen.page.set_viewport_size({"width": 390, "height": 844})
    page = screen.open(slow2.url).page
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("window.rankscope.timeline.width") > 0.55 * 390
    for button in ("#share-button", "#help-button", "#theme-button"):
        box = page.locator(button).bounding_box()
        assert box["x"] + box["width"] <= 390 and box["width"] >= 24 and box["height"] >= 24
    for tab in ("events", "kernels", "sql"):  # the strip of tabs scrolls to them
        page.click(f"#tab-{tab}")
        assert screen.panel()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("width", [900, 1000, 1440])
def test_nothing_overflows(width: int, slow2: Viewer, screen: Screen) -> None:
    screen.page.set_viewport_size({"width": width, "height": 800})
    page = screen.open(slow2.url).page
    for dock in ("bottom", "right"):
        page.evaluate("(dock) => window.rankscope.store.set({ dock, size: 0 })", dock)
        screen.settle()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for wanted, wrong in (
            (
                "header *, .verdict *, .legend *, .track-tools *, .bar > *",
                f"e.getBoundingClientRect().right > {width} + 0.5",
            ),
            (
                ".verdict .pill, .verdict .walk, .verdict .kpi, header button",
                "e.scrollWidth > e.clientWidth + 1",
            ),
        ):
            script = (
                f"(e) => e.filter((e) => e.checkVisibility() && {wrong}).map((e) => e.outerHTML.slice(0, 80))"
            )
            assert page.eval_on_selector_all(wanted, script) == []


def test_an_assistant_moves_the_page(slow2: Viewer, screen: Screen) -> None:
    """A link may name a finding alone; the page then follows `move`."""
    screen.open(f"{slow2.url}#v=1&finding=2")
    assert screen.view()["finding"] == 1 and screen.view()["open"]
    token = slow2.server.address.token
    words = urlencode({"token": token, "link": "#v=1&finding=1"})
    address = f"http://127.0.0.1:{slow2.server.address.port}/api/move?{words}"
    with screen.page.expect_response(re.compile("/api/place")):
        pass  # the page knows its place, and follows those that come later
    with urllib.request.urlopen(urllib.request.Request(address, method="POST")) as answer:
        assert answer.status == 200
    screen.until("window.rankscope.store.view.finding === 0", 20)
