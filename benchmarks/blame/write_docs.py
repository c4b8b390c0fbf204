"""Writes a section of the results of docs/benchmark.md from the answers of tools.

    python benchmarks/blame/write_docs.py SECTION CASES SUBMISSION... [--tools-only]

The page has a comment where each section begins: `<!-- results of SECTION: ... -->`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "benchmark.md"


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


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("section")
    parser.add_argument("folder", type=Path)
    parser.add_argument("submissions", nargs="+", type=Path)
    parser.add_argument(
        "--tools-only", action="store_true", help="without the tables of the first tool by kind"
    )
    args = parser.parse_args(argv)
    text = results(args.folder, args.submissions, args.tools_only)
    section = re.compile(
        rf"(<!-- results of {re.escape(args.section)}: .*? -->\n).*?(<!-- end of results -->)", re.DOTALL
    )
    page, count = section.subn(lambda match: f"{match[1]}{text}{match[2]}", PAGE.read_text())
    if count != 1:
        parser.error(f"{PAGE.name} has {count} sections of this name, not one")
    PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
