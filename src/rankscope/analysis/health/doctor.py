"""Can this trace be trusted? Checks of the recording itself, each with a figure, and a grade."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from rankscope.analysis.core.result import SEVERITIES, Column, Finding, Result, Severity
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.within_rank.kernel_families import family
from rankscope.model import LAUNCH_CATEGORIES
from rankscope.readers.base import rank_from_name
from rankscope.sql import sql_texts
from rankscope.store.run import Run

COLUMNS = (
    Column("verdict", help="ok, info, warning or critical"),
    Column("value", help="the figure"),
    Column("check", help="what was looked at"),
)
_LAUNCHES = r"Launch|MemcpyAsync|MemsetAsync|MemcpyHtoD|MemcpyDtoH"


def doctor(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row a check; what is not ok is a finding too."""
    rows = []
    findings = []
    for title, value, finding in _checks(run):
        rows.append({"verdict": finding.severity if finding else "ok", "value": value, "check": title})
        if finding:
            findings.append(finding)
    findings.sort(key=lambda finding: -SEVERITIES.index(finding.severity))
    title = f"Can this trace be trusted? Grade {grade([finding.severity for finding in findings])}"
    note = "grades: A clean, B remarks, C one or two warnings, D more, F something critical"
    return Result("doctor", title, "whole file", COLUMNS, rows, tuple(findings), (note,))


def grade(severities: list[Severity]) -> str:
    """A: nothing found; B: remarks; C: one or two warnings; D: more; F: something critical."""
    if "critical" in severities:
        return "F"
    warnings = severities.count("warning")
    if warnings:
        return "C" if warnings < 3 else "D"
    return "B" if severities else "A"


Check = tuple[str, str, Finding | None]


def _checks(run: Run) -> Iterator[Check]:
    yield from _reading(run)
    yield _ranks(run)
    yield _swapped(run)
    yield from _links(run)
    yield _negative(run)
    yield _overlapping(run)
    yield from _steps(run)
    yield _unknown_kernels(run)
    yield from _secrets(run)


def _reading(run: Run) -> Iterator[Check]:
    reports = {entry.source.name: entry.manifest["reading"] for entry in run.segments}
    lost = sum(report["events_lost"] for report in reports.values())
    events = sum(entry.manifest["events"] for entry in run.segments)
    cut = {name: report["damage"] for name, report in reports.items() if report["damage"]}
    example = next((report["examples"][0] for report in reports.values() if report["examples"]), "")
    finding = None
    if lost:
        share = 100 * lost / (events + lost)
        finding = Finding(
            "critical" if share > 5 else "warning",
            f"{lost:,} events ({share:.2g} %) could not be read",
            example,
            hint="Figures lack these events; capture again if they matter.",
        )
    yield "events lost in reading", f"{lost:,} of {events + lost:,}", finding
    repaired = sum(report["events_repaired"] for report in reports.values())
    mended = f"{repaired:,} damaged events were repaired"
    yield "events repaired", f"{repaired:,}", Finding("info", mended, example) if repaired else None
    yield (
        "files cut short",
        f"{len(cut)} of {len(reports)}",
        Finding(
            "warning",
            f"{len(cut)} of {len(reports)} files end early",
            "; ".join(f"{name}: {why}" for name, why in cut.items()),
            hint="The last step of these ranks is incomplete: leave it out with --steps.",
        )
        if cut
        else None,
    )
    misplaced = sum(entry.manifest["misplaced"] for entry in run.segments)
    yield (
        "events without a usable time",
        f"{misplaced:,}",
        Finding("warning", f"{misplaced:,} events have ts = 0 or a time years away", "They are in no table.")
        if misplaced
        else None,
    )


def _secrets(run: Run) -> Iterator[Check]:
    """Only said of runs that nsys recorded: its reports carry every variable of the job."""
    reports = [entry for entry in run.segments if "nsys" in entry.manifest["header"]]
    if not reports:
        return
    telling = [entry for entry in reports if entry.manifest["header"].get("recordedEnvironment")]
    names = list(dict.fromkeys(entry.source.name for entry in telling))
    finding = None
    if names:
        some = ", ".join(names[:4]) + (" …" if len(names) > 4 else "")
        export = next((name for name in names if name.endswith(".sqlite")), "REPORT.sqlite")
        finding = Finding(
            "warning",
            f"{len(names)} nsys report{'s hold' if len(names) > 1 else ' holds'} the job's environment variables",
            f"{some}: keys and tokens travel with the raw file; they are not in rankscope's store",
            ranks=tuple(sorted({entry.rank for entry in telling})),
            hint=f"Before you pass it on: rankscope scrub {export}",
        )
    others = {entry.source: entry.manifest["header"].get("otherProcesses", 0) for entry in reports}
    if left := sum(others.values()):
        yield (
            "processes of no rank in nsys reports",
            f"{left}",
            Finding(
                "info",
                f"{left} processes of {len(others)} nsys report{'s' * (len(others) > 1)} belong to no rank",
                "The launcher itself, shells, helpers: what they did is in no table.",
            ),
        )
    yield "raw reports with the job's environment", f"{len(names)} of {len(reports)}", finding


def _ranks(run: Run) -> Check:
    worlds = {_world(entry.manifest["header"]) for entry in run.segments} - {0}
    world = max(worlds, default=0)
    missing = sorted(set(range(world)) - set(run.ranks))
    if len(worlds) > 1:
        found = Finding("critical", "the files are of different runs", f"world sizes {sorted(worlds)}")
        return "missing ranks", "-", found
    finding = None
    if missing:
        some = ", ".join(map(str, missing[:8])) + (" …" if len(missing) > 8 else "")
        finding = Finding(
            "info",
            f"{len(missing)} of {world} ranks have no trace",
            f"missing: {some}",
            hint="Waiting for a rank that is not here cannot be explained.",
        )
    return "missing ranks", f"{len(missing)} of {world or len(run.ranks)}", finding


def _world(header: dict[str, object]) -> int:
    info = header.get("distributedInfo")
    size = info.get("world_size") if isinstance(info, dict) else None
    return size if isinstance(size, int) else 0


def _swapped(run: Run) -> Check:
    wrong = []
    for entry in run.segments:
        named = rank_from_name(entry.source)
        if named is not None and named != entry.rank:
            wrong.append(f"{entry.source.name} is of rank {entry.rank}")
    finding = (
        Finding("warning", f"{len(wrong)} files are named after another rank", "; ".join(wrong[:4]))
        if wrong
        else None
    )
    return "file names that contradict the rank inside", f"{len(wrong)}", finding


def _links(run: Run) -> Iterator[Check]:
    ((total, alone),) = run.rows("SELECT count(*), count(*) FILTER (launch IS NULL) FROM gpu")
    yield _share(
        "GPU events without their launch",
        alone,
        total,
        "GPU events ({share:.2g} %) have no launch in the file",
        "Their op is not known; they were launched before the recording began, or the launch was lost.",
        "A warm-up of a step or two before the active steps avoids most of them.",
    )
    launches = sql_texts(LAUNCH_CATEGORIES)
    ((calls, without),) = run.rows(f"""
        WITH calls AS (
            SELECT rank, segment, id FROM slices
            WHERE category IN ({launches}) AND regexp_matches(name, '{_LAUNCHES}')
        )
        SELECT count(*), count(*) FILTER (g.launch IS NULL) FROM calls c
        LEFT JOIN (SELECT DISTINCT rank, segment, launch FROM gpu) g
        ON g.rank = c.rank AND g.segment = c.segment AND g.launch = c.id
    """)
    yield _share(
        "launches without their GPU event",
        without,
        calls,
        "launches ({share:.2g} %) have no GPU event",
        "What they launched was not recorded: the buffer was full, or it ran after the end.",
        "Profile fewer steps at a time.",
    )


def _share(check: str, count: int, total: int, sentence: str, evidence: str, hint: str) -> Check:
    """Some of many are not as they should be: a few are a remark, more than half is critical."""
    value = f"{count:,} of {total:,}"
    if not count:
        return check, value, None
    share = 100 * count / total
    severity: Severity = "critical" if share > 50 else "warning" if share > 5 else "info"
    return check, value, Finding(severity, f"{value} {sentence.format(share=share)}", evidence, hint=hint)


def _negative(run: Run) -> Check:
    ((count,),) = run.rows("SELECT count(*) FROM slices WHERE dur_ns < 0")
    finding = (
        Finding("warning", f"{count:,} events have a negative duration", "They count as empty.")
        if count
        else None
    )
    return "negative durations", f"{count:,}", finding


def _overlapping(run: Run) -> Check:
    """On one stream kernels follow each other, unless programmatic dependent launch overlaps their ends."""
    ((total, count),) = run.rows(
        "SELECT count(*), count(*) FILTER (g.depth > 0) FROM gpu g JOIN tracks t ON t.rank = g.rank "
        "AND t.segment = g.segment AND t.track = g.track WHERE t.kind = 'stream'"
    )
    share = 100 * count / total if total else 0.0
    finding = None
    if count:
        finding = Finding(
            "warning" if share > 20 else "info",
            f"{count:,} GPU events ({share:.2g} %) overlap another on their stream",
            "Shown on extra rows; sums of durations exceed the time they cover.",
            hint="Normal with programmatic dependent launch (CUDA 12 on Hopper); else the clocks were unsteady.",
        )
    return "overlaps on one stream", f"{count:,} of {total:,}", finding


def _steps(run: Run) -> Iterator[Check]:
    rows = run.rows("SELECT rank, step, dur_ns, source FROM steps ORDER BY rank, start_ns")
    if not rows:
        found = Finding(
            "info",
            "no steps in the trace",
            "Figures are for the whole file only.",
            hint="Call profiler.step().",
        )
        yield "steps", "none", found
        return
    inferred = {source for *_, source in rows} - {"profiler"}
    found_steps = f"{len({step for _, step, *_ in rows})}"
    yield (
        "steps",
        found_steps,
        Finding("info", f"{found_steps} steps were inferred", "There is no ProfilerStep in the file.")
        if inferred
        else None,
    )
    yield _warm_up(rows)
    yield _truncated(run)


def _warm_up(rows: list[tuple[int, int, int, str]]) -> Check:
    """A first step well above the others' median is warm-up, and does not belong into averages."""
    slow = []
    for rank in {row[0] for row in rows}:
        durations = [duration for r, _, duration, _ in rows if r == rank]
        if len(durations) >= 3 and durations[0] > 1.5 * median(durations[1:]):
            slow.append((rank, durations[0] / median(durations[1:])))
    finding = None
    if slow:
        rank, ratio = max(slow, key=lambda item: item[1])
        finding = Finding(
            "warning",
            f"the first step takes {ratio:.1f} times the median of the others (rank {rank})",
            "It holds warm-up: compilation, autotuning, caches.",
            ranks=tuple(sorted(r for r, _ in slow)),
            hint="Leave it out with --steps, or wait and warm up longer before the active steps.",
        )
    return "warm-up inside the recording", f"{len(slow)} ranks", finding


def _truncated(run: Run) -> Check:
    """A step with far fewer GPU events than the others of its rank was cut."""
    cut = run.rows(
        "WITH counts AS (SELECT s.rank, s.step, count(g.id) AS events FROM steps s LEFT JOIN gpu g ON g.rank = s.rank "
        "AND g.step = s.step GROUP BY ALL), typical AS (SELECT rank, median(events) AS usual FROM counts GROUP BY ALL) "
        "SELECT rank, step, events, usual FROM counts JOIN typical USING (rank) WHERE events < 0.7 * usual ORDER BY ALL"
    )
    finding = None
    if cut:
        rank, step, events, usual = cut[0]
        finding = Finding(
            "warning",
            f"{len(cut)} steps lack GPU events",
            f"rank {rank} step {step} has {events:,} of the usual {usual:,.0f}",
            ranks=tuple(sorted({row[0] for row in cut})),
            hint="Leave these steps out with --steps.",
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
            hint="If they communicate, say so: rankscope stats --comm-pattern REGEX",
        )
    return "kernel time of unknown kind", f"{share:.1f} %", finding
