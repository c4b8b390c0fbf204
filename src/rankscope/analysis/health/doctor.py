"""Checks of the quality of a recording, each with a value, and a grade."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from operator import itemgetter

from rankscope.analysis.core.advice import framework, recording_hint
from rankscope.analysis.core.result import SEVERITIES, Column, Fact, Finding, Result, Severity, argv
from rankscope.analysis.core.scope import Scope, has_iterations
from rankscope.analysis.health.doubts import Check, doubtful, percent
from rankscope.analysis.within_rank.kernel_families import family
from rankscope.model import LAUNCH_CATEGORIES
from rankscope.readers.base import rank_from_name
from rankscope.sql import sql_texts
from rankscope.store.index import sidecar_records
from rankscope.timeline.run import Run

COLUMNS = (
    Column("verdict", help="ok, info, warning or critical"),
    Column("value", help="the measured value"),
    Column("check", help="what is checked"),
)
_LAUNCHES = r"Launch(?:$|[^H])|MemcpyAsync|MemsetAsync|MemcpyHtoD|MemcpyDtoH"
"""Calls that start work on a device; LaunchHostFunc starts a function of the host."""


def doctor(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row for each check; every check that is not ok is also a finding."""
    checks = [*doubtful(run, scope.in_run(run)), *_checks(run)]
    rows = [
        {
            "verdict": check.finding.severity if check.finding else "ok",
            "value": check.value,
            "check": check.name,
        }
        for check in checks
    ]
    findings = [check.finding for check in checks if check.finding]
    findings.sort(key=lambda finding: -SEVERITIES.index(finding.severity))
    title = f"Can this trace be trusted? Grade {grade([finding.severity for finding in findings])}"
    note = "grades: A no findings, B only info, C one or two warnings, D more warnings, F a critical finding"
    return Result("doctor", title, "whole file", COLUMNS, rows, tuple(findings), (note,))


def grade(severities: list[Severity]) -> str:
    """A: no findings; B: only info; C: one or two warnings; D: more warnings; F: a critical finding."""
    if "critical" in severities:
        return "F"
    warnings = severities.count("warning")
    if warnings:
        return "C" if warnings < 3 else "D"
    return "B" if severities else "A"


def _checks(run: Run) -> Iterator[Check]:
    yield from _reading(run)
    yield _swapped(run)
    yield from _links(run)
    yield _negative(run)
    yield _overlapping(run)
    yield from _steps(run)
    yield _unknown_kernels(run)
    yield from _tool_reports(run)
    yield from _companions(run)


def _companions(run: Run) -> Iterator[Check]:
    """Captures of graphs and logs of torch.compile beside the traces, where there are any."""
    files = [file for file in sidecar_records(run.segments) if file["kind"] or file["unused"]]
    if not files:
        return
    unused = [file["unused"] for file in files if not file["used"]]
    finding = None
    if unused:
        what, why, advice = unused[0]
        text = f"{len(unused)} of {len(files)} files beside the traces add nothing"
        finding = Finding("info", text, facts=(Fact("example", f"{what}. {why}"),), advice=advice)
    yield Check("files that add to the traces", f"{len(files) - len(unused)} of {len(files)} used", finding)


def _reading(run: Run) -> Iterator[Check]:
    reports = {entry.source.name: entry.manifest["reading"] for entry in run.segments}
    lost = sum(report["events_lost"] for report in reports.values())
    events = sum(entry.manifest["events"] for entry in run.segments)
    examples = [Fact("example", report["examples"][0]) for report in reports.values() if report["examples"]][
        :1
    ]
    finding = None
    if lost:
        share = 100 * lost / (events + lost)
        finding = Finding(
            "critical" if share > 5 else "warning",
            f"{lost:,} events ({percent(share)} %) could not be read",
            facts=tuple(examples),
            advice="These events are missing from all tables; capture again if they matter.",
        )
    yield Check("events lost in reading", f"{lost:,} of {events + lost:,}", finding)
    repaired = sum(report["events_repaired"] for report in reports.values())
    text = f"{repaired:,} damaged events were repaired"
    yield Check(
        "events repaired",
        f"{repaired:,}",
        Finding("info", text, facts=tuple(examples)) if repaired else None,
    )
    # A batch that the reader written in C does not understand goes to DuckDB.
    batches: Counter[str] = Counter()
    for entry in run.segments:
        batches.update(entry.manifest["read_by"])
    (most, _), *others = batches.most_common() or [("DuckDB", 0)]
    readers = [most, *(f"{name} ({count:,} of {batches.total():,} batches)" for name, count in others)]
    yield Check("read by", ", ".join(readers))
    misplaced = sum(entry.manifest["misplaced"] for entry in run.segments)
    text = f"{misplaced:,} events have ts = 0 or a time far from the others"
    finding = Finding("warning", text, advice="They are in no table.") if misplaced else None
    yield Check("events without a usable time", f"{misplaced:,}", finding)


def _tool_reports(run: Run) -> Iterator[Check]:
    """nsys reports and rocpd databases: they contain the environment of the job, and may have several processes."""
    for tool, kind, advice, command, unknown in _TOOL_REPORTS:
        reports = [(entry, entry.manifest["header"]) for entry in run.segments if entry.format == tool]
        if not reports:
            continue
        told = [entry for entry, header in reports if header.get("recordedEnvironment")]
        names = list(dict.fromkeys(entry.source.name for entry in told))
        finding = None
        if names:
            some = ", ".join(names[:4]) + (" …" if len(names) > 4 else "")
            export = next((name for name in names if name.endswith(".sqlite")), "REPORT.sqlite")
            finding = Finding(
                "warning",
                f"{len(names)} {kind}{'s contain' if len(names) > 1 else ' contains'} the job's environment variables",
                facts=(Fact("files", some),),
                ranks=tuple(sorted({entry.rank for entry in told})),
                advice="The raw file may contain keys and tokens; rankscope's store does not contain the variables. "
                f"Before you share it, {advice}",
                command=argv("rankscope export --scrub", export) if tool == "nsys" else (),
            )
        yield Check(f"{kind}s with the job's environment", f"{len(names)} of {len(reports)}", finding)
        others = {entry.source: header.get("otherProcesses", 0) for entry, header in reports}
        if left := sum(others.values()):
            title = (
                f"{left} process{'es' * (left > 1)} in {len(others)} {kind}{'s' * (len(others) > 1)} "
                f"belong{'s' * (left == 1)} to no rank"
            )
            advice = "These can be launchers, shells or helpers; their events are in no table."
            yield Check(f"processes of no rank in {kind}s", f"{left}", Finding("info", title, advice=advice))
        merged = [
            (int(count), entry) for entry, header in reports if (count := header.get("mergedProcesses"))
        ]
        if merged:
            count, entry = max(merged, key=itemgetter(0))
            subject = f"rank {entry.rank}, {entry.source.name}"
            finding = Finding(
                "warning",
                f"{count} processes of {entry.source.name} are read as one rank (rank {entry.rank})",
                ranks=tuple(sorted(each.rank for _, each in merged)),
                advice=f"{unknown} tells their ranks; if they are ranks, every report mixes compute and communication "
                "of several. Record each rank into its own file",
                command=argv(command),
                facts=(Fact("merged_processes", count, "count", subject, (entry.rank,)),),
            )
            yield Check(f"{kind}s with merged processes", f"{len(merged)}", finding)


_TOOL_REPORTS = (
    (
        "nsys",
        "nsys report",
        "scrub it",
        "rankscope profile --tool nsys torchrun …",
        "Neither the recorded environment, the command, MPI nor NCCL",
    ),
    (
        "rocprof",
        "rocpd database",
        "empty the column environment of rocpd_info_process in a copy.",
        "rocprofv3 -o rank-%rank% -- PROGRAM",
        "Neither their environment nor the name of the output",
    ),
)
"""Format, what its files are called, what to do before one is shared, how to record one a rank, and what does not tell
ranks."""


def _swapped(run: Run) -> Check:
    wrong = [
        f"{entry.source.name} contains rank {entry.rank}"
        for entry in run.segments
        if rank_from_name(entry.source) not in (None, entry.rank)
    ]
    finding = None
    if wrong:
        title = f"{len(wrong)} files have another rank in their name"
        finding = Finding("warning", title, facts=tuple(Fact("file", text) for text in wrong))
    return Check("file names that contradict the rank inside", f"{len(wrong)}", finding)


def _links(run: Run) -> Iterator[Check]:
    ((total, alone),) = run.rows("SELECT count(*), count(*) FILTER (launch IS NULL) FROM gpu")
    check = "GPU events without their launch"
    if total and framework(run) == "triton":  # Proton never records them
        unknown = "Why a GPU is idle, and which op runs a kernel, is not known."
        advice = f"{unknown} {recording_hint(run, 'launches')}"
        finding = Finding("info", "no launches in the trace", advice=advice)
        yield Check(check, f"{alone:,} of {total:,}", finding)
    else:
        yield _share(
            check,
            alone,
            total,
            "GPU events without a launch in the file",
            "Their op is not known. They were launched before the recording began, or the launch was lost. "
            "One or two warm-up steps before the active steps avoid most of them.",
        )
    launches = sql_texts(LAUNCH_CATEGORIES)
    ((calls, without, captured),) = run.rows(f"""
        WITH calls AS (
            SELECT rank, segment, id, start_ns FROM slices
            WHERE category IN ({launches}) AND regexp_matches(name, '{_LAUNCHES}')
        ), ends AS (
            SELECT rank, segment, start_ns, name LIKE '%StreamBeginCapture%' AS begins FROM slices
            WHERE category IN ({launches}) AND regexp_matches(name, 'Stream(Begin|End)Capture')
        )
        SELECT count(*), count(*) FILTER (g.launch IS NULL),
               count(*) FILTER (g.launch IS NULL AND c.in_capture) FROM (
            SELECT c.*, coalesce(e.begins, false) AS in_capture FROM calls c ASOF LEFT JOIN ends e
            ON e.rank = c.rank AND e.segment = c.segment AND e.start_ns <= c.start_ns
        ) c
        LEFT JOIN (SELECT DISTINCT rank, segment, launch FROM gpu) g
        ON g.rank = c.rank AND g.segment = c.segment AND g.launch = c.id
    """)
    # A call that is captured becomes a node of a CUDA graph, and runs when the graph does.
    calls, without = calls - captured, without - captured
    if captured:
        yield Check("launches captured into CUDA graphs", f"{captured:,}")
    yield _share(
        "launches without their GPU event",
        without,
        calls,
        "launches without a GPU event",
        "The GPU event was not recorded: the buffer was full, or it ran after the end of the recording. "
        "Record fewer steps at a time.",
    )


def _share(check: str, count: int, total: int, title: str, advice: str) -> Check:
    """A check of a share: up to 5 % is info, more is a warning, over 50 % is critical."""
    value = f"{count:,} of {total:,}"
    if not count:
        return Check(check, value)
    share = 100 * count / total
    severity: Severity = "critical" if share > 50 else "warning" if share > 5 else "info"
    return Check(check, value, Finding(severity, f"{title}: {value} ({percent(share)} %)", advice=advice))


def _negative(run: Run) -> Check:
    ((count,),) = run.rows("SELECT count(*) FROM slices WHERE dur_ns < 0")
    title = f"{count:,} events have a negative duration"
    finding = Finding("warning", title, advice="Their duration counts as 0.") if count else None
    return Check("negative durations", f"{count:,}", finding)


def _overlapping(run: Run) -> Check:
    """Kernels of one stream run one after another, except with programmatic dependent launch."""
    ((total, count),) = run.rows(
        "SELECT count(*), count(*) FILTER (g.depth > 0) FROM gpu g JOIN tracks t ON t.rank = g.rank "
        "AND t.segment = g.segment AND t.track = g.track WHERE t.kind = 'stream'"
    )
    share = 100 * count / total if total else 0.0
    finding = None
    if count:
        finding = Finding(
            "warning" if share > 20 else "info",
            f"{count:,} GPU events ({percent(share)} %) overlap another on their stream",
            advice="They are drawn on extra rows; the sum of their durations exceeds the time they cover. "
            "Normal with programmatic dependent launch (CUDA 12 on Hopper); otherwise the clocks were "
            "unsteady.",
        )
    return Check("overlaps on one stream", f"{count:,} of {total:,}", finding)


def _steps(run: Run) -> Iterator[Check]:
    rows = run.rows("SELECT rank, segment, step, time_ns, source FROM steps ORDER BY rank, segment, start_ns")
    if not rows:
        advice = f"All values are for the whole file. {recording_hint(run, 'steps')}"
        yield Check("steps", "none", Finding("info", "no steps in the trace", advice=advice))
        return
    steps = f"{len({step for _, _, step, *_ in rows})}"
    finding = None
    if has_iterations(run):
        advice = f"They are the kernels that the busiest stream repeats. {recording_hint(run, 'steps')}"
        finding = Finding("info", f"{steps} inferred iterations", advice=advice)
    elif {source for *_, source in rows} - {"profiler"}:
        is_torch = framework(run) == "torch"
        advice = "Some files have no ProfilerStep." if is_torch else "They are numbered annotations."
        finding = Finding("info", f"{steps} steps, some of them inferred", advice=advice)
    yield Check("steps", steps, finding)


def _unknown_kernels(run: Run) -> Check:
    times = run.rows("SELECT name, sum(dur_ns) FROM gpu WHERE category = 'kernel' GROUP BY name")
    total = sum(time for _, time in times)
    unknown = {name: time for name, time in times if family(name) == "unknown"}
    share = 100 * sum(unknown.values()) / total if total else 0.0
    finding = None
    if share > 10:
        largest = max(unknown, key=unknown.__getitem__)
        finding = Finding(
            "info",
            f"{share:.0f} % of the kernel time is in kernels of unknown kind",
            facts=(Fact("kernel", largest),),
            advice="If these are collectives, say so",
            command=argv("rankscope stats RUN --comm-pattern REGEX"),
        )
    return Check("kernel time of unknown kind", f"{share:.1f} %", finding)
