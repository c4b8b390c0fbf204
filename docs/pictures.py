"""Writes the pictures of README.md and docs: report and viewer of the tutorial's run, the viewer of a GPU run, a chart.

All are of runs in tests/data and of the demo. `make pictures` runs it. It needs chromium and
playwright (pip install 'rankscope[dev]').
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from rankscope.cli import main as rankscope
from viewer_server import Screen, serve, stop

BROWSERS = ("chromium", "chromium-headless-shell", "google-chrome")
ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
DATA = ROOT / "tests" / "data"
DEMO = ROOT / "src" / "rankscope" / "demo"
SCREEN, PHONE, PAPER = (
    {"width": 1440, "height": 900},
    {"width": 390, "height": 844},
    {"width": 794, "height": 1123},
)
REPORTS = {
    "report-light": {"viewport": SCREEN},
    "report-dark": {"viewport": SCREEN, "color_scheme": "dark"},
    "report-phone": {"viewport": PHONE, "device_scale_factor": 2},
    "report-print": {"viewport": PAPER},
}
"""Of the tutorial's run."""
VIEWERS = {"viewer": "seqpar-gloo4-slow2", "viewer-slow-job": "run"}
ROOFLINE = "gpt-h200"


def report_pictures(chromium: Browser, run: Path) -> None:
    """In the folder of the run: what is shown has commands with its path."""
    report = run.parent / "report.html"
    with contextlib.chdir(run.parent):
        rankscope(["report", run.name, "-o", report.name, "-q"])
    for name, settings in REPORTS.items():
        page = chromium.new_context(**settings).new_page()
        page.goto(report.as_uri())
        if name == "report-print":
            page.emulate_media(media="print")
        page.screenshot(path=IMAGES / f"{name}.png")
        print(f"Wrote docs/images/{name}.png")


def viewer_picture(chromium: Browser, run: Path, name: str) -> None:
    """In the folder of the run, as above."""
    with contextlib.chdir(run.parent):
        viewer = serve(Path(run.name))
    page = chromium.new_context(viewport=SCREEN).new_page()
    Screen(page, []).open(viewer.url)
    page.screenshot(path=IMAGES / f"{name}.png")
    stop(viewer)
    print(f"Wrote docs/images/{name}.png")


def main() -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit("pictures.py needs chromium (tests/install-packages.sh installs it)")
    with tempfile.TemporaryDirectory(prefix="rankscope-pictures-") as folder, sync_playwright() as playwright:
        for run in (*VIEWERS.values(), ROOFLINE):
            shutil.copytree((DEMO if (DEMO / run).exists() else DATA) / run, Path(folder) / run)
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        report_pictures(chromium, Path(folder) / VIEWERS["viewer-slow-job"])
        for name, run in VIEWERS.items():
            viewer_picture(chromium, Path(folder) / run, name)
        chromium.close()
        chart = ["chart", str(Path(folder) / ROOFLINE), "-r", "roofline", "-f"]
        rankscope([*chart, "-o", str(IMAGES / "roofline.png"), "-q"])


if __name__ == "__main__":
    main()
