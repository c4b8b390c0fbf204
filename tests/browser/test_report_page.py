"""Reports in a real browser: nothing is asked for from elsewhere, nothing complains, light, dark, phone and paper.

Debian's chromium, driven by playwright; tests/install-packages.sh installs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import DATA, kernel_event, open_trace, slice_event, write_kineto
from rankscope.analysis.core.scope import Scope
from rankscope.timeline.run import Run
from rankscope.views.report.content import Request, build
from rankscope.views.report.html_report import html_page

pytestmark = pytest.mark.slow

WIDE, PHONE = {"width": 1100, "height": 800}, {"width": 390, "height": 844}


class Opened:
    """A page that keeps count of what it asks for and what it complains about."""

    def __init__(self, chromium: Any, path: Path, **how: Any) -> None:
        self.context = chromium.new_context(**{"viewport": WIDE, **how})
        self.page = self.context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))
        self.page.goto(path.as_uri())
        self.path = path

    def check(self) -> None:
        """Asked for itself and nothing else; nothing was said; nothing sticks out to the right."""
        assert self.requests == [self.path.as_uri()]
        assert self.complaints == []
        widths = self.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert widths[0] <= widths[1]

    def background(self) -> str:
        return str(self.page.evaluate("getComputedStyle(document.body).backgroundColor"))


def write_report(run: Run, path: Path, name: str = "run") -> Path:
    path.write_text(html_page(build(Request(run, Scope(), name, "RUN"))), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def slow2(open_real: Callable[[Path], Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(
        open_real(DATA / "seqpar-gloo4-slow2"), tmp_path_factory.mktemp("report") / "slow2.html"
    )


def test_a_wide_screen_is_used(chromium: Any, slow2: Path) -> None:
    opened = Opened(chromium, slow2, viewport={"width": 2000, "height": 1000})
    opened.check()
    page = opened.page
    shown = [page.locator(f"#answer .on-{name}").is_visible() for name in ("phone", "screen", "wide")]
    assert shown == [False, False, True]
    assert page.locator("#answer figure").bounding_box()["width"] > 1700
    page.evaluate("document.getElementById('kernels').open = true")
    chart, table = (page.locator(f"#kernels {part}").bounding_box() for part in (".charts", ".rows"))
    assert table["x"] >= chart["x"] + chart["width"], "the table stands beside its chart"
    colours = [
        page.evaluate(f"getComputedStyle(document.querySelector('{part}')).color")
        for part in (".change b", ".change")
    ]
    assert colours[0] == colours[1], "a saving is not an alarm"


def test_light_dark_phone_and_paper(chromium: Any, slow2: Path) -> None:
    light = Opened(chromium, slow2)
    dark = Opened(chromium, slow2, color_scheme="dark")
    phone = Opened(chromium, slow2, viewport=PHONE)
    for opened in (light, dark, phone):
        opened.check()
    assert light.background() == "rgb(255, 255, 255)" and dark.background() == "rgb(14, 17, 22)"
    dark.page.click("#theme")
    assert dark.background() == "rgb(255, 255, 255)"
    fill = "getComputedStyle(document.querySelector('#breakdown svg.chart rect')).fill"
    assert light.page.evaluate(fill) == "rgb(0, 114, 178)"
    assert dark.page.pdf(format="A4").startswith(b"%PDF-")
    dark.page.emulate_media(media="print", color_scheme="dark")
    assert dark.background() == "rgb(255, 255, 255)", "paper is white"
    dark.check()


def test_the_first_screen_needs_no_scrolling(chromium: Any, slow2: Path) -> None:
    """Verdict, picture and what to do, at the size of a laptop."""
    page = Opened(chromium, slow2).page
    assert page.locator("h1").inner_text().startswith("Rank 2 costs 10.6 ms per step (62 %); ")
    for part in ("h1", ".change", "figure svg", ".do"):
        box = page.locator(part).locator("visible=true").first.bounding_box()
        assert box is not None and box["y"] + box["height"] <= WIDE["height"], part
    assert not page.evaluate(
        "[...document.querySelectorAll('details')].some(part => part.open && part.matches('.row'))"
    )


def test_parts_open_by_click_link_and_key(chromium: Any, slow2: Path) -> None:
    opened = Opened(chromium, slow2)
    page = opened.page
    assert not page.locator("#table-kernels").is_visible()
    page.locator("#kernels > summary").click()
    assert page.locator("#kernels svg.chart").is_visible()
    page.locator("#finding-1 > summary").focus()
    page.keyboard.press("Enter")
    page.click('#finding-1 a[href="#faults"]')
    page.locator("#faults[open]").wait_for()
    page.click('#finding-1 a[href="#about-slow-rank"]')
    assert "When it is wrong" in page.locator("#about-slow-rank[open]").inner_text()
    page.click("#unfold")
    assert page.evaluate("[...document.querySelectorAll('details.row')].every(part => part.open)")
    page.click("#unfold")
    assert page.evaluate("![...document.querySelectorAll('details.row')].some(part => part.open)")
    opened.check()


def test_paper_has_the_first_page_the_findings_and_what_is_open(chromium: Any, slow2: Path) -> None:
    page = Opened(chromium, slow2).page

    def pages() -> int:
        return len(re.findall(rb"/Type\s*/Page[^s]", page.pdf(format="A4")))

    assert pages() <= 3
    page.emulate_media(media="print")
    assert page.locator("#finding-2 .facts-list").is_visible() and page.locator(".more p").is_visible()
    assert not page.locator("#kernels").is_visible() and not page.locator("#facts").is_visible()
    assert page.locator(":not(th) > button").locator("visible=true").count() == 0
    assert not page.locator("nav").is_visible() and not page.locator("#post").is_visible()
    page.emulate_media(media="screen")
    page.locator("#finding-2 .facts-list").wait_for(state="hidden")  # folded as before
    page.click("#unfold")
    page.emulate_media(media="print")
    assert (
        page.locator("#table-kernels").is_visible()
        and page.locator("#stragglers svg.chart").last.is_visible()
    )
    assert page.locator("#run-info dl").first.is_visible()
    assert page.locator("#table-kernels th button").first.is_visible()


def test_without_scripts_paper_is_the_same_and_the_summary_can_be_selected(
    chromium: Any, slow2: Path
) -> None:
    page = Opened(chromium, slow2, java_script_enabled=False).page
    page.click("#issue > summary")
    assert "**Rank 2 costs 10.6 ms per step" in page.locator("#markdown").inner_text()
    page.emulate_media(media="print")
    assert page.locator("#finding-2 .facts-list").is_visible() and not page.locator("#kernels").is_visible()


def test_the_summary_can_be_copied_and_its_picture_saved(chromium: Any, slow2: Path, tmp_path: Path) -> None:
    opened = Opened(chromium, slow2, permissions=["clipboard-read", "clipboard-write"])
    page = opened.page
    page.click("#issue > summary")
    page.click("#issue button")
    page.locator("#issue button", has_text="Copied").wait_for()
    text = page.evaluate("navigator.clipboard.readText()")
    assert "## Faults" in text and "- **critical**: Rank 2 costs 10.6 ms" in text
    with page.expect_download() as download:
        page.click("#issue a")
    download.value.save_as(tmp_path / "picture.svg")
    assert download.value.suggested_filename == "run.svg"
    picture = (tmp_path / "picture.svg").read_text(encoding="utf-8")
    assert picture.startswith("<svg") and "var(--" not in picture, "a file has its own colours"
    opened.check()


def test_on_a_phone_the_picture_fits_and_charts_say_that_they_scroll(chromium: Any, slow2: Path) -> None:
    opened = Opened(chromium, slow2, viewport=PHONE)
    page = opened.page
    picture = page.locator("figure svg").locator("visible=true")
    box = picture.bounding_box()
    assert (
        picture.count() == 1
        and box is not None
        and box["x"] >= 0
        and box["x"] + box["width"] <= PHONE["width"]
    )
    page.locator("#kernels > summary").click()
    assert page.locator("#kernels .scroll-hint").is_visible()
    assert page.evaluate(
        "(box => box.scrollWidth > box.clientWidth)(document.querySelector('#kernels .wide'))"
    )
    opened.check()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "how", [{}, {"color_scheme": "dark"}, {"viewport": PHONE}], ids=["light", "dark", "phone"]
)
def test_no_serious_fault_of_accessibility(
    how: dict[str, Any], chromium: Any, slow2: Path, accessibility_faults: Callable[[Any], list[str]]
) -> None:
    page = Opened(chromium, slow2, **how).page
    assert accessibility_faults(page) == []
    page.click("#unfold")
    assert accessibility_faults(page) == []


def test_tables_sort_with_the_keyboard_and_copy(chromium: Any, slow2: Path) -> None:
    opened = Opened(chromium, slow2, permissions=["clipboard-read", "clipboard-write"])
    page = opened.page
    page.evaluate(
        "document.querySelectorAll('#breakdown, #breakdown details').forEach(part => { part.open = true })"
    )
    header = page.locator("#table-breakdown th", has_text="Compute")
    header.locator("button").focus()
    column = header.evaluate("cell => cell.cellIndex")

    def values() -> list[float]:
        cells = f"[...document.querySelectorAll('#table-breakdown tbody tr')].map(r => r.cells[{column}].textContent)"
        return [float(text.replace(",", "")) for text in page.evaluate(cells)]

    page.keyboard.press("Enter")
    assert header.get_attribute("aria-sort") == "descending" and values() == sorted(values(), reverse=True)
    page.keyboard.press("Space")
    assert header.get_attribute("aria-sort") == "ascending" and values() == sorted(values())
    page.click('#breakdown button[data-copy="table"]')
    # Not wait_for_function: its second look is an eval, which the page's policy forbids.
    page.locator("#breakdown button[data-copy=table]", has_text="Copied").wait_for()
    text = page.evaluate("navigator.clipboard.readText()")
    lines = text.splitlines()
    assert lines[0].startswith("Rank\tStep\tSpan (") and len(lines) == len(values()) + 1
    opened.check()


def test_tooltips_tell_the_figures(chromium: Any, slow2: Path) -> None:
    opened = Opened(chromium, slow2)
    opened.page.locator("#heatmap > summary").click()
    rank_0 = opened.page.locator("#heatmap svg.chart > rect").nth(5)  # behind the five of the legend
    rank_0.scroll_into_view_if_needed()
    # Scrolling takes tooltips away, and is told to the page with the next picture.
    opened.page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    rank_0.hover()
    tip = opened.page.locator("#tip")
    tip.wait_for(state="visible")
    assert tip.inner_text().startswith("rank 0\n") and "%" in tip.inner_text()
    opened.check()


def test_a_name_with_a_script_stays_text(chromium: Any, tmp_path: Path) -> None:
    evil = "</title></style><script>document.title='owned';alert(1)</script><img src=http://x.invalid/ onerror=alert()>"
    events = [kernel_event(evil, 10, 5, 1), slice_event(evil, 0, 100)]
    run = open_trace(write_kineto(tmp_path / "rank-0.json", events))
    opened = Opened(chromium, write_report(run, tmp_path / "evil.html", name=evil))
    opened.check()
    assert opened.page.title() != "owned" and opened.page.locator("img").count() == 0
    opened.page.click("#unfold")
    assert "document.title='owned'" in opened.page.locator("#kernels").inner_text()


@pytest.mark.parametrize(
    "name",
    [
        "ddp-gloo4",
        "gpt-h200",
        "gpt-h200-stack",
        "seqpar-gloo4",
        "seqpar-gloo4-slow2",
        "seqpar-nccl1-bf16",
        "seqpar-nccl1-fp32",
        "memory",
        "ncu",
        "nsys/gpt-h200",
        "nsys/seqpar-gloo2",
        "public/flight-recorder/gpu_error_1st",
        "public/hta/nccl_data.json.gz",
        "public/hta/ns_resolution.pt.trace.json.gz",
        "public/pipit/saxpy-mpi-cuda_nsys_perlmutter0.sqlite",
        "public/tracelens/h100_qwen.json.gz",
    ],
)
def test_every_dataset(
    name: str, chromium: Any, dataset: Callable[[str], Path], open_real: Callable[[Path], Run], tmp_path: Path
) -> None:
    path = write_report(open_real(dataset(name)), tmp_path / "report.html", name)
    assert path.stat().st_size < 3_000_000
    for how in ({}, {"viewport": PHONE, "color_scheme": "dark"}):
        Opened(chromium, path, **how).check()
