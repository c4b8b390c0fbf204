"""A window of a run as one HTML file: what is in it, its size, and the page opened from a disk with networking off."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import DATA
from rankscope.cli import main
from rankscope.timeline.run import open_run
from rankscope.units import format_ns
from rankscope.viewer import shared_file
from viewer_server import Screen, Viewer

pytestmark = pytest.mark.slow


def _content(text: str) -> Any:
    found = re.search(r'id="shared-file">([^<]*)<', text)
    assert found
    return json.loads(zlib.decompress(base64.b64decode(found[1])))


@pytest.fixture(scope="module")
def exported(slow2: Viewer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps of the four ranks."""
    target = tmp_path_factory.mktemp("shared") / "window.html"
    assert main(["export", str(slow2.folder), "-t", "html", "--steps", "3:5", "-o", str(target), "-q"]) == 0
    return target


def test_the_file_holds_every_slice_of_the_window(exported: Path, slow2: Viewer) -> None:
    content = _content(exported.read_text(encoding="utf-8"))
    run = content["recorded"]["run"]
    with_store = open_run([slow2.folder])
    (count,) = with_store.rows(
        f"SELECT count(*) FROM slices WHERE start_ns < {run['end_ns']} AND start_ns + dur_ns > {run['begin_ns']}"
    )[0]
    slices = content["slices"]
    here = [at for at, track in enumerate(slices["track"]) if track >= 0]  # the others are collectives
    assert len(here) == count and here == [*range(count)] and len(slices["id"]) > count
    assert [step["step"] for step in run["steps"]] == [3, 4, 5]
    assert (
        sum(slices["start_ns"][:count])
        == with_store.rows(
            "SELECT start_ns FROM slices WHERE rank = 3 AND start_ns < ? AND start_ns + dur_ns > ? "
            "ORDER BY segment DESC, track DESC, depth DESC, start_ns DESC LIMIT 1",
            [run["end_ns"], run["begin_ns"]],
        )[0][0]
    )


def test_the_file_loads_nothing(exported: Path) -> None:
    """No address but data: ones, and a policy that forbids connections."""
    text = exported.read_text(encoding="utf-8")
    assert "default-src 'none'" in text and "connect-src" not in text
    assert not re.search(r'(?:src|href)="(?!data:)', text)
    modules = json.loads(re.search(r'type="importmap">(.*?)</script>', text, re.S)[1])["imports"]  # type: ignore[index]
    for name, url in modules.items():
        source = base64.b64decode(url.partition(",")[2]).decode()
        wanted = re.findall(r'(?:from |import |import\()"([^"]+)"', source)
        assert set(wanted) <= set(modules), name


def test_a_window_that_is_too_large_is_refused(
    slow2: Viewer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shared_file, "MOST_SLICES", 100)
    words = ["export", str(slow2.folder), "-t", "html", "-o", str(tmp_path / "x.html"), "-q"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "slices on 4 ranks" in error and "--steps A:B" in error
    run = slow2.ask("run")[1]
    window = {"begin": run["begin_ns"], "end": run["end_ns"]}
    assert slow2.ask("share", **window, ranks="0")[0] == 400


def test_ranks_that_do_not_fit_are_left_out(slow2: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    run = slow2.ask("run")[1]
    step = next(step for step in run["steps"] if step["step"] == 4)
    window = {"begin": step["start_ns"], "end": step["start_ns"] + step["dur_ns"]}
    whole = _content(slow2.ask("share", **window, ranks="2")[1].decode())
    assert whole["recorded"]["run"]["ranks"] == [0, 1, 2, 3]
    of_rank_2 = whole["slices"]["rank"].count(2)
    monkeypatch.setattr(shared_file, "MOST_SLICES", of_rank_2 + 5)
    part = _content(slow2.ask("share", **window, ranks="2")[1].decode())
    assert part["recorded"]["run"]["ranks"] == [2] and len(part["slices"]["id"]) == of_rank_2


def test_options_of_traces_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "RUN", "-t", "html", "--gzip"]) == 2
    assert "writes a page" in capsys.readouterr().err


@pytest.fixture
def offline(chromium: Any) -> Iterator[Screen]:
    """A page without a network: any request that is not the file itself or inside it fails the test."""
    context = chromium.new_context(viewport={"width": 1440, "height": 900}, offline=True)
    found = Screen(context.new_page(), [])
    found.page.on("console", lambda m: found.troubles.append(m.text) if m.type == "error" else None)
    found.page.on("pageerror", lambda error: found.troubles.append(str(error)))
    found.page.on(
        "request",
        lambda r: None if r.url.startswith(("file:", "data:", "blob:")) else found.troubles.append(r.url),
    )
    yield found
    context.close()
    assert found.troubles == []


def test_the_file_opens_from_a_disk_with_the_same_keys(exported: Path, offline: Screen) -> None:
    page = offline.open(exported.as_uri()).page
    assert "4 ranks" in page.inner_text("#title")
    opened = offline.view()
    assert opened["finding"] == 0 and page.locator("#panel table tbody tr").count() >= 3
    offline.press("w", "w")
    near = offline.view()
    assert near["end"] - near["begin"] < (opened["end"] - opened["begin"]) * 0.4
    page.keyboard.press("/")
    page.keyboard.type("slow_extra")
    page.wait_for_selector("#found li .note")
    page.keyboard.press("Enter")
    offline.until("window.rankscope.panels.slice?.name === 'slow_extra'")
    assert "Compared with" in offline.panel()
    offline.press("]")
    offline.until("window.rankscope.store.view.slice.rank === 2")
    tabs = {"events": "slow_extra", "area": "On the device", "flame": "aten::mm", "ops": "copy_"}
    for tab, text in tabs.items():
        page.click(f"#tab-{tab}")
        offline.until(f"document.querySelector('#panel').textContent.includes({text!r})")
    page.click("#tab-sql")
    page.wait_for_selector("#message:not([hidden])")
    assert "rankscope view" in page.inner_text("#message")


def test_the_peak_of_memory_is_at_its_time(
    offline: Screen, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file has a window of the run, and the whole curve."""
    words = [
        "export",
        DATA / "gpt-h200",
        "-t",
        "html",
        "--steps",
        "4",
        "-o",
        tmp_path / "4.html",
        "--cache",
        tmp_path,
        "-q",
    ]
    assert main([*map(str, words)]) == 0
    page = offline.open((tmp_path / "4.html").as_uri()).page
    page.click("#tab-memory")
    page.wait_for_selector("#panel svg.drawn polyline", state="attached")
    ((at, begin, end),) = page.evaluate("""async () => {
      const { run } = window.rankscope;
      const { peaks } = await (await import('rankscope/js/api.js')).json('memory', { rank: run.ranks[0] });
      return peaks.filter((each) => each.device !== 'CPU').map((each) => [each.ts_ns, run.begin_ns, run.end_ns]);
    }""")
    assert not begin <= at <= end and page.locator("#panel button", has_text="Show the peak").count() <= 1
    assert f"at {format_ns(at, 1)}" in page.inner_text("#panel")


@pytest.mark.thorough
def test_twenty_thousand_slices_of_four_ranks_take_less_than_3_mb(
    tmp_path: Path, offline: Screen, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the page is usable: zoom, click, search."""
    target = tmp_path / "all.html"
    words = [
        "export",
        str(DATA / "ddp-gloo4"),
        "-t",
        "html",
        "-o",
        str(target),
        "--cache",
        str(tmp_path),
        "-q",
    ]
    assert main(words) == 0 and "4 ranks" in capsys.readouterr().out
    assert len(_content(target.read_text(encoding="utf-8"))["slices"]["id"]) > 20_000
    assert target.stat().st_size < 3_000_000
    page = offline.open(target.as_uri()).page
    page.keyboard.press("Home")
    offline.press("w", "w", "d")
    page.evaluate("window.rankscope.store.set({ open: [0], folds: [] })")
    offline.settle()
    found = page.evaluate("window.rankscope.timeline.layout().rows.find((row) => row.type === 'track').y")
    box = page.locator("#canvas").bounding_box()
    for x in range(200, 1400, 40):  # until something is there
        page.mouse.click(box["x"] + x, box["y"] + 36 + found)
        offline.settle()
        if offline.view()["slice"]:
            break
    offline.until("window.rankscope.panels.slice !== null")
    page.keyboard.press("/")
    page.keyboard.type("aten::add")
    page.wait_for_selector("#found li .note")
    page.keyboard.press("Enter")
    offline.until("window.rankscope.panels.slice?.name.includes('aten::add')")


def test_a_shared_view_is_the_view_that_was_shared(
    slow2: Viewer, screen: Screen, tmp_path: Path, chromium: Any
) -> None:
    page = screen.open(slow2.url).page
    screen.press("w")
    begin = screen.view()["begin"]
    page.evaluate(f"window.rankscope.marks.set([{{ at: {begin + 1_000_000}, name: 'look here' }}])")
    shown = screen.view()
    page.click("#share-button")
    with page.expect_download() as downloading:
        page.click("text=Write the file")
    target = tmp_path / "shared.html"
    downloading.value.save_as(target)
    context = chromium.new_context(viewport={"width": 1440, "height": 900}, offline=True)
    other = Screen(context.new_page(), []).open(target.as_uri())
    view = other.view()
    assert [view[name] for name in ("begin", "end", "open", "marks", "finding")] == [
        shown[name] for name in ("begin", "end", "open", "marks", "finding")
    ]
    other.page.click("#share-button")  # the file itself is there to be sent
    assert "rankscope view" in other.page.inner_text("#share") and not other.page.is_visible(
        "text=Write the file"
    )
    context.close()
