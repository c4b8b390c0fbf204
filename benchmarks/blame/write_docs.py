"""Writes the results of docs/benchmark.md from the answers of tools.

python benchmarks/blame/write_docs.py CASES SUBMISSION...
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
_RESULTS = re.compile(r"(<!-- results: .*? -->\n).*?(<!-- end of results -->)", re.DOTALL)


def results(folder: Path, submissions: Sequence[Path]) -> str:
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
    return f"{about}{spent}\n\n{done.stdout}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("submissions", nargs="+", type=Path)
    args = parser.parse_args(argv)
    text = results(args.folder, args.submissions)
    PAGE.write_text(_RESULTS.sub(lambda match: f"{match[1]}{text}{match[2]}", PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
