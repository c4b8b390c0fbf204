"""rankscope bench blame: cases with a planted fault each, and the score of any tool's answers to them."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rankscope.cli import Parser, Subcommand
from rankscope.cli.options import add_options
from rankscope.errors import UsageError
from rankscope.text.run_words import shell_word
from rankscope.units import parse_count

if TYPE_CHECKING:
    from rankscope_bench.blame.score import Share

EPILOG = """\
examples:
  rankscope bench blame make -o cases --size small
      24 jobs of 4 to 8 ranks in cases/case-001 …, and cases-truth/truth.json
  rankscope bench blame make -o cases --seed 7
      200 jobs of 4 to 256 ranks; the same seed gives the same cases
  rankscope bench blame make --seed 7 --truth truth.json
      the truth alone, written later from the seed
  rankscope bench blame score cases mytool.json othertool.json
      precision, recall, cause, cost and false alarms of each, with intervals
"""
_MAKE = """\
-o, --output DIR  where the cases go; new or empty
--seed N  which faults are in which jobs (default 0)
--size {small,full}  small: 24 cases of at most 8 ranks; full: 200 of at most 256 (default full)
--truth FILE  where the truth goes (default: DIR-truth/truth.json)
--jobs N  processes (default: one for each core)
"""
_SCORE = """\
DIR  the cases, as `make` wrote them
FILE ...  answers of tools, as DIR/submission.schema.json says; the parts by effect, layout, fault and ranks are
    those of the first (json: of all)
--truth FILE  the truth (default: DIR-truth/truth.json)
--format {table,json,markdown}  default: table
"""
_COLUMNS = {
    "answered": "answered",
    "precision": "precision",
    "recall": "recall",
    "f1": "F1",
    "cause": "cause",
    "cost_within_10pct": "cost within 10 %",
    "cost_error": "median cost error",
    "false_alarms": "false alarms",
    "uneven_blamed": "uneven work blamed",
    "best_f1": "F1 at its best threshold",
}
_OF_PARTS = ("answered", "precision", "recall", "cause", "cost_within_10pct")


def configure(parser: Parser) -> None:
    parser.description = (
        "An open benchmark: which rank is to blame for a slow job, why, and what does it cost?\n"
        "`make` writes traces of jobs with a planted fault each, `score` compares any tool's answers with the truth."
    )
    parser.epilog = EPILOG
    parser.add_subcommands("blame", ACTIONS)


def run(args: argparse.Namespace) -> int:
    return ACTIONS[args.blame].run(args)


def _configure_make(parser: argparse.ArgumentParser) -> None:
    add_options(parser, _MAKE, output=Path, seed="0", size="full", truth=Path, jobs="")


def _configure_score(parser: argparse.ArgumentParser) -> None:
    add_options(parser, _SCORE, dir=Path, file=Path, truth=Path, format="table")


def _make(args: argparse.Namespace) -> int:
    from rankscope.host import usable_cores
    from rankscope_bench.blame.make import make

    if args.output is None and args.truth is None:
        raise UsageError(
            "-o is missing",
            why="The folder of the cases has no default.",
            hint="Write it like -o cases; with --truth FILE alone, only the truth is written.",
        )
    truth = args.truth or truth_file(args.output)
    jobs = parse_count(args.jobs) if args.jobs else usable_cores()
    listed = make(parse_count(args.seed), args.size, args.output, truth, max(1, jobs), _say)
    if args.output is not None:
        print(f"Wrote {len(listed['cases'])} cases to {args.output}")
    print(f"Wrote {truth}; sha256 {listed['sha256']}, version {listed['version']}")
    if args.output is not None:
        print(
            f"Next: read {args.output}/task.md, then rankscope bench blame score {shell_word(args.output)} ANSWERS"
        )
    return 0


def _say(line: str) -> None:
    print(f"rankscope: {line}", file=sys.stderr, flush=True)


def truth_file(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-truth") / "truth.json"


def _score(args: argparse.Namespace) -> int:
    from rankscope_bench.blame.score import marked, parts, read_json, scores

    cases = read_json(args.dir / "cases.json")
    truth = read_json(args.truth or truth_file(args.dir))
    if cases.get("sha256") != truth.get("sha256"):
        raise UsageError(
            f"the truth is not that of {args.dir}",
            why="Its checksum is another one: another seed, size or version.",
            hint="Give the right one with --truth FILE",
        )
    tools = dict(marked(path, truth["cases"]) for path in args.file)
    results = {tool: scores(answers) for tool, answers in tools.items()}
    tables = {
        tool: {
            table: {name: scores(group) for name, group in groups.items()}
            for table, groups in parts(answers).items()
        }
        for tool, answers in tools.items()
    }
    if args.format == "json":
        document = {"sha256": truth["sha256"], "tools": results, "parts": tables}
        print(json.dumps(document, default=list, indent=1))
        return 0
    markdown = args.format == "markdown"
    first = next(iter(tools.values()))
    print(
        f"{len(first)} cases, {sum(answer.fault == 'healthy' for answer in first)} of them healthy, 95 % intervals\n"
    )
    rows = [(tool, *(_text(result[name]) for name in _COLUMNS)) for tool, result in results.items()]
    _print_table(("tool", *_COLUMNS.values()), rows, markdown)
    tool, by = next(iter(tables.items()))
    for table, groups in by.items():
        headings = (f"{tool}: {table}", "cases", *(_COLUMNS[name] for name in _OF_PARTS))
        rows = [
            (name, str(part["answered"].of), *(_text(part[column], False) for column in _OF_PARTS))
            for name, part in groups.items()
        ]
        print()
        _print_table(headings, rows, markdown)
    return 0


def _print_table(headings: tuple[str, ...], rows: list[tuple[str, ...]], markdown: bool) -> None:
    from rankscope.text.plain_table import plain_table

    if not markdown:
        print(plain_table(headings, rows))
        return
    lines = [headings, ("---",) * len(headings), *rows]
    print("\n".join(f"| {' | '.join(cells)} |" for cells in lines))


def _text(share: Share, with_interval: bool = True) -> str:
    if share.value is None:
        return "-"
    interval = f" ({share.low:.2f}-{share.high:.2f})" if with_interval and share.of else ""
    return f"{share.value:.2f}{interval}"


ACTIONS = {
    "make": Subcommand("write the cases and the truth", _configure_make, _make),
    "score": Subcommand("score the answers of tools", _configure_score, _score),
}
