"""rankscope stats: the summary of a run, or its tables."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankscope.cli import common
from rankscope.cli.help_text import wrapped
from rankscope.cli.options import add_options
from rankscope.errors import NotATraceError, UsageError
from rankscope.text.spelling import did_you_mean

if TYPE_CHECKING:
    from rankscope.analysis.core.report import Report
    from rankscope.analysis.core.result import Finding, Result
    from rankscope.analysis.core.scope import Scope
    from rankscope.timeline.run import Run

DESCRIPTION = "The summary of a run, or its tables. Raw traces are read first, once; later calls are fast."
EPILOG = """\
examples:
  rankscope stats RUN                    the summary: what costs time, and why
  rankscope stats RUN -r list            every report, and what it answers
  rankscope stats RUN -r kernels --by rank --top 5
  rankscope stats RUN -r ops,memcpy --steps 3:5 --format csv > tables.csv
  rankscope stats RUN --fail-on warning  exit code 3 when there is one, for CI
"""
MAIN_OPTIONS = "run report by ranks steps top format fail_on"
# Derived from the other reports, so not part of 'all'.
GATHERED = ("summary", "findings")
SUMMARY = {"summary": None, "kernels": 10}
"""The reports of the summary, and the rows of each."""
_CHANGES = (
    "by", "compat", "prefer", "comm_pattern", "baseline", "from_events", "verbose", "peak", "bandwidth", "steps", "mix",
    "dask",
)  # fmt: skip
"""Options that ask for something else than what a run is by default."""
_WHICH = """\
-r, --report NAME,…  reports by name, all, or list for the names; or an evidence id, which JSON answers give for
    the rows behind a figure (default: the summary)
--by KEY  rows by rank, node, group (of parallelism), shape, op, module, source or kernel, where the report has them
"""
_HOW = """\
--compat PEER  figures by another tool's definitions: hta, tracelens, nsys (-r list prints their reports)
--top N  rows shown, or all (default: 20 in tables, all in csv and json)
--format {table,csv,json,markdown}  default: table
--prefer {torch,nsys}  which file to use for a rank that both tools recorded (default: torch; nsys with --compat nsys)
--comm-pattern REGEX ...  count kernels whose name matches as communication too (may be repeated)
"""
_CEILINGS = """\
--peak RATE  989TF, bf16=989TF,tf32=494TF, or the file that `rankscope bench seqpar --json` wrote
--bandwidth RATE  peak memory bandwidth: 4.8TB/s
"""
_BASELINE = """\
--baseline FILE  compare collectives with the results of `rankscope bench collectives --json` or nccl-tests
"""


def configure(parser: argparse.ArgumentParser) -> None:
    common.add_run_argument(parser)
    add_options(parser, _WHICH)
    common.add_scope_options(parser)
    add_options(parser, _HOW, format="table")
    add_options(parser, common.CLOCKS, clocks="aligned")
    add_options(parser, _BASELINE, baseline=Path)
    add_options(parser, common.FAIL_ON + common.FROM_EVENTS)
    add_options(
        parser,
        "-v, --verbose  also print what was read: the sums that the store keeps, or the events of which ranks",
    )
    title = "the device's peak rates (default: from a table of devices, by its name)"
    add_options(parser.add_argument_group(title), _CEILINGS)
    common.add_reading_options(parser)


def main(args: argparse.Namespace) -> int:
    answers, is_usual = None, _is_usual(args)
    if is_usual and common.may_be_kept(args):
        from rankscope.analysis.core.kept_answers import Answers

        answers = Answers(common.open_run(args, for_kept=True))
        asked = args.report.split(",") if args.report else SUMMARY
        if (kept := answers.get(*_keys(args, asked))) is not None:
            return _show(args, kept)
        if answers.run.is_damaged():  # it is opened again, and repaired
            answers = None
    if args.report != "list":
        common.expect_reading(args)
    from rankscope.analysis.core.kept_answers import Answers

    reports = _reports(args.compat)
    if args.report == "list":
        print("\n".join(_listed(reports)))
        return 0
    wanted = _wanted(args, list(reports))
    if args.by:
        _check_key(args.by, [_report_of(name) for name in wanted], reports)
    scope = common.scope_of(args)
    prefer = {"torch": "kineto", "nsys": "nsys", None: "nsys" if args.compat == "nsys" else ""}[args.prefer]
    try:
        patterns = tuple(map(_pattern, args.comm_pattern))
        run = answers.run if answers else common.open_run(args, None, patterns, prefer)
    except NotATraceError:
        from rankscope.watch.rings import has_telemetry

        if len(args.run) != 1 or not has_telemetry(args.run[0]):
            raise
        return _telemetry_alone(args, wanted, scope)
    scope.check(run)
    if _is_screen(args):
        computed = _screen_parts(run, scope)
    else:
        computed = [_answer(name, reports, run, scope, args.by) for name in wanted]
    if is_usual:
        (answers or Answers(run)).keep(dict(zip(_keys(args, wanted), computed, strict=True)))
    if args.verbose:
        from rankscope.analysis.core.rollups import rollup_use

        common.say(f"rankscope: {rollup_use(run)}")
    return _show(args, computed)


def _keys(args: argparse.Namespace, reports: Iterable[str]) -> list[str]:
    """Under which names answers are kept."""
    if _is_screen(args):
        return [f"screen {part}" for part in ("subject", "summary", "kernels", "findings", "doubts")]
    return [f"report {name.strip()}" for name in reports]


def _show(args: argparse.Namespace, answers: list[Any]) -> int:
    """The parts of the screen, or results of reports."""
    if _is_screen(args):
        results = [_show_screen(args, *answers)]
    else:
        results = [answer.head(_rows(args, answer.name)) for answer in answers]
        _show_tables(args, results)
    asked_by_name = args.report not in (None, "all")
    return common.exit_code(args.fail_on, results, results if asked_by_name else results[:1])


def _rows(args: argparse.Namespace, report: str) -> int | None:
    shown = common.rows_shown(args)
    is_summary = args.report is None and not args.compat and not args.top
    return SUMMARY[report] if is_summary and shown is not None else shown


def _is_usual(args: argparse.Namespace) -> bool:
    """Whether it asks about the whole run, as it is by default: such answers are kept."""
    return (
        not any(getattr(args, name) for name in _CHANGES)
        and (args.ranks, args.window, args.clocks) == ("all", "steps", "aligned")
        and args.report not in ("all", "list")
        and ":" not in (args.report or "")
        and not (args.top and _is_screen(args))
    )


def _is_screen(args: argparse.Namespace) -> bool:
    return args.report is None and args.compat is None and args.format == "table"


def _screen_parts(run: Run, scope: Scope) -> list[Any]:
    """What the screen shows, in the order of _keys."""
    from rankscope.analysis import REPORTS
    from rankscope.analysis.findings import collect
    from rankscope.analysis.health.doubts import doubts
    from rankscope.analysis.summary import subject
    from rankscope.analysis.within_rank.event_tables import top_kernels

    summary = REPORTS["summary"].analyse(run, scope, None)
    kernels = top_kernels(run, scope.in_run(run))
    if not kernels.rows:
        kernels = REPORTS["ncu"].analyse(run, scope, None)
    return [
        subject(run, scope, summary),
        summary,
        kernels.head(SUMMARY["kernels"]),
        collect(run, scope),
        doubts(run, scope),
    ]


def _show_tables(args: argparse.Namespace, results: list[Result]) -> None:
    from rankscope.views.envelope import Question
    from rankscope.views.findings import result_with_paths

    named = common.runs_of(args)
    if args.format != "json":
        results = [result_with_paths(result, named) for result in results]
    whole_run = args.ranks == "all" and not args.steps and args.window == "steps"
    question = Question(named, whole_run=whole_run)
    common.show_results(results, args.format, question, quote_formulas=not args.compat)


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


def _telemetry_alone(args: argparse.Namespace, wanted: list[str], scope: Scope) -> int:
    """The reports of a run folder that holds telemetry and no trace."""
    from rankscope.analysis.health.hang import hang_in
    from rankscope.analysis.health.telemetry import telemetry_in
    from rankscope.capture.run_folder import rank_manifests
    from rankscope.text.run_words import RunWords
    from rankscope.views.envelope import Question

    able = {"telemetry": telemetry_in, "hang": hang_in}
    asked_by_name = args.report not in (None, "all")
    if not asked_by_name:
        common.say(f"rankscope: {args.run[0]} holds telemetry and no trace")
        notes = [manifest.get("notes") for manifest in rank_manifests(args.run[0])]
        texts = [text for listed in notes if isinstance(listed, list) for text in listed]
        for text in dict.fromkeys(map(str, texts)):  # a requested capture that came too late, for one
            common.say(f"rankscope: {text}")
        wanted = [*able]
    for name in wanted:
        if name not in able:
            raise NotATraceError(
                f"{args.run[0]} holds telemetry and no trace: there is no report '{name}'",
                why=f"Telemetry has these: {', '.join(able)}.",
                hint="While the job runs, a trace can be recorded: rankscope capture RUN",
            )
    rows = common.rows_shown(args) if asked_by_name or args.top else common.DEFAULT_ROWS
    results = [able[name](args.run[0], scope.ranks).head(rows) for name in wanted]
    shown = [result for result in results if result.rows or result.findings] or results
    common.show_results(shown, args.format, Question({"RUN": RunWords(tuple(map(str, args.run)))}))
    return common.exit_code(args.fail_on, results, results if asked_by_name else ())


def _show_screen(
    args: argparse.Namespace,
    subject: str,
    summary: Result,
    kernels: Result,
    findings: Sequence[Finding],
    doubts: Sequence[Finding],
) -> Result:
    from rankscope.views import terminal_width, use_color
    from rankscope.views.findings import finding_with_paths
    from rankscope.views.summary import Screen, screen

    named = common.runs_of(args)
    summary, kernels = (
        result.head(_rows(args, name)) for result, name in zip((summary, kernels), SUMMARY, strict=True)
    )
    findings = [finding_with_paths(finding, named) for finding in findings]
    content = Screen(named["RUN"], subject, summary, kernels, findings, doubts)
    common.show(screen(content, terminal_width(sys.stdout), use_color(sys.stdout)))
    return summary


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


def _wanted(args: argparse.Namespace, names: list[str]) -> list[str]:
    """The names of the reports."""
    if args.report is None and args.compat:
        return names
    if args.report is None:
        return [*SUMMARY]
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
                why=f"rankscope has {len(names)} reports, and none of this name.",
                hint=f"{did_you_mean(name, names)}All of them: rankscope stats RUN -r list",
            )
    return wanted


def _listed(reports: dict[str, Report]) -> list[str]:
    """A line for each report, by topic, and which of them can be split."""
    from rankscope.analysis.questions import TOPICS

    topics = {"Reports": tuple(reports.values())}
    if all(name in reports for name in GATHERED):
        topics = {"Overview": tuple(reports[name] for name in GATHERED), **TOPICS}
    lines = []
    for topic, listed in topics.items():
        lines += [topic, *(f"  {report.name:<26} {report.question}" for report in listed), ""]
    for key in dict.fromkeys(key for report in reports.values() for key in report.keys):
        lines += wrapped(f"--by {key}: {_split_by(key, reports)}", 80)
    return lines


def _split_by(key: str, reports: dict[str, Report]) -> str:
    return ", ".join(report.name for report in reports.values() if key in report.keys)


def _check_key(key: str, names: list[str], reports: dict[str, Report]) -> None:
    if not any(key in reports[name].keys for name in names):
        able = _split_by(key, reports)
        keys = {key for report in reports.values() for key in report.keys}
        raise UsageError(
            f"{', '.join(names)} cannot be split by {key}",
            why=f"These reports can: {able}." if able else "No report supports it.",
            hint=f"{did_you_mean(key, keys)}See: rankscope stats RUN -r list",
        )


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise UsageError(
            f"--comm-pattern '{text}' is not a regular expression", why=f"{error}.", hint="See: --help"
        ) from None
    return text
