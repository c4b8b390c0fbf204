"""A picture of the viewer: starts it, lets a headless browser take a screenshot, and ends it. For make demo. Run:

python examples/viewer_picture.py BROWSER RUN PICTURE.png
"""

import subprocess
import sys
import tempfile
from pathlib import Path

SIZE = "1400,900"
LOADED_MS = 8000
"""How long the page may load and draw, in the browser's own time."""


def main(browser: str, run: str, picture: str) -> int:
    view = [sys.executable, "-m", "rankscope", "view", run, "--no-open", "-q"]
    with (
        tempfile.TemporaryDirectory() as profile,
        subprocess.Popen(view, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as viewer,
    ):
        assert viewer.stdout is not None
        address = viewer.stdout.readline().strip()
        command = [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
            f"--window-size={SIZE}",
            f"--virtual-time-budget={LOADED_MS}",
            f"--screenshot={Path(picture).resolve()}",
            address,
        ]
        taken = subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60, check=False
        )
        viewer.terminate()
    if taken.returncode or not Path(picture).is_file():
        print(f"{browser} could not take a picture of the viewer")
        return 1
    print(f"Wrote {picture}: the viewer")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
