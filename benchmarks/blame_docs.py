"""Writes a section of the results of docs/accuracy.md from the answers of tools.

    python benchmarks/blame_docs.py SECTION CASES SUBMISSION... [--tools-only]

The page has a comment where each section begins: `<!-- results of SECTION: ... -->`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rankscope_bench.arguments import parsed
from rankscope_bench.exam.report import write_section


def results(folder: Path, submissions: Sequence[Path], tools_only: bool) -> str:
    truth = json.loads((folder.with_name(f"{folder.name}-truth") / "truth.json").read_text())
    words = ["bench", "blame", "score", str(folder), *map(str, submissions), "--format", "markdown"]
    done = subprocess.run(
        [sys.executable, "-m", "rankscope", *words], capture_output=True, text=True, check=True
    )
    cpu = [json.loads(path.read_text()) for path in submissions]
    seconds = ", ".join(
        f"{each['tool']} {each['cpu_seconds']:,.0f} s" for each in cpu if "cpu_seconds" in each
    )
    about = (
        f"Seed {truth['seed']}, size {truth['size']}, version {truth['version']}, sha256 `{truth['sha256']}`."
    )
    spent = f" CPU time for all answers: {seconds}." if seconds else ""
    tables = done.stdout.split("\n\n")
    return "\n\n".join([about + spent, *(tables[:2] if tools_only else tables)]).rstrip() + "\n"


_OPTIONS = """\
SECTION  of the page
FOLDER  the cases
SUBMISSIONS ...  of tools
--tools-only  without the tables of the first tool by kind
"""


def main(argv: Sequence[str] | None = None) -> int:
    args = parsed(__doc__, _OPTIONS, argv, folder=Path, submissions=Path)
    write_section(args.section, results(args.folder, args.submissions, args.tools_only))
    return 0


if __name__ == "__main__":
    sys.exit(main())
