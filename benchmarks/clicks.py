"""An expert's questions, asked of the viewer by clicks only: who is late, in which step, since when, why, what else.

    python benchmarks/clicks.py [NAME ...]

The page is opened anew for each question, and every click is counted. An answer counts if its words, which are known
from how the run was made, stand where a user sees them at 1440 x 900: not below an edge, not behind something else.
Fails where one needs more than three clicks. It needs chromium and playwright (pip install 'rankscope[dev]').
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import sync_playwright

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from rankscope.text.plain_table import plain_table
from rankscope_bench.synthetic.cluster_trace import write_job
from rankscope_bench.synthetic.job import Fault, Job
from viewer_server import Screen, browser_program, serve, stop

ROOT = Path(__file__).parent.parent
QUESTIONS = ("who", "which step", "since when", "why", "what else")
MOST_CLICKS = 3
PATIENCE_S = 300
SCREEN = {"width": 1440, "height": 900}
# The text of every line, cell and short paragraph that is seen whole: in the window, not cut, nothing drawn over it.
SEEN = """() => [...document.querySelectorAll('#verdict *, #panel *')].filter((node) => {
  const { left, right, top, bottom } = node.getBoundingClientRect();
  const inside = right > left && left >= 0 && top >= 0 && bottom <= innerHeight && bottom - top < 90;
  if (!inside || node.clientWidth && node.scrollWidth > node.clientWidth + 1) return false;
  const there = document.elementFromPoint(left + Math.min(right - left, 300) / 2, (top + bottom) / 2);
  return there && (node.contains(there) || there.contains(node));
}).map((node) => (node.innerText ?? '').replace(/\\s+/g, ' ').trim())"""


class Answer(NamedTuple):
    """What to click, and the lines that are seen then."""

    clicks: tuple[str, ...]
    lines: tuple[str, ...]
    """Expressions."""


ALL_STEPS = "it caused the largest wait in 6 of 6 steps"
BY_STEP, EQUAL = "stragglers by step", "every rank runs each op as often as the median of its peers"
DP64 = Job(data=8, tensor=8, layers=2, norm_ns=40_000, steps=6, faults=(Fault("host", (37,), 5_000_000),))
PP32 = Job(
    stages=8, data=2, tensor=2, schedule="1f1b", micro_batches=4, layers=2, kernels=2, norm_ns=40_000, steps=6,
    faults=(Fault("throttle", (13,), 20_000_000),),
)  # fmt: skip
RUNS: dict[str, tuple[Answer, ...]] = {
    "ddp-gloo4": (
        Answer((), (r"^Rank 0 made 3 others wait",)),
        Answer((), (r"^Rank 0 made .*, late in step 2;",)),
        Answer(("Rank 0 made 3 others wait", BY_STEP), (r"^2 0 .* true$", r"^3 .* false$", r"^4 .* false$")),
        Answer((), (r"its host is 3.64 ms late",)),
        Answer(("stragglers.op_differences",), (EQUAL,)),
    ),
    "seqpar-gloo4-slow2": (
        Answer((), (r"^Rank 2 made 3 others wait",)),
        Answer((), (ALL_STEPS,)),
        Answer((BY_STEP,), (r"^2 2 .* true$",)),
        Answer((), (r"slow_extra runs 12.8 ms on its GPU",)),
        Answer(("stragglers.op_differences",), (r"^2 \d matmul 12 2 ",)),
    ),
    "dp64": (
        Answer((), (r"^Rank 37 made \d+ others wait",)),
        Answer((), (ALL_STEPS,)),
        Answer((BY_STEP,), (r"^0 37 .* true$",)),
        Answer((), (r"its host is [4-6]\.\d+ ms late",)),
        Answer(("stragglers.op_differences",), (EQUAL,)),
    ),
    "pp32": (
        Answer((), (r"^Rank 13 made \d+ others wait",)),
        Answer((), (ALL_STEPS,)),
        Answer((BY_STEP,), (r"^0 13 .* true$",)),
        Answer((), (r"nvjet_sm90_(forward|backward)_\S+ takes 2\.\d+?x the median",)),
        Answer(("stragglers.op_differences",), (EQUAL,)),
    ),
    "hf-trainer-h200": (
        Answer((), (r"^GPU of rank 0 idle 78 %",)),
        Answer(("Reports",), (r"^0 3 64 ",)),
        Answer(("Reports",), (r"^0 2 59 .* 45 –$", r"^0 3 64 .* 51 –$")),
        Answer((), (r"mainly host-bound \(the launch calls come too late\)",)),
        Answer((), (r"^The critical path is host-bound \(99 %\)",)),
    ),
}
"""In the order of QUESTIONS. The figures of recorded runs are those of tests/data/README.md and docs/definitions.md."""


def ask(chromium: Any, url: str, answer: Answer) -> str:
    """The number of clicks, or what is not seen after them."""
    context = chromium.new_context(viewport=SCREEN)
    screen = Screen(context.new_page(), [])
    screen.page.goto(url)
    screen.until("document.body.dataset.ready === 'true' && window.rankscope.checked.length > 0", PATIENCE_S)
    screen.settle()
    for words in answer.clicks:
        screen.page.get_by_text(re.compile(f"^{re.escape(words)}")).first.click()
        screen.panel()
        screen.settle()
    seen = screen.page.evaluate(SEEN)
    missing = [line for line in answer.lines if not any(re.search(line, text) for text in seen)]
    context.close()
    return f"not seen: {missing[0]}" if missing else str(len(answer.clicks))


def main(names: list[str]) -> int:
    rows = []
    with tempfile.TemporaryDirectory(prefix="rankscope-clicks-") as folder, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser_program(), args=["--no-sandbox"])
        for name in names or RUNS:
            run = Path(folder) / name
            if job := {"dp64": DP64, "pp32": PP32}.get(name):
                write_job(job, run, balanced=False)
            else:
                shutil.copytree(ROOT / "tests" / "data" / name, run)
            viewer = serve(run)
            rows.append((name, *(ask(chromium, viewer.url, answer) for answer in RUNS[name])))
            stop(viewer)
        chromium.close()
    print(plain_table(("clicks", *QUESTIONS), rows, left=1))
    cells = [cell for row in rows for cell in row[1:]]
    return int(not all(cell.isdecimal() and int(cell) <= MOST_CLICKS for cell in cells))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
