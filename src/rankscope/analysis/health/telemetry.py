"""The telemetry of a job after its end: each rank's figures, and the alarms of all steps that its ring holds."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from rankscope.analysis.core.result import SEVERITIES, Column, Fact, Finding, Result, Severity
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.health.pending import telemetry_folder
from rankscope.ranges import rank_words
from rankscope.timeline.run import Run
from rankscope.watch.alarms import CONFIRMED_AFTER_S, SPIKE, Episode, utc
from rankscope.watch.hang import failures, hangs, judged_at
from rankscope.watch.judge import alarms_over
from rankscope.watch.rings import RankRing, read_whole, tables
from rankscope.watch.step_table import StepTable, low_median, middle

COLUMNS = (
    Column("rank", help="rank"),
    Column("node", help="its host"),
    Column("role", help="its role, where a job has several", minor=True),
    Column("records", "count", "steps that the ring holds", minor=True),
    Column("last_step", help="number of its last step"),
    Column("step_ns", "ns", "median step time", title="Step"),
    Column("own_ns", "ns", "median own work", title="Own work"),
    Column("excess_ns", "ns", "median of own work minus that of the median rank", title="Excess"),
    Column("excess_pct", "percent", "the same, of the step time", title="Excess %"),
    Column("wait_ns", "ns", "median time blocked in collectives", title="Wait", minor=True),
    Column("data_ns", "ns", "median wait for data", title="Data"),
    Column("optimizer_ns", "ns", "median time of the optimizer", title="Optimizer", minor=True),
    Column("cpu_ns", "ns", "median CPU time of the process", title="CPU", minor=True),
    Column("run_delay_ns", "ns", "median time in which its training thread waited for a core", minor=True),
    Column("gc_ns", "ns", "mean pause of the garbage collector per step", title="GC", minor=True),
    Column("memory_bytes", "bytes", "memory at the last step", title="Memory"),
    Column(
        "growth_bytes",
        "bytes",
        "growth of memory from the first to the last quarter of the steps",
        minor=True,
    ),
    Column("phase", help="what its training thread did last", minor=True),
)
_MEDIANS = ("step_ns", "own_ns", "wait_ns", "data_ns", "optimizer_ns", "cpu_ns", "run_delay_ns")


def telemetry(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank. The telemetry has steps of its own, many more than a trace: all of them are used."""
    folder = telemetry_folder(run)
    if folder is None:
        note = "no telemetry: start the job with rankscope profile --watch"
        return Result("telemetry", "Telemetry", "no steps", COLUMNS, [], notes=(note,))
    return telemetry_in(folder, scope.ranks)


def telemetry_in(folder: Path, ranks: Collection[int] | None = None) -> Result:
    """The same of a run folder, which need not hold a trace."""
    rings = [ring for ring in read_whole(folder) if ranks is None or ring.rank in ranks]
    step_tables = tables(rings)
    rows = {row["rank"]: row for table in step_tables for row in _rows(table)}
    first = min((int(table.steps[0]) for table in step_tables), default=0)
    last = max((int(table.steps[-1]) for table in step_tables), default=0)
    findings = [_finding(episode) for table in step_tables for episode in alarms_over(table)]
    return Result(
        "telemetry",
        "Telemetry",
        f"steps {first}:{last} of the telemetry",
        COLUMNS,
        [
            {
                **dict.fromkeys(column.name for column in COLUMNS),
                **rows.get(ring.rank, {}),
                "rank": ring.rank,
                "node": ring.node or None,
                "role": ring.role or None,
                "records": len(ring.records),
                "last_step": ring.last_step if len(ring.records) else None,
                "phase": ring.phase,
            }
            for ring in rings
        ],
        tuple(sorted(findings, key=lambda finding: -SEVERITIES.index(finding.severity))),
        tuple(_notes(rings, step_tables)),
    )


def _rows(table: StepTable) -> Iterator[dict[str, Any]]:
    own_work = table["own_ns"]
    medians = {field: low_median(table[field]) for field in _MEDIANS}
    medians["excess_ns"] = low_median(own_work - low_median(own_work, 1)[:, None])
    usual = middle(medians["step_ns"])
    quarter = max(len(table.steps) // 4, 1)
    memory = table["memory_bytes"]
    medians["memory_bytes"] = low_median(memory[-min(quarter, 10) :])
    medians["growth_bytes"] = low_median(memory[-quarter:]) - low_median(memory[:quarter])
    medians["excess_pct"] = 100 * medians["excess_ns"] / usual
    has_gc = np.isfinite(table["gc_ns"])
    medians["gc_ns"] = np.where(has_gc, table["gc_ns"], 0).sum(axis=0) / np.maximum(has_gc.sum(axis=0), 1)
    for column, rank in enumerate(table.ranks.tolist()):
        values = {name: float(numbers[column]) for name, numbers in medians.items()}
        yield {"rank": rank} | {
            name: None if np.isnan(value) else round(value) if name.endswith(("_ns", "_bytes")) else value
            for name, value in values.items()
        }


def _finding(episode: Episode) -> Finding:
    """What was over at the last step is told as such: a trace of later steps does not show it."""
    alarm = episode.alarm
    severity, title = cast(Severity, alarm.severity), alarm.text[0].upper() + alarm.text[1:]
    if not episode.is_confirmed:
        severity, title = "info", f"{title}, for less than {CONFIRMED_AFTER_S:g} s"
    elif not episode.is_open and alarm.kind != SPIKE:
        severity, title = "info", f"{title}, until step {episode.last_step}"
    facts = (
        Fact("per_step", alarm.per_step, alarm.unit, alarm.kind, alarm.ranks),
        Fact("cause", alarm.cause, "", alarm.kind, alarm.ranks),
        Fact("since", None if alarm.since_unix_ns is None else utc(alarm.since_unix_ns)),
        Fact("since_step", alarm.since_step, "", alarm.kind, alarm.ranks),
    )
    return Finding(severity, title, ranks=alarm.ranks, advice=alarm.hint, facts=facts)


def _notes(rings: Sequence[RankRing], step_tables: Sequence[StepTable]) -> Iterator[str]:
    world = max((int(ring.about.get("world_size") or 0) for ring in rings), default=0)
    missing = sorted(set(range(world)) - {ring.rank for ring in rings})
    if missing and len(rings) < world:
        yield f"no telemetry of {rank_words(missing)}"
    overwritten = max((ring.header.records - len(ring.records) for ring in rings), default=0)
    if overwritten:
        yield f"{overwritten:,} earlier steps are overwritten, or left out because there are many ranks"
    if off := [ring for ring in rings if ring.off]:
        yield f"telemetry switched off on {rank_words([ring.rank for ring in off])}: {off[0].off}"
    at = judged_at(rings, time.time_ns()) if rings else 0
    for alarm in (*hangs(rings, at), *failures(rings, at)):
        yield f"{alarm.text} (rankscope stats RUN -r hang)"
    if step_tables and all(np.isnan(table["own_ns"]).all() for table in step_tables):
        yield "own work is not known: ranks cannot be compared"
