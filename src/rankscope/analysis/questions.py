"""The reports that answer one question each. A new report is one function in its own file and one line here.

A name with a dot is a further table of a report. A module is imported when its report is asked for.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from importlib import import_module
from typing import Any

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.notes import left_out as events_left_out
from rankscope.analysis.core.report import Report
from rankscope.analysis.core.result import Result, left_out_note
from rankscope.analysis.core.scope import Scope, in_whole_files
from rankscope.analysis.health.pending import pending_calls, telemetry_folder
from rankscope.model import FLIGHT, MEMORY_SEGMENTS, NCCL, Table
from rankscope.ranges import rank_words
from rankscope.timeline.run import Run

_FILES: dict[str, Any] = {"needs": "whole files"}
_RANKS: dict[str, Any] = {"needs": "all ranks"}
_FINDS: dict[str, Any] = {"finds": True}
MODULES: set[str] = set()
"""Of all reports."""


def _has_files(kind: str) -> dict[str, Any]:
    """Findings, in runs that have files of this format."""
    return {"finds": True, "is_recorded": lambda run: any(entry.format == kind for entry in run.used)}


def _has_table(table: Table) -> dict[str, Any]:
    return {"finds": True, "is_recorded": lambda run: run.has(table)}


def _may_hang(run: Run) -> object:
    return telemetry_folder(run) or pending_calls(run, Scope())


def _report(name: str, question: str, place: str, *keys: str, **fields: Any) -> Report:
    """`place`: the module in rankscope.analysis; after a colon the function, unless it is called as the table is."""
    module, _, function = f"rankscope.analysis.{place}".partition(":")
    function = function or name.rpartition(".")[2]
    MODULES.add(module)

    def analyse(run: Run, scope: Scope, by: str | None) -> Result:
        result: Result = getattr(import_module(module), function)(run, scope, by)
        return result

    return _in_window(Report(name, question, analyse, keys, **fields))


def _in_window(report: Report) -> Report:
    """With the window that its scope means in the run, notes on what is in no table, and facts that say where they come
    from.

    Its answer is kept: summary and findings use most reports again.
    """

    @once_per_run
    def analysed(run: Run, scope: Scope, by: str | None) -> Result:
        whole = in_whole_files(run, scope) if report.needs else scope
        left_out = sorted({*scope.ranks_in(run)} - {*whole.ranks_in(run)})
        note = left_out_note(f"{rank_words(left_out)}, whose recording is cut: what it lacks is not known")
        if left_out and (not whole.ranks or report.needs == "all ranks"):
            return Result(report.name, report.question, scope.window, (), [], notes=(note,), unknown=note)
        result = _worst_first(report, report.analyse(run, whole, by))
        notes = dict.fromkeys((*events_left_out(run, whole), *result.notes, *([note] if left_out else ())))
        return replace(result, notes=tuple(notes)).placed()

    return replace(report, analyse=lambda run, scope, by: analysed(run, scope.in_run(run), by))


def _worst_first(report: Report, result: Result) -> Result:
    """Whole windows before steps; the rows of a rank stay together, in their order."""
    if not report.worst_by:
        return result
    column, sums = report.worst_by.lstrip("-"), Counter[int | None]()
    for row in result.rows:
        sums[row.get("rank")] += row[column] or 0
    sign = 1 if column != report.worst_by else -1
    rows = sorted(result.rows, key=lambda row: (row.get("step") is not None, sign * sums[row.get("rank")]))
    return replace(result, rows=rows)


TOPICS = {
    "Where time goes": (
        _report(
            "breakdown", "Where did the time go?", "faults.by_group:breakdown_by", "node", "group", **_FILES
        ),
        _report(
            "breakdown.phases",
            "How much is forward, backward, optimizer?",
            "within_rank.phases",
            **_FILES,
            worst_by="host_ns",
        ),
        _report(
            "steps", "How long does each step take?", "within_rank.event_tables", **_FILES, worst_by="time_ns"
        ),
        _report(
            "overlap",
            "Is communication hidden, and behind what?",
            "within_rank.overlap",
            "step",
            **_FILES,
            **_FINDS,
            worst_by="exposed_ns",
        ),
        _report(
            "idle", "Why is the GPU idle?", "within_rank.idle", **_FILES, **_FINDS, worst_by="host_bound_ns"
        ),
        _report(
            "idle.gaps",
            "Before which op or line does the GPU wait?",
            "within_rank.idle",
            "rank",
            "source",
            **_FILES,
        ),
        _report(
            "idle.launches",
            "Is the host ahead: launch delays, queue depth?",
            "within_rank.launches",
            **_FILES,
        ),
        _report(
            "idle.short_kernels",
            "Which ops launch kernels that are too short?",
            "within_rank.short_kernels",
            "rank",
            "source",
            **_FILES,
            **_FINDS,
        ),
        _report(
            "idle.syncs",
            "Which calls and lines wait for the GPU?",
            "within_rank.syncs",
            "rank",
            **_FILES,
            **_FINDS,
        ),
        _report(
            "dataloader",
            "Does the training loop wait for data?",
            "within_rank.dataloader",
            **_FILES,
            **_FINDS,
            worst_by="wait_ns",
        ),
        _report(
            "kernels",
            "Which GPU kernels take the time?",
            "within_rank.event_tables",
            "rank",
            "op",
            "module",
            "source",
        ),
        _report(
            "kernels.families", "Which kinds of kernels take the time?", "within_rank.kernel_families", "rank"
        ),
        _report(
            "ops", "Which operators take the time?", "within_rank.ops", "rank", "shape", "module", "source"
        ),
        _report(
            "ops.annotations",
            "How long do annotated ranges take?",
            "within_rank.event_tables:annotated",
            "rank",
        ),
        _report(
            "ops.runtime_api", "Which runtime and driver calls take time?", "within_rank.event_tables", "rank"
        ),
        _report(
            "ops.python",
            "Which Python functions take the time?",
            "within_rank.ops:python_functions",
            "rank",
        ),
        _report("memcpy", "Which copies run, and how fast?", "within_rank.event_tables", "rank", **_FINDS),
    ),
    "Across ranks": (
        _report(
            "faults", "Who costs time that peers do not need, and why?", "faults.report", **_RANKS, **_FINDS
        ),
        _report(
            "faults.imbalance",
            "What does uneven work cost, and whose is it?",
            "critical_path.imbalance",
            **_RANKS,
        ),
        _report(
            "stragglers",
            "Which rank do the others wait for, how long?",
            "faults.by_group:stragglers_by",
            "node",
            "group",
            "step",
            **_FILES,
        ),
        _report(
            "stragglers.op_differences",
            "Does a rank run ops that others do not?",
            "across_ranks.op_differences",
            **_FILES,
        ),
        _report(
            "stragglers.micro_batches",
            "How long does each micro-batch take?",
            "across_ranks.micro_batches",
            **_FILES,
        ),
        _report(
            "host_cpu",
            "Do ranks lack CPU: cores, threads, Python's GC?",
            "across_ranks.host_cpu",
            "step",
            **_FINDS,
            worst_by="run_delay_ns",
        ),
        _report(
            "collectives",
            "How fast are collectives, and who waits?",
            "faults.by_group:collectives_by",
            "group",
            **_FINDS,
        ),
        _report(
            "collectives.nccl",
            "How fast are collectives, by NCCL's own times?",
            "across_ranks.nccl",
            **_has_table(NCCL),
        ),
        _report("critical", "What is on the critical path of all ranks?", "critical_path.report", **_RANKS),
        _report(
            "bubbles",
            "How long are pipeline stages idle?",
            "across_ranks.bubbles",
            "rank",
            **_RANKS,
            **_FINDS,
        ),
        _report(
            "clocks",
            "How far apart are the clocks of the ranks?",
            "across_ranks.clocks",
            **_FINDS,
            worst_by="error_ns",
        ),
        _report("layout", "Which rank has which place in the parallelism?", "across_ranks.layout", "rank"),
        _report("layout.groups", "Which process groups exist, and for what?", "across_ranks.layout"),
    ),
    "Efficiency": (
        _report(
            "mfu",
            "Which share of the peak does the model use?",
            "efficiency.mfu",
            **_FILES,
            worst_by="-mfu_pct",
        ),
        _report(
            "roofline",
            "How close are ops or kernels to the limits?",
            "efficiency.roofline",
            "shape",
            "kernel",
            "rank",
            **_FINDS,
        ),
        _report("ncu", "How close to the limits are kernels, by ncu?", "efficiency.ncu", **_has_files("ncu")),
        _report(
            "gpu",
            "How fast was each GPU clocked; was it throttled?",
            "within_rank.gpu_state",
            **_has_files("gpu-counters"),
        ),
    ),
    "Memory": (
        _report(
            "memory",
            "How much memory is used; does it grow?",
            "memory.usage",
            "step",
            **_FINDS,
            worst_by="peak_allocated_bytes",
        ),
        _report(
            "memory.allocators",
            "Which ops hold the memory at the peak?",
            "memory.allocators",
            "module",
            worst_by="bytes",
        ),
        _report(
            "memory.fragmentation",
            "How much reserved memory is not in use?",
            "memory.fragmentation",
            **_has_table(MEMORY_SEGMENTS),
        ),
    ),
    "Health": (
        _report(
            "overhead",
            "How much time did the profiler itself take?",
            "within_rank.profiler_overhead",
            **_FINDS,
            worst_by="total_ns",
        ),
        _report(
            "telemetry",
            "What did the telemetry show, with which alarms?",
            "health.telemetry",
            finds=True,
            is_recorded=telemetry_folder,
        ),
        _report(
            "hang",
            "The job makes no step: where is each rank?",
            "health.hang",
            finds=True,
            is_recorded=_may_hang,
        ),
        _report(
            "hang.flight_recorder",
            "Which rank is missing at which collective?",
            "health.flight",
            **_has_table(FLIGHT),
        ),
    ),
}
"""The reports by topic, in the order in which `stats -r list` and the HTML report show them."""

QUESTIONS = {report.name: report for reports in TOPICS.values() for report in reports}
