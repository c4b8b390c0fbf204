"""Writes the pictures of README.md and docs from the run of `make demo`: report (light, dark, phone, print), viewer.

`make pictures` runs it. It needs chromium and playwright (pip install 'rankscope[dev]').
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

BROWSERS = ("chromium", "chromium-headless-shell", "google-chrome")
ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
REPORT, RUN = ROOT / "demo" / "report.html", ROOT / "demo" / "run"
SCREEN, PHONE, PAPER = (
    {"width": 1160, "height": 860},
    {"width": 390, "height": 844},
    {"width": 794, "height": 1123},
)
SETTINGS = {
    "report-light": {"viewport": SCREEN},
    "report-dark": {"viewport": SCREEN, "color_scheme": "dark"},
    "report-phone": {"viewport": PHONE, "device_scale_factor": 2},
    "report-print": {"viewport": PAPER},
}


def main() -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit("pictures.py needs chromium (tests/install-packages.sh installs it)")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for name, settings in SETTINGS.items():
            page = chromium.new_context(**settings).new_page()
            page.goto(REPORT.as_uri())
            if name == "report-print":
                page.emulate_media(media="print")
            page.screenshot(path=IMAGES / f"{name}.png")
            print(f"Wrote docs/images/{name}.png")
        chromium.close()
    picture = ROOT / "examples" / "viewer_picture.py"
    subprocess.run([sys.executable, picture, browser, RUN, IMAGES / "viewer.png"], check=True)


if __name__ == "__main__":
    main()
