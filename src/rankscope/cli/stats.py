"""rankscope stats: the summary of a run, or its tables."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rankscope.cli import common
from rankscope.cli.help_text import wrapped
from rankscope.cli.options import add_options
from rankscope.errors import NotATraceError, UsageError
from rankscope.text.spelling import did_you_mean

if TYPE_CHECKING:
    from rankscope.analysis.core.report import Report
    from rankscope.analysis.core.result import Result
    from rankscope.analysis.core.scope import Scope
    from rankscope.text.run_words import Runs
    from rankscope.timeline.run import Run

EXAMPLES = """\
examples:
  rankscope stats RUN                              the summary: the verdict, the largest costs, the next commands
  rankscope stats RUN --fail-on warning            the same; exit code 3 when a finding is at least a warning
  rankscope stats RUN -r list                      every report, and what it answers
  rankscope stats RUN -r kernels --by rank --top 5
  rankscope stats RUN -r ops --by shape --steps 3:5
  rankscope stats RUN -r kernels,memcpy --format csv > tables.csv
  rankscope stats RUN -r breakdown --compat hta    HTA's figures for it, and why ours differ
"""
DEFAULT_ROWS = 20
# Derived from the other reports, so not part of 'all'.
GATHERED = ("summary", "findings")
SUMMARY = (("summary", None), ("kernels", 10))
_WHICH = """\
-r, --report NAME,…  which reports: names, all, or list to print the names; or an evidence id of a JSON answer, for its
    rows (default: the summary)
--by KEY  rows by rank, node, group (of tensor, pipeline or data parallelism), shape, op, module, source or kernel,
    where the report supports it
"""
_HOW = """\
--compat PEER  figures by another tool's definitions: hta, tracelens, nsys (-r list prints their reports)
--top N  rows shown, or all (default: 20 in tables, all in csv and json)
--format {table,csv,json,markdown}  default: table
--prefer {torch,nsys}  which file to use for a rank that both tools recorded (default: torch; nsys with --compat nsys)
--comm-pattern REGEX ...  count kernels whose name matches as communication too (may be repeated)
"""
_BASELINE = """\
--baseline FILE  compare collectives with the results of `rankscope bench collectives --json` or nccl-tests
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "The summary of a run, or its tables. Raw traces are read first, once; later calls are fast."
    )
    parser.epilog = EXAMPLES
    common.add_run_argument(parser)
    add_options(parser, _WHICH)
    common.add_scope_options(parser)
    add_options(parser, _HOW, format="table", comm_pattern=[])
    common.add_clocks(parser)
    add_options(parser, _BASELINE, baseline=Path)
    common.add_fail_on(parser)
    common.add_from_events(parser)
    add_options(
        parser, "-v, --verbose  also print what was read: rollups, or the events of which ranks and why"
    )
    common.add_ceiling_options(parser)
    common.add_reading_options(parser)


def main(args: argparse.Namespace) -> int:
    if args.report != "list":
        common.expect_reading(args)
    from rankscope.analysis.core.scope import Scope
    from rankscope.analysis.within_rank.event_tables import top_kernels
    from rankscope.text.run_words import RunWords, shell_words
    from rankscope.views.commands import result_with_paths
    from rankscope.views.envelope import Question

    reports = _reports(args.compat)
    if args.report == "list":
        print("\n".join(_listed(reports)))
        return 0
    wanted = _wanted(args, list(reports))
    if args.by:
        _check_key(args.by, [_report_of(name) for name, _ in wanted], reports)
    scope = common.scope_of(args)
    prefer = {"torch": "kineto", "nsys": "nsys", None: "nsys" if args.compat == "nsys" else ""}[args.prefer]
    try:
        run = common.open_run(args, None, tuple(map(_pattern, args.comm_pattern)), prefer)
    except NotATraceError:
        if not _is_watched(args.run):
            raise
        return _telemetry_alone(args, wanted, scope)
    scope.check(run)
    named = {"RUN": RunWords(shell_words(args.run), common.window_words(args))}
    if args.report is None and args.compat is None and args.format == "table":
        shown = dict(wanted)
        results = [reports["summary"].analyse(run, scope, None).head(shown["summary"])]
        kernels = top_kernels(run, scope.in_run(run)).head(shown["kernels"])
        common.show(_screen(named, run, scope, results[0], kernels))
    else:
        results = [_answer(name, reports, run, scope, args.by).head(rows) for name, rows in wanted]
        printed = results
        if args.format != "json":
            printed = [result_with_paths(result, named) for result in results]
        question = Question(named, whole_run=scope == Scope(machine=scope.machine))
        common.show_results(printed, args.format, question, quote_formulas=not args.compat)
    if args.verbose:
        from rankscope.analysis.core.rollups import rollup_use

        common.say(f"rankscope: {rollup_use(run)}")
    asked_by_name = args.report not in (None, "all")
    return common.exit_code(args.fail_on, results, results if asked_by_name else results[:1])


def _answer(name: str, reports: dict[str, Report], run: Run, scope: Scope, by: str | None) -> Result:
    """A report, or the rows of it that an evidence id means."""
    report = reports[_report_of(name)]
    if ":" in name:
        from rankscope.analysis.evidence import looked_up, parse_evidence

        return looked_up(parse_evidence(name), report, run, scope)
    return report.analyse(run, scope, by if by in report.keys else None)


def _report_of(name: str) -> str:
    """Of an evidence id, such as kernels:name+rank:9c0f2a17."""
    return name.partition(":")[0]


def _is_watched(paths: list[Path]) -> bool:
    from rankscope.watch.rings import has_telemetry

    return len(paths) == 1 and has_telemetry(paths[0])


def _telemetry_alone(args: argparse.Namespace, wanted: list[tuple[str, int | None]], scope: Scope) -> int:
    """The reports of a run folder that holds telemetry and no trace."""
    from rankscope.analysis.health.hang import hang_in
    from rankscope.analysis.health.telemetry import telemetry_in
    from rankscope.text.run_words import RunWords, shell_words
    from rankscope.views.envelope import Question

    able = {"telemetry": telemetry_in, "hang": hang_in}
    asked_by_name = args.report not in (None, "all")
    if not asked_by_name:
        common.say(f"rankscope: {args.run[0]} holds telemetry and no trace")
        wanted = [(name, wanted[0][1] if args.top else DEFAULT_ROWS) for name in able]
    for name, _ in wanted:
        if name not in able:
            raise NotATraceError(
                f"{args.run[0]} holds telemetry and no trace: there is no report '{name}'",
                why=f"Telemetry has these: {', '.join(able)}.",
                hint="While the job runs, a trace can be recorded: rankscope capture RUN",
            )
    results = [able[name](args.run[0], scope.ranks).head(rows) for name, rows in wanted]
    shown = [result for result in results if result.rows] or results
    common.show_results(shown, args.format, Question({"RUN": RunWords(shell_words(args.run))}))
    return common.exit_code(args.fail_on, results, results if asked_by_name else ())


def _screen(named: Runs, run: Run, scope: Scope, summary: Result, kernels: Result) -> str:
    from rankscope.analysis.findings import collect
    from rankscope.analysis.health.doubts import doubts
    from rankscope.analysis.summary import subject
    from rankscope.views import terminal_width, use_color
    from rankscope.views.commands import finding_with_paths
    from rankscope.views.summary import Screen, screen

    findings = [finding_with_paths(finding, named) for finding in collect(run, scope)]
    about = subject(run, scope, summary)
    content = Screen(named["RUN"].path, about, summary, kernels, findings, doubts(run, scope))
    return screen(content, terminal_width(sys.stdout), use_color(sys.stdout))


def _reports(peer: str | None) -> dict[str, Report]:
    if peer is None:
        from rankscope.analysis import REPORTS

        return REPORTS
    from rankscope.analysis.compat import COMPAT

    if peer not in COMPAT:
        raise UsageError(
            f"--compat {peer} is not supported",
            why="rankscope does not have its definitions.",
            hint=f"Supported: {', '.join(COMPAT)}.",
        )
    return COMPAT[peer]


def _wanted(args: argparse.Namespace, names: list[str]) -> list[tuple[str, int | None]]:
    """Reports with the number of rows to show of each (None for all)."""
    shown: int | None = DEFAULT_ROWS if args.format in ("table", "markdown") else None
    if args.top:
        from rankscope.units import parse_count

        shown = None if args.top == "all" else parse_count(args.top)
    if args.report is None and args.compat:
        return [(name, shown) for name in names]
    if args.report is None:
        return [(name, shown if args.top or shown is None else rows) for name, rows in SUMMARY]
    every = [name for name in names if args.compat or name not in GATHERED]
    if args.report == "all":
        wanted = every
    elif args.compat:
        wanted = [name.strip() for name in args.report.split(",")]
    else:
        wanted = common.current_reports(args.report)
    for name in map(_report_of, wanted):
        if name not in names:
            raise UsageError(
                f"there is no report '{name}'",
                why=f"There are {len(names)} others.",
                hint=f"{did_you_mean(name, names)}All of them: rankscope stats RUN -r list",
            )
    return [(name, shown) for name in wanted]


def _listed(reports: dict[str, Report]) -> list[str]:
    """A line for each report, by topic, and which of them can be split."""
    from rankscope.analysis.questions import TOPICS

    are_ours = all(name in reports for name in GATHERED)
    topics = {"Overview": GATHERED, **TOPICS} if are_ours else {"Reports": tuple(reports)}
    lines = []
    for topic, names in topics.items():
        lines += [topic, *(f"  {name:<15} {reports[name].question}" for name in names), ""]
    for key in dict.fromkeys(key for report in reports.values() for key in report.keys):
        lines += wrapped(f"--by {key}: {_split_by(key, reports)}", 80)
    return lines


def _split_by(key: str, reports: dict[str, Report]) -> str:
    return ", ".join(report.name for report in reports.values() if key in report.keys)


def _check_key(key: str, names: list[str], reports: dict[str, Report]) -> None:
    if not any(key in reports[name].keys for name in names):
        able = _split_by(key, reports)
        raise UsageError(
            f"{', '.join(names)} cannot be split by {key}",
            why=f"These reports can: {able}." if able else "No report supports it.",
            hint="See: -r list",
        )


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise UsageError(
            f"--comm-pattern '{text}' is not a regular expression", why=f"{error}.", hint="See: --help"
        ) from None
    return text
