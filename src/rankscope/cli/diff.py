"""rankscope diff: compare two runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rankscope.cli import common
from rankscope.cli.options import add_options
from rankscope.errors import UsageError
from rankscope.text.spelling import did_you_mean
from rankscope.units import parse_percent, shorten_middle

if TYPE_CHECKING:
    from rankscope.analysis.core.result import Result

DESCRIPTION = """\
Two runs, per step and rank: steps, breakdown, ops with their shapes, the host's
ops, kernel families, kernels, collectives, memory. A permutation test over the
steps separates changes from noise; a row without a clear change is "same". The
step time is tested alone, the other rows together.

Two memory snapshots, or -r stacks: what each call stack holds at the end and at
the peak; what grew most, perhaps a leak, stands first.
"""
EPILOG = """\
examples:
  rankscope diff before after
  rankscope diff main-run pr-run --fail-over 3% --format junit > diff.xml
      exit code 3 when a row is slower by more than 3 %, for CI
  rankscope diff float32 bfloat16 -r steps,ops
  rankscope diff one-node two-nodes -r breakdown,collectives
  rankscope diff step-100.pickle step-200.pickle
"""
MAIN_OPTIONS = "base new report ranks steps fail_over top format"
STACKS = "stacks"
THRESHOLD_CROSSED = 3
_WHAT = """\
BASE  the run before: folder or trace
NEW  the run after: folder or trace
-r, --report NAME,…  compare only these: steps, breakdown, ops, host, families, …; or the stacks of memory snapshots
"""
_HOW = """\
--fail-over PCT  exit with 3 when a row is slower by more than this, and print it: 3%%
--fail-on-likely  with --fail-over: also when the step time is likely slower, but the steps do not make it sure
--min-change PCT  ignore smaller changes, however certain: two captures of one program differ too (default: 1%%)
--top N  rows shown, or all (default: 20 in tables, all in csv, json and junit)
--format {table,csv,json,markdown,junit}  default: table
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_options(parser, _WHAT, base=Path, new=Path)
    common.add_scope_options(parser)
    add_options(parser, _HOW, min_change="1%", format="table")
    common.add_reading_options(parser)


def main(args: argparse.Namespace) -> int:
    from rankscope.analysis.diff.compare import Rules
    from rankscope.analysis.diff.two_runs import by_unit, diff, likely_slower, slower_rows
    from rankscope.analysis.memory.snapshot_diff import both_are_snapshots, snapshot_diff
    from rankscope.text.run_words import RunWords
    from rankscope.views.envelope import Question
    from rankscope.views.findings import result_with_paths

    stacks = args.report == STACKS
    rules = Rules(() if stacks else _reports(args.report), parse_percent(args.min_change))
    limit = parse_percent(args.fail_over) if args.fail_over is not None else None
    shown = common.rows_shown(args)
    scope = common.scope_of(args)
    base, new = (common.open_run(args, path) for path in (args.base, args.new))
    for run in (base, new):
        scope.check(run)
    if stacks or (args.report is None and both_are_snapshots(base, new)):
        return _stacks(args, snapshot_diff(base, new, scope, rules.min_change_pct), limit, shown)
    result = diff(base, new, scope, rules)
    failed = slower_rows(result, limit, args.fail_on_likely) if limit is not None else []
    doubtful = likely_slower(result, limit) if limit is not None and not args.fail_on_likely else []
    names = {"BASE": args.base, "NEW": args.new}
    runs = {name: RunWords((str(path),), common.window_words(args)) for name, path in names.items()}
    named = result_with_paths(result, runs)
    if args.format == "junit":
        from rankscope.views.junit import junit

        common.show(junit(named, {(row["report"], row["key"]) for row in failed}))
    else:
        parts = {"json": [result], "csv": [named]}.get(args.format) or by_unit(named)
        common.show_results([part.head(shown) for part in parts], args.format, Question(runs))
    for row in failed:
        change = "from nothing" if row["change_pct"] is None else f"{row['change_pct']:+.1f} %"
        key = shorten_middle(str(row["key"]), 80)
        common.say(f"rankscope: {row['report']}: {key}: {change}, over {args.fail_over}")
    for row in doubtful:
        common.say(
            f"rankscope: {row['report']}: {row['key']}: likely {row['change_pct']:+.1f} %, not counted: the steps do "
            "not make it sure (--fail-on-likely counts it)"
        )
    if limit is not None and result.unanswered:
        common.say(f"rankscope: the runs cannot be compared: {result.unanswered}")
        return THRESHOLD_CROSSED
    return THRESHOLD_CROSSED if failed else 0


def _stacks(args: argparse.Namespace, result: Result, limit: float | None, shown: int | None) -> int:
    """Memory snapshots. --fail-over is about what a device holds at the end."""
    from rankscope.analysis.memory.snapshot_diff import grown_devices

    if args.format == "junit":
        raise UsageError(
            "the stacks of memory snapshots have no junit form",
            why="They are no measures with a limit each.",
            hint="--format json has every row; --fail-over sets the exit code.",
        )
    common.show_results(result.head(shown), args.format)
    grown = grown_devices(result, limit) if limit is not None else []
    for rank, device, change in grown:
        common.say(
            f"rankscope: {device} of rank {rank} holds {change:+.1f} % at the end, over {args.fail_over}"
        )
    return THRESHOLD_CROSSED if grown else 0


def _reports(text: str | None) -> tuple[str, ...]:
    from rankscope.analysis.diff.samples import REPORTS

    if text is None or text == "all":
        return REPORTS
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in REPORTS:
            raise UsageError(
                f"'{name}' cannot be compared",
                why=f"The parts are: {', '.join(REPORTS)}; and {STACKS}, alone.",
                hint=f"{did_you_mean(name, REPORTS)}See: rankscope diff --help",
            )
    return names
