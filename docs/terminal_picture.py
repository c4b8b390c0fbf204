"""The first picture of README.md and of the site: a terminal in which the tutorial's run is asked, as animated SVG."""

from __future__ import annotations

import re
import tempfile
from html import escape
from pathlib import Path

import outputs

SHOWN = (("rankscope stats run", 9), ("rankscope diff run fixed", 4))
"""Commands, and how many lines of what they print."""
COLUMNS, LINE_PX, COLUMN_PX, MARGIN = 80, 18, 8.0, 16
STYLE = """\
text { font: 13px ui-monospace, "SF Mono", "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #d7dae0 }
text { white-space: pre }
.command { fill: #7fd1ff; font-weight: 600 } .critical { fill: #ff8f87 } .strong { font-weight: 600; fill: #fff }
.line { animation: shown 0.01s linear backwards }
@keyframes shown { from { opacity: 0 } }
@media (prefers-reduced-motion: reduce) { .line { animation: none } }"""


def terminal_picture() -> str:
    rows: list[tuple[str, str, float]] = []
    at = 0.0
    with tempfile.TemporaryDirectory(prefix="rankscope-docs-") as folder:
        for command, most in SHOWN:
            rows.append(("command", f"$ {command}", at))
            line = outputs.LINE.match(f"$ {command}\n")
            assert line
            text = outputs.output(line, Path(folder), COLUMNS) or ""
            printed = re.sub(r"^What changed.*\n\n", "", text).split("\n")[:most]
            for number, shown in enumerate(printed):
                kind = "strong" if number == 0 else "critical" if "critical" in shown else ""
                rows.append((kind, shown, at + 0.5 + 0.04 * number))
            rows.append(("", "", at))
            at += 3.0
    width, height = COLUMNS * COLUMN_PX + 2 * MARGIN, len(rows) * LINE_PX + MARGIN + 8
    lines = [
        f'<text class="line {kind}" x="{MARGIN}" y="{MARGIN + LINE_PX * (number + 0.75):.0f}" '
        f'style="animation-delay: {start:.2f}s">{escape(text)}</text>'
        for number, (kind, text, start) in enumerate(rows)
        if text
    ]
    title = "rankscope names the slow rank of a recorded run, and what its fix saved"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">',
            f"<title>{title}</title>",
            f"<style>{STYLE}</style>",
            f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#161a21"/>',
            *lines,
            "</svg>\n",
        ]
    )
