"""The run on one screen: what is wrong, the time of a step, its parts, and the findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rankscope.analysis.core.advice import how_to_record
from rankscope.analysis.core.ceilings import ceilings, device_names
from rankscope.analysis.core.device_events import has_gpu, has_launches, runs_on_cpu
from rankscope.analysis.core.result import Column, NoteKind, Result, Row, note_kind
from rankscope.analysis.core.scope import NO_STEP, Scope, cut_ranks, has_iterations, in_whole_files
from rankscope.analysis.core.step_times import (
    mean_step_ns,
    periods,
    rank_step_times,
    run_step,
    run_step_times,
)
from rankscope.analysis.faults.report import has_peers, nothing_compared
from rankscope.analysis.findings import collect
from rankscope.analysis.health.doubts import as_note, contents, doubts
from rankscope.analysis.questions import QUESTIONS
from rankscope.analysis.within_rank.kernel_families import unknown_kernels
from rankscope.ranges import role_words
from rankscope.timeline.run import Run
from rankscope.units import format_ns, format_pair

COLUMNS = (
    Column("rank"),
    Column("steps", "count"),
    Column(
        "step_ns",
        "ns",
        "a step's median time, host and device together; without steps, all that was recorded",
    ),
    Column("compute_pct", "percent", "share of the window, as the next three"),
    Column("exposed_comm_pct", "percent", "exposed communication", title="Comm"),
    Column("exposed_copy_pct", "percent", "exposed copies", title="Copy"),
    Column("idle_pct", "percent", "nothing runs"),
    Column("mfu_pct", "percent", "model FLOPs utilisation", title="MFU"),
    Column("peak_allocated_bytes", "bytes", "most that was allocated on its GPU", title="Memory"),
)
_WITHOUT_TRACE = {
    "flight": ("flight-recorder dump", "hang.flight_recorder"),
    "memory": ("memory snapshot", "memory,memory.allocators,memory.fragmentation"),
    "ncu": ("Nsight Compute report", "ncu,roofline"),
    "nccl_inspector": ("NCCL Inspector log", "collectives.nccl,collectives,stragglers"),
    "nccl_prometheus": ("NCCL Inspector metrics file", "collectives.nccl"),
    "nccl_plugin": ("NCCL profiler dump", "collectives.nccl,collectives,stragglers"),
}
_SAME_STEP = 0.05
"""Mean and median that differ by less are not told apart in the first line."""
_CLASSES = ("compute", "exposed_comm", "exposed_copy", "idle")


def summary(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank; the title sums up the run."""
    scope = scope.in_run(run)
    broken, used_of, memory = (
        QUESTIONS[name].analyse(run, scope, None) for name in ("breakdown", "mfu", "memory")
    )
    parts = {row["rank"]: row for row in broken.rows if row["step"] is None}
    used = {row["rank"]: row["mfu_pct"] for row in used_of.rows if row["step"] is None}
    peak: dict[int, int] = {}
    for row in memory.rows:
        if row["device"] != "CPU" and row["peak_allocated_bytes"] is not None:
            peak[row["rank"]] = max(peak.get(row["rank"], 0), row["peak_allocated_bytes"])
    counts, recorded, cut = Counter[int](), Counter[int](), cut_ranks(run)
    times = periods(run, scope)
    for rank, step, time in zip(times.rank.tolist(), times.step.tolist(), times.ns.tolist(), strict=True):
        counts[rank] += step != NO_STEP
        recorded[rank] += time
    typical = rank_step_times(run, in_whole_files(run, scope))
    rows = [
        {
            "rank": rank,
            "steps": counts[rank],
            "step_ns": typical[rank].ns if rank in typical else None if rank in cut else recorded.get(rank),
            **{f"{part}_pct": _share([parts[rank]] if rank in parts else [], part) for part in _CLASSES},
            "mfu_pct": used.get(rank),
            "peak_allocated_bytes": peak.get(rank),
        }
        for rank in sorted({*parts, *recorded} or peak)
    ]
    findings = collect(run, scope)
    facts = _facts(run, scope, rows, list(parts.values())) | dict(broken.facts)
    # Without a trace there is no breakdown, and its notes do not apply.
    notes = [
        *map(as_note, doubts(run, scope)),
        *(broken.notes if rows else ()),
        *unknown_kernels(run, scope, sum(row["span_ns"] - row["idle_ns"] for row in parts.values())),
        *_missing(run, scope, rows, used_of),
    ]
    facts["verdict"] = _verdict(run, scope, facts["mean_step_ns"])
    title = step_parts(run, scope, facts)
    return Result("summary", title, scope.window, COLUMNS, rows, findings, tuple(notes), facts=facts)


def _share(rows: Sequence[Row], part: str) -> float | None:
    """Of the time of these rows of the breakdown; None where they have none."""
    span = sum(row["span_ns"] for row in rows)
    return 100 * sum(row[f"{part}_ns"] for row in rows) / span if span else None


def _facts(run: Run, scope: Scope, rows: Sequence[Row], parts: Sequence[Row]) -> dict[str, Any]:
    """The figures of the run, by machine name."""
    shares = {f"{part}_pct": _share(parts, part) for part in (*_CLASSES, "exposed_wait")}
    comm, waiting = shares["exposed_comm_pct"], shares["exposed_wait_pct"]
    mfu = [row["mfu_pct"] for row in rows if row["mfu_pct"] is not None]
    step_ns = run_step(run, whole := in_whole_files(run, scope)).ns
    return {
        "step_ns": step_ns,
        "mean_step_ns": None if step_ns is None else mean_step_ns(run, whole),
        "steps": len(run_step_times(run, scope)),
        "ranks": len(rows),
        "span_ns": max((row["span_ns"] for row in parts), default=None),
        **shares,
        "transfer_pct": comm - waiting if comm is not None and waiting is not None else None,
        "mfu_pct": sum(mfu) / len(mfu) if mfu else None,
    }


def step_parts(run: Run, scope: Scope, facts: Mapping[str, Any]) -> str:
    """'A step takes 49.8 ms: 41 % compute, …', over all ranks in scope."""
    if not periods(run, scope):
        return _other_files(run, scope) or contents(run, scope) or "Nothing was recorded that takes time"
    if facts["step_ns"] is not None:
        text = _step_time(facts)
        if has_iterations(run):
            text = text.replace("A step", "An inferred iteration", 1)
    elif in_whole_files(run, scope).ranks == frozenset():
        return "The recording is cut: where the time goes is not known"
    else:
        text = _recorded(run, scope)
    if facts["compute_pct"] is not None:
        comm = f"{facts['exposed_comm_pct']:.0f} % exposed communication"
        if round(facts["exposed_wait_pct"]):
            comm = (
                f"{facts['transfer_pct']:.0f} % exposed transfer, "
                f"{facts['exposed_wait_pct']:.0f} % waiting for another rank"
            )
        text += (
            f": {facts['compute_pct']:.0f} % compute, {comm}, {facts['exposed_copy_pct']:.0f} % copies, "
            f"{facts['idle_pct']:.0f} % idle"
        )
    return text + (f"; MFU {facts['mfu_pct']:.1f} %" if facts["mfu_pct"] is not None else "")


def _step_time(facts: Mapping[str, Any]) -> str:
    """The median; also the mean, which shares and costs are of, where it is another figure."""
    median, mean = facts["step_ns"], facts["mean_step_ns"]
    if mean is None or abs(mean - median) < _SAME_STEP * median:
        return f"A step takes {format_ns(median, 1)}"
    return f"A step takes {format_ns(median, 1)} (median; {format_ns(mean, 1)} on average)"


def _recorded(run: Run, scope: Scope) -> str:
    """Without steps: how long was recorded, from the shortest to the longest recording of a rank."""
    cycles = periods(run, scope)
    times = [cycles.of(rank).span for rank in {*cycles.rank.tolist()}]
    low, high = format_ns(min(times), 1), format_ns(max(times), 1)
    how_long = low if low == high else f"{low} to {high} a rank"
    return f"{how_long} were recorded, without steps"


def _other_files(run: Run, scope: Scope) -> str:
    """For a run without a trace: the other files it has, and the reports that use them."""
    files = []
    for kind, (name, reports) in _WITHOUT_TRACE.items():
        count = sum(e.format == kind and scope.has_rank(e.rank) for e in run.segments)
        if count:
            files.append(f"{count} {name}{'s' * (count > 1)} (-r {reports})")
    return f"No trace, but {', '.join(files)}" if files else ""


def subject(run: Run, scope: Scope, result: Result) -> str:
    """Number of ranks and steps, the device, and what the analyses miss."""
    ranks = len(result.rows) or sum(scope.has_rank(rank) for rank in run.ranks)
    steps = max((row["steps"] for row in result.rows), default=0)
    words = [
        f"{ranks} rank{'s' * (ranks != 1)}" + f" ({role_words(run.roles)})" * bool(run.roles),
        f"{steps} {'inferred iteration' if has_iterations(run) else 'step'}{'s' * (steps != 1)}"
        if steps
        else "no steps",
    ]
    if has_gpu(run, scope):
        words += sorted(set(device_names(run, scope).values()) - {""})
        words += [] if has_launches(run) else ["launches not recorded"]
    elif periods(run, scope):
        words.append("no GPU" if runs_on_cpu(run) else "no GPU events in the cut file")
    return ", ".join(words)


def _missing(run: Run, scope: Scope, rows: Sequence[Row], mfu: Result) -> list[str]:
    """Notes on columns of GPUs that are empty because of how the run was recorded."""
    notes: list[str] = []
    if not rows or not has_gpu(run, in_whole_files(run, scope)):
        return notes
    if all(row["mfu_pct"] is None for row in rows):
        graphs = [note for note in mfu.notes if note_kind(note) is NoteKind.IN_GRAPHS]
        notes += graphs or _without_mfu(run, scope, mfu)
    if all(row["peak_allocated_bytes"] is None for row in rows):
        notes.append(f"peak memory was not recorded: {how_to_record(run, 'memory')}")
    return notes


def _without_mfu(run: Run, scope: Scope, mfu: Result) -> list[str]:
    """What MFU needs: FLOPs, the peak of the device, or both."""
    has_flops = any(row["flops"] for row in mfu.rows)
    has_peak = all(ceiling.peaks or ceiling.any_peak for ceiling in ceilings(run, scope).values())
    notes = [] if has_flops else [f"MFU needs shapes: {how_to_record(run, 'shapes')}"]
    if not has_peak:
        notes.append("MFU needs the peak of the device: --peak 989TF")
    return notes


def _verdict(run: Run, scope: Scope, step_ns: float | None) -> str:
    """The first fault or what broke; else that nothing was found, among whom, and the largest limit. Empty where
    nothing was recorded that takes time, and nothing is wrong."""
    findings = collect(run, scope)
    if problem := next((finding for finding in findings if finding.accuses), None):
        return f"{problem.title}."
    if not periods(run, scope):
        return ""
    text = _nothing_found(run, scope)
    limits = [finding for finding in findings if finding.kind == "limit"]
    if not limits or not step_ns:
        return text
    cost = format_pair(limits[0].cost_ns or 0, step_ns)
    return f"{text} Largest limit: {limits[0].uncapitalised}, up to {cost}."


def _nothing_found(run: Run, scope: Scope) -> str:
    if cut_ranks(run):
        return "Nothing to compare: a recording is cut."
    if reason := nothing_compared(run, scope):
        return f"Nothing to compare with: {reason}."
    ranks = scope.ranks_in(run)
    world = max((entry.world_size or 0 for entry in run.timelines), default=0)
    if len(ranks) < world:
        return f"No fault found among the {len(ranks)} of {world} ranks recorded."
    if len(ranks) == 1:
        return "No fault found: the steps are alike."
    if not has_peers(run, scope):
        return "No fault found; not every rank has others that do the same work."
    return f"No fault found: the {len(ranks)} ranks are alike."
