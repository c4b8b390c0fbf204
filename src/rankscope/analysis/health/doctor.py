"""Checks of the quality of a recording, each with a value, and a grade."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import median

from rankscope.analysis.core.advice import framework, recording_hint
from rankscope.analysis.core.result import SEVERITIES, Column, Fact, Finding, Result, Severity
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import SLOW_FIRST_STEP
from rankscope.analysis.health.contents import MOSTLY_UNDERSTOOD_PCT, understood
from rankscope.analysis.health.doubts import COMPLETE_STEP, incomplete_last_steps, world_size
from rankscope.analysis.within_rank.kernel_families import family
from rankscope.model import LAUNCH_CATEGORIES
from rankscope.readers.base import PACKETS_NOT_READ, rank_from_name
from rankscope.sql import sql_texts
from rankscope.store.index import SegmentEntry, sidecar_records
from rankscope.text.run_words import shell_word
from rankscope.timeline.run import Run

COLUMNS = (
    Column("verdict", help="ok, info, warning or critical"),
    Column("value", help="the measured value"),
    Column("check", help="what is checked"),
)
_HALF_UNDERSTOOD_PCT = 50
"""Fewer is a warning. Chosen, not measured, as are the limits of the checks below."""
_LAUNCHES = r"Launch(?:$|[^H])|MemcpyAsync|MemsetAsync|MemcpyHtoD|MemcpyDtoH"
"""Calls that start work on a device; LaunchHostFunc starts a function of the host."""


def doctor(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row for each check; every check that is not ok is also a finding."""
    checks = list(_checks(run))
    rows = [
        {"verdict": finding.severity if finding else "ok", "value": value, "check": title}
        for title, value, finding in checks
    ]
    findings = [finding for *_, finding in checks if finding]
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


Check = tuple[str, str, Finding | None]


def _checks(run: Run) -> Iterator[Check]:
    yield from _reading(run)
    yield from _packets_not_read(run)
    yield _events_understood(run)
    yield _ranks(run)
    yield _swapped(run)
    yield from _links(run)
    yield _negative(run)
    yield _overlapping(run)
    yield from _steps(run)
    yield _unknown_kernels(run)
    yield from _secrets(run)
    yield from _rocpd(run)
    yield from _companions(run)


def _companions(run: Run) -> Iterator[Check]:
    """Execution traces, captures of graphs and logs of torch.compile beside the traces, where there are any."""
    files = [file for file in sidecar_records(run.segments) if file["kind"] or file["unused"]]
    if not files:
        return
    unused = [file["unused"] for file in files if not file["used"]]
    finding = None
    if unused:
        what, why, hint = unused[0]
        text = f"{len(unused)} of {len(files)} files beside the traces add nothing"
        finding = Finding("info", text, f"{what}. {why}", hint=hint)
    yield "files that add to the traces", f"{len(files) - len(unused)} of {len(files)} used", finding


def _reading(run: Run) -> Iterator[Check]:
    reports = {entry.source.name: entry.manifest["reading"] for entry in run.segments}
    lost = sum(report["events_lost"] for report in reports.values())
    events = sum(entry.manifest["events"] for entry in run.segments)
    example = next((report["examples"][0] for report in reports.values() if report["examples"]), "")
    finding = None
    if lost:
        share = 100 * lost / (events + lost)
        finding = Finding(
            "critical" if share > 5 else "warning",
            f"{lost:,} events ({_percent(share)} %) could not be read",
            example,
            hint="These events are missing from all tables; capture again if they matter.",
        )
    yield "events lost in reading", f"{lost:,} of {events + lost:,}", finding
    repaired = sum(report["events_repaired"] for report in reports.values())
    text = f"{repaired:,} damaged events were repaired"
    yield "events repaired", f"{repaired:,}", Finding("info", text, example) if repaired else None
    cut = {name: report["damage"] for name, report in reports.items() if report["damage"]}
    finding = None
    if cut:
        finding = Finding(
            "warning",
            f"{len(cut)} of {len(reports)} files are truncated",
            "; ".join(f"{name}: {why}" for name, why in cut.items()),
            hint="Any step of these ranks may lack events: capture them again.",
        )
    yield "files cut short", f"{len(cut)} of {len(reports)}", finding
    # A batch that the reader written in C does not understand goes to DuckDB.
    batches: Counter[str] = Counter()
    for entry in run.segments:
        batches.update(entry.manifest["read_by"])
    (most, _), *others = batches.most_common() or [("DuckDB", 0)]
    readers = [most, *(f"{name} ({count:,} of {batches.total():,} batches)" for name, count in others)]
    yield "read by", ", ".join(readers), None
    misplaced = sum(entry.manifest["misplaced"] for entry in run.segments)
    text = f"{misplaced:,} events have ts = 0 or a time far from the others"
    finding = Finding("warning", text, "They are in no table.") if misplaced else None
    yield "events without a usable time", f"{misplaced:,}", finding


def _packets_not_read(run: Run) -> Iterator[Check]:
    """Perfetto traces only: they may hold data of many other kinds."""
    kinds: Counter[str] = Counter()
    for entry in run.segments:
        if entry.format == "perfetto":
            kinds.update(entry.manifest["header"].get(PACKETS_NOT_READ, {}))
    if kinds:
        value = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
        yield "packets of kinds that are not read", value, None


def _events_understood(run: Run) -> Check:
    """Below 90 % is info, below 50 % a warning, none at all critical."""
    events = understood(run, Scope())
    finding = None
    if events.pct < MOSTLY_UNDERSTOOD_PCT:
        severity: Severity = "warning" if events.pct < _HALF_UNDERSTOOD_PCT else "info"
        finding = Finding(
            severity if events.in_classes else "critical",
            f"{_percent(events.pct)} % of the events have a category that rankscope knows",
            f"not known: {events.categories}",
            hint="The others are drawn, and can be queried as slices; they are in no class: rankscope view RUN",
        )
    return "events understood", f"{_percent(events.pct)} % of {events.events:,}", finding


def _secrets(run: Run) -> Iterator[Check]:
    """Checks of nsys reports only: they contain all environment variables of the job."""
    reports = [entry for entry in run.segments if "nsys" in entry.manifest["header"]]
    if not reports:
        return
    with_environment = [entry for entry in reports if entry.manifest["header"].get("recordedEnvironment")]
    names = list(dict.fromkeys(entry.source.name for entry in with_environment))
    finding = None
    if names:
        some = ", ".join(names[:4]) + (" …" if len(names) > 4 else "")
        export = next((name for name in names if name.endswith(".sqlite")), "REPORT.sqlite")
        finding = Finding(
            "warning",
            f"{len(names)} nsys report{'s contain' if len(names) > 1 else ' contains'} the job's environment variables",
            f"{some}: the raw file may contain keys and tokens; rankscope's store does not contain the variables",
            ranks=tuple(sorted({entry.rank for entry in with_environment})),
            hint=f"Before you share it: rankscope scrub {shell_word(export)}",
        )
    others = {entry.source: entry.manifest["header"].get("otherProcesses", 0) for entry in reports}
    if left := sum(others.values()):
        title = (
            f"{left} process{'es' * (left > 1)} in {len(others)} nsys report{'s' * (len(others) > 1)} "
            f"belong{'s' * (left == 1)} to no rank"
        )
        evidence = "These can be launchers, shells or helpers; their events are in no table."
        yield "processes of no rank in nsys reports", f"{left}", Finding("info", title, evidence)
    merged = [entry for entry in reports if entry.manifest["header"].get("mergedProcesses")]
    if merged:
        yield _merged(merged)
    yield "raw reports with the job's environment", f"{len(names)} of {len(reports)}", finding


def _rocpd(run: Run) -> Iterator[Check]:
    """Checks of rocpd databases: they contain the environment of the job, and may have several processes."""
    headers = [(entry, entry.manifest["header"]) for entry in run.segments if entry.format == "rocprof"]
    told = [entry for entry, header in headers if header.get("recordedEnvironment")]
    if told:
        names = ", ".join(dict.fromkeys(entry.source.name for entry in told[:4]))
        finding = Finding(
            "warning",
            f"{names}: the job's environment variables are in the file",
            "They may contain keys and tokens; rankscope's store does not contain the variables.",
            ranks=tuple(sorted({entry.rank for entry in told})),
            hint="Before you share it, empty the column environment of rocpd_info_process in a copy.",
        )
        yield "rocpd databases with the job's environment", f"{len(told)} of {len(headers)}", finding
    merged = [entry for entry, header in headers if header.get("mergedProcesses")]
    if merged:
        finding = Finding(
            "warning",
            f"the processes of {merged[0].source.name} are read as one rank (rank {merged[0].rank})",
            "Neither their environment nor the name of the output tells their ranks.",
            ranks=tuple(sorted({entry.rank for entry in merged})),
            hint="Record each rank into its own file: rocprofv3 -o rank-%rank% -- PROGRAM",
        )
        yield "rocpd databases with merged processes", f"{len(merged)}", finding


def _merged(merged: list[SegmentEntry]) -> Check:
    """nsys reports of several processes that may be several ranks, read as one."""
    entry = max(merged, key=lambda entry: int(entry.manifest["header"]["mergedProcesses"]))
    count = entry.manifest["header"]["mergedProcesses"]
    subject = f"rank {entry.rank}, {entry.source.name}"
    finding = Finding(
        "warning",
        f"{count} processes of {entry.source.name} are read as one rank (rank {entry.rank})",
        "They use CUDA, but neither the recorded environment, the command, MPI nor NCCL tells their ranks; "
        "if they are ranks, compute and communication of different ranks are mixed in every report.",
        ranks=tuple(sorted(entry.rank for entry in merged)),
        hint="Profile each rank into its own report: rankscope profile --tool nsys torchrun …",
        facts=(Fact("merged_processes", count, "count", subject, (entry.rank,)),),
    )
    return "nsys reports with merged processes", f"{len(merged)}", finding


def _ranks(run: Run) -> Check:
    if len(run.runs) > 1:
        listed = "; ".join(map(str, run.runs))
        return "missing ranks", "-", Finding("critical", "the files are from different runs", listed)
    world = world_size(run)
    missing = sorted(set(range(world)) - set(run.ranks))
    finding = None
    if missing:
        some = ", ".join(map(str, missing[:8])) + (" …" if len(missing) > 8 else "")
        finding = Finding(
            "info",
            f"{len(missing)} of {world} ranks have no trace",
            f"missing: {some}",
            hint="Waiting for these ranks cannot be explained: rankscope profile --ranks all",
        )
    return "missing ranks", f"{len(missing)} of {world or len(run.ranks)}", finding


def _swapped(run: Run) -> Check:
    wrong = [
        f"{entry.source.name} contains rank {entry.rank}"
        for entry in run.segments
        if rank_from_name(entry.source) not in (None, entry.rank)
    ]
    finding = None
    if wrong:
        title = f"{len(wrong)} files have another rank in their name"
        finding = Finding("warning", title, "; ".join(wrong[:4]))
    return "file names that contradict the rank inside", f"{len(wrong)}", finding


def _links(run: Run) -> Iterator[Check]:
    ((total, alone),) = run.rows("SELECT count(*), count(*) FILTER (launch IS NULL) FROM gpu")
    check = "GPU events without their launch"
    if total and framework(run) == "triton":  # Proton never records them
        title, evidence = (
            "no launches in the trace",
            "Why a GPU is idle, and which op runs a kernel, is not known.",
        )
        finding = Finding("info", title, evidence, hint=recording_hint(run, "launches"))
        yield check, f"{alone:,} of {total:,}", finding
    else:
        yield _share(
            check,
            alone,
            total,
            "GPU events without a launch in the file",
            "Their op is not known. They were launched before the recording began, or the launch was lost.",
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
        yield "launches captured into CUDA graphs", f"{captured:,}", None
    yield _share(
        "launches without their GPU event",
        without,
        calls,
        "launches without a GPU event",
        "The GPU event was not recorded: the buffer was full, or it ran after the end of the recording.",
        "Record fewer steps at a time.",
    )


def _share(check: str, count: int, total: int, title: str, evidence: str, hint: str) -> Check:
    """A check of a share: up to 5 % is info, more is a warning, over 50 % is critical."""
    value = f"{count:,} of {total:,}"
    if not count:
        return check, value, None
    share = 100 * count / total
    severity: Severity = "critical" if share > 50 else "warning" if share > 5 else "info"
    return check, value, Finding(severity, f"{title}: {value} ({_percent(share)} %)", evidence, hint=hint)


def _negative(run: Run) -> Check:
    ((count,),) = run.rows("SELECT count(*) FROM slices WHERE dur_ns < 0")
    title = f"{count:,} events have a negative duration"
    finding = Finding("warning", title, "Their duration counts as 0.") if count else None
    return "negative durations", f"{count:,}", finding


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
            f"{count:,} GPU events ({_percent(share)} %) overlap another on their stream",
            "They are drawn on extra rows; the sum of their durations exceeds the time they cover.",
            hint="Normal with programmatic dependent launch (CUDA 12 on Hopper); otherwise the clocks were unsteady.",
        )
    return "overlaps on one stream", f"{count:,} of {total:,}", finding


def _steps(run: Run) -> Iterator[Check]:
    rows = run.rows("SELECT rank, segment, step, time_ns, source FROM steps ORDER BY rank, segment, start_ns")
    if not rows:
        title, hint = "no steps in the trace", recording_hint(run, "steps")
        yield "steps", "none", Finding("info", title, "All values are for the whole file.", hint=hint)
        return
    steps = f"{len({step for _, _, step, *_ in rows})}"
    finding = None
    if {source for *_, source in rows} - {"profiler"}:
        evidence = "Some files have no ProfilerStep."
        if framework(run) != "torch":
            evidence = "They are numbered annotations."
        finding = Finding("info", f"{steps} steps, some of them inferred", evidence)
    yield "steps", steps, finding
    yield _warm_up(rows)
    yield _truncated(run)


def _warm_up(rows: list[tuple[int, int, int, int, str]]) -> Check:
    """A first step of a file of more than 1.5 times the median of the others is warm-up."""
    slow = []
    times: dict[tuple[int, int], list[int]] = {}
    for rank, segment, _, time, _ in rows:
        times.setdefault((rank, segment), []).append(time)
    for (rank, _), (first, *others) in times.items():
        usual = median(others) if len(others) >= 2 else 0
        if usual > 0 and first > SLOW_FIRST_STEP * usual:
            slow.append((rank, first / usual))
    finding = None
    if slow:
        rank, ratio = max(slow, key=lambda item: item[1])
        finding = Finding(
            "warning",
            f"the first step takes {ratio:.1f}x the median of the others (rank {rank})",
            "This is usually warm-up: compilation, autotuning, caches.",
            ranks=tuple(sorted({r for r, _ in slow})),
            hint="Exclude it with --steps, or use more wait and warm-up steps before the active steps.",
        )
    return "warm-up inside the recording", f"{len({rank for rank, _ in slow})} ranks", finding


def _truncated(run: Run) -> Check:
    """Last steps with fewer GPU events than any other of their rank. One in between may have less work: no tokens."""
    cut = incomplete_last_steps(run, Scope())
    finding = None
    if cut:
        rank, step = cut[0]
        finding = Finding(
            "warning",
            f"{len(cut)} last step{'s have' if len(cut) > 1 else ' has'} fewer GPU events than usual",
            f"rank {rank}, step {step}: less than {100 * COMPLETE_STEP:.0f} % of the events of its median step",
            ranks=tuple(sorted({rank for rank, _ in cut})),
            hint="Exclude these steps with --steps.",
        )
    return "truncated steps", f"{len(cut)}", finding


def _unknown_kernels(run: Run) -> Check:
    times = run.rows("SELECT name, sum(dur_ns) FROM gpu WHERE category = 'kernel' GROUP BY name")
    total = sum(time for _, time in times)
    unknown = {name: time for name, time in times if family(name) == "unknown"}
    share = 100 * sum(unknown.values()) / total if total else 0.0
    finding = None
    if share > 10:
        largest = max(unknown, key=lambda name: unknown[name])
        finding = Finding(
            "info",
            f"{share:.0f} % of the kernel time is in kernels of unknown kind",
            f"the largest: {largest[:100]}",
            hint="If these are collectives: rankscope stats RUN --comm-pattern REGEX",
        )
    return "kernel time of unknown kind", f"{share:.1f} %", finding


def _percent(share: float) -> str:
    """Two significant digits without an exponent."""
    if share == 0:
        return "0"
    return f"{share:.0f}" if share >= 10 else f"{share:.1f}" if share >= 0.1 else "under 0.1"
