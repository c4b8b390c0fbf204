"""The page in a real headless browser: what a user does, and what they then see."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from conftest import DATA, kernel_event, slice_event, write_kineto
from viewer.conftest import Screen, Viewer, serve, stop

# Where the page keeps the picture of a track: asked of the page itself, so tests do not depend on heights.
PLACE_OF = """(slice) => {
  const app = window.rankscope, { rows } = app.timeline.layout();
  const row = rows.find((r) => r.type === 'track' && r.rank === slice.rank && r.track.track === slice.track);
  const box = app.timeline.canvas.getBoundingClientRect();
  const x = 150 + (slice.start_ns + slice.dur_ns / 2 - app.store.view.begin) / app.timeline.nsPerPixel;
  return [box.x + x, box.y + 20 + row.y + slice.depth * 18 + 8 - app.timeline.box.scrollTop];
}"""


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
    assert page.inner_text("#verdict h1") == page.locator("#panel .card h3").first.inner_text()
    assert page.locator("#panel .card").count() >= 1
    assert painted(screen) > 5
    # The token has left the address bar; the cookie is enough.
    assert "token" not in page.url
    page.reload()
    page.wait_for_selector("body[data-ready=true]", timeout=60_000)


def test_zoom_pan_fit_and_back(slow2: Viewer, screen: Screen) -> None:
    screen.open(slow2.url)
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
    screen.press("]")
    screen.until(f"window.rankscope.store.view.slice.id !== {first['id']}")
    screen.press("[")
    screen.until(f"window.rankscope.store.view.slice.id === {first['id']}")


def test_a_collective_is_shown_on_every_rank(slow2: Viewer, screen: Screen) -> None:
    screen.open(slow2.url)
    sql = (
        "SELECT c.rank, c.segment, c.id, c.track, s.depth, s.start_ns, s.dur_ns FROM collectives c "
        "JOIN slices s USING (rank, segment, id) WHERE c.kind = 'reduce_scatter' AND c.rank = 0 AND c.step = 4"
    )
    answer = slow2.ask("query", sql=sql)[1]
    slice = dict(zip(answer["columns"], answer["rows"][0], strict=True))
    screen.page.evaluate("(s) => window.rankscope.goTo(s)", slice)
    screen.until("document.querySelector('#panel').innerText.includes('On all ranks')")
    rows = screen.page.locator("#panel table tbody tr")
    assert rows.count() == 4
    assert rows.last.inner_text().startswith("2") and "hot" in (rows.last.get_attribute("class") or "")
    rows.last.click()
    screen.until("window.rankscope.store.view.slice.rank === 2")


def test_a_click_chooses_and_escape_lets_go(slow2: Viewer, screen: Screen) -> None:
    screen.open(slow2.url)
    found = slow2.ask("find", name="ProfilerStep#4", at=-1, rank=0)[1]["found"]
    screen.page.evaluate("(s) => window.rankscope.timeline.scrollTo(s.rank, s)", found)
    screen.settle()
    click_slice(screen, found)
    screen.until("window.rankscope.panels.slice?.name === 'ProfilerStep#4'")
    screen.press("Escape")
    assert screen.view()["slice"] is None


def test_dragging_adds_up_a_stretch(slow2: Viewer, screen: Screen) -> None:
    page = screen.open(slow2.url).page
    box = page.locator("#canvas").bounding_box()
    page.mouse.move(box["x"] + 400, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 600, box["y"] + 60, steps=4)
    page.mouse.up()
    screen.until("document.querySelector('#panel').innerText.includes('Slices in the range')")
    assert "exposed communication" in screen.panel()
    assert screen.view()["area"][1] > screen.view()["area"][0]


def test_findings_lead_to_their_time_and_rank(slow2: Viewer, screen: Screen) -> None:
    page = screen.open(slow2.url).page
    before = screen.view()
    page.locator("#panel .card .go").first.click()
    screen.settle()
    after = screen.view()
    assert (after["begin"], after["end"], after["open"]) != (before["begin"], before["end"], before["open"])


def test_a_link_shows_the_same_picture(slow2: Viewer, screen: Screen) -> None:
    screen.open(slow2.url)
    screen.press("w", "w", "d", "3")
    screen.page.wait_for_timeout(400)
    link, view = screen.page.url, screen.view()
    assert "#v=1" in link
    screen.page.goto("about:blank")
    assert screen.open(link).view() == view


def test_every_panel_draws(slow2: Viewer, screen: Screen) -> None:
    screen.open(slow2.url)
    expected = {
        "1": "show", "2": "Click a slice", "3": "rankscope stats", "4": "rank", "5": "Memory|Rank|memory",
        "6": "oof|FLOP", "7": "Only one run is open", "8": "Tables",
    }  # fmt: skip
    for key, text in expected.items():
        screen.press(key)
        assert re.search(text, screen.panel()), key


def test_sql_answers_and_refuses(slow2: Viewer, screen: Screen) -> None:
    page = screen.open(slow2.url).page
    screen.press("8")
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
    screen.press("3")
    page.wait_for_selector("#panel table")
    button = page.locator("#panel th button", has_text="compute").first
    button.focus()
    page.keyboard.press("Enter")
    heading = page.locator("#panel th", has=page.locator("button", has_text="compute")).first
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
    for tab in "123456":
        screen.press(tab)
    assert page.title() != "owned" and page.locator("#panel img, #panel script, #found img").count() == 0
    stop(viewer)


def test_two_runs_side_by_side(slow2: Viewer, screen: Screen) -> None:
    viewer = serve(slow2.folder, DATA / "ddp-gloo4")
    page = screen.open(viewer.url).page
    assert page.inner_text("#title").startswith("A: slow2")
    page.evaluate("window.rankscope.reveal(1000001)")
    screen.settle()
    screen.press("7")
    page.wait_for_selector("#panel table")
    assert re.search("slower|faster|new|gone", screen.panel())
    stop(viewer)


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
    screen.page.set_viewport_size({"width": 420, "height": 800})
    page = screen.open(slow2.url).page
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
