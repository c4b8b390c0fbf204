"""The reports that answer one question each. A new report is one function in its own file and one line here."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from rankscope.analysis.across_ranks.bubbles import bubbles
from rankscope.analysis.across_ranks.clocks import clocks
from rankscope.analysis.across_ranks.host_cpu import host_cpu
from rankscope.analysis.across_ranks.layout import groups, layout
from rankscope.analysis.across_ranks.micro_batches import micro_batches
from rankscope.analysis.across_ranks.nccl import nccl
from rankscope.analysis.across_ranks.op_differences import op_differences
from rankscope.analysis.across_ranks.steps import steps
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.report import Analyse, Report
from rankscope.analysis.core.result import Finding, Result, left_out_note
from rankscope.analysis.core.scope import Scope, in_whole_files
from rankscope.analysis.critical_path.imbalance import imbalance
from rankscope.analysis.critical_path.report import critical
from rankscope.analysis.efficiency.mfu import mfu
from rankscope.analysis.efficiency.ncu import ncu
from rankscope.analysis.efficiency.roofline import roofline
from rankscope.analysis.faults.by_group import KEYS, breakdown_by, collectives_by, stragglers_by
from rankscope.analysis.faults.report import faults
from rankscope.analysis.health.flight import flight_recorder
from rankscope.analysis.health.hang import hang
from rankscope.analysis.health.telemetry import telemetry
from rankscope.analysis.memory.allocators import allocators
from rankscope.analysis.memory.fragmentation import fragmentation
from rankscope.analysis.memory.usage import memory
from rankscope.analysis.within_rank.dataloader import dataloader
from rankscope.analysis.within_rank.event_tables import annotated, kernels, memcpy, runtime_api
from rankscope.analysis.within_rank.gpu_state import gpu
from rankscope.analysis.within_rank.idle import idle
from rankscope.analysis.within_rank.idle_gaps import gaps
from rankscope.analysis.within_rank.kernel_families import families
from rankscope.analysis.within_rank.launches import launches
from rankscope.analysis.within_rank.ops import ops
from rankscope.analysis.within_rank.overlap import overlap
from rankscope.analysis.within_rank.phases import phases
from rankscope.analysis.within_rank.profiler_overhead import overhead
from rankscope.analysis.within_rank.short_kernels import short_kernels
from rankscope.analysis.within_rank.syncs import syncs
from rankscope.ranges import rank_words
from rankscope.timeline.run import Run

TOPICS = {
    "Where time goes": (
        "breakdown", "steps", "overlap", "idle", "gaps", "phases", "launches", "short_kernels", "syncs",
        "dataloader", "families", "kernels", "ops", "runtime_api", "memcpy", "annotations",
    ),
    "Across ranks": (
        "faults", "stragglers", "op_differences", "micro_batches", "host_cpu", "collectives", "nccl", "critical",
        "imbalance", "bubbles", "clocks", "layout", "groups",
    ),
    "Efficiency": ("mfu", "roofline", "ncu", "gpu"),
    "Memory": ("memory", "allocators", "fragmentation"),
    "Health": ("overhead", "telemetry", "hang", "flight_recorder"),
}  # fmt: skip
"""The reports by topic, in the order in which `stats -r list` and the HTML report show them."""


_OF_WHOLE_FILES = (
    "breakdown", "overlap", "idle", "gaps", "phases", "launches", "short_kernels", "syncs", "dataloader", "mfu",
    "steps", "stragglers", "op_differences", "micro_batches",
)  # fmt: skip
"""Reports whose figures also follow from what is not in a file: idle times, step times, waits."""
_OF_WHOLE_RUNS = ("critical", "faults", "imbalance", "bubbles")
"""Those that replay all ranks."""


_WORST_BY = {
    "overlap": "exposed_ns", "idle": "host_bound_ns", "phases": "host_ns", "dataloader": "wait_ns",
    "overhead": "total_ns", "steps": "time_ns", "host_cpu": "run_delay_ns", "clocks": "error_ns",
    "memory": "peak_allocated_bytes", "allocators": "bytes", "mfu": "mfu_pct",
}  # fmt: skip
"""Tables with rows of each rank: the column whose sum tells which rank is worst. Of MFU the lowest is."""


def _worst_first(result: Result) -> Result:
    """Whole windows before steps; the rows of a rank stay together, in their order."""
    by, sums = _WORST_BY.get(result.name), Counter[int | None]()
    if by is None:
        return result
    for row in result.rows:
        sums[row.get("rank")] += (row[by] or 0) * (1 if by == "mfu_pct" else -1)
    rows = sorted(result.rows, key=lambda row: (row.get("step") is not None, sums[row.get("rank")]))
    return replace(result, rows=rows)


def in_window(name: str, analyse: Analyse) -> Analyse:
    """The analysis with the window that its scope means in the run, and facts that say where they come from.

    Ranks whose file is cut are left out where their figures cannot be known.

    Its answer is kept: summary and findings use most reports again.
    """

    @once_per_run
    def analysed(run: Run, scope: Scope, by: str | None) -> Result:
        whole = in_whole_files(run, scope) if name in (*_OF_WHOLE_RUNS, *_OF_WHOLE_FILES) else scope
        left_out = sorted({*scope.ranks_in(run)} - {*whole.ranks_in(run)})
        note = left_out_note(f"{rank_words(left_out)}, whose recording is cut: what it lacks is not known")
        if left_out and (not whole.ranks or name in _OF_WHOLE_RUNS):
            return Result(name, QUESTIONS[name].question, scope.window, (), [], notes=(note,), unknown=note)
        result = _worst_first(analyse(run, whole, by))
        if left_out:
            result = replace(result, notes=(*result.notes, note))
        return replace(result, findings=tuple(_placed(finding, result) for finding in result.findings))

    return lambda run, scope, by: analysed(run, scope.in_run(run), by)


def _placed(finding: Finding, result: Result) -> Finding:
    facts = (
        replace(fact, report=fact.report or result.name, window=fact.window or result.window)
        for fact in finding.facts
    )
    return replace(finding, facts=tuple(facts), report=result.name)


QUESTIONS = {
    report.name: replace(report, analyse=in_window(report.name, report.analyse))
    for report in (
        Report(
            "breakdown", "Where did the time go: compute, communication, copies, idle?", breakdown_by, KEYS
        ),
        Report(
            "overlap",
            "Is communication hidden behind compute, and behind what?",
            overlap,
            ("step",),
            finds=True,
        ),
        Report("idle", "Why is the GPU idle?", idle, finds=True),
        Report(
            "gaps",
            "Before which op, annotation or line does the GPU wait?",
            gaps,
            ("rank", "source"),
        ),
        Report("phases", "How much is forward, backward, optimizer, recomputation?", phases),
        Report("launches", "Is the host ahead of the GPU: launch delays, queue depth?", launches),
        Report(
            "short_kernels",
            "Which ops launch kernels that are too short?",
            short_kernels,
            ("rank", "source"),
            finds=True,
        ),
        Report(
            "syncs",
            "Which calls wait for the GPU, and which Python line made them?",
            syncs,
            ("rank",),
            finds=True,
        ),
        Report("dataloader", "Does the training loop wait for data?", dataloader, finds=True),
        Report("overhead", "How much time did the profiler itself take?", overhead, finds=True),
        Report("families", "Which kinds of kernels take the time?", families, ("rank",)),
        Report("kernels", "Which GPU kernels take the time?", kernels, ("rank", "op", "module", "source")),
        Report(
            "ops",
            "Which operators take the time, on host and device?",
            ops,
            ("rank", "shape", "module", "source"),
        ),
        Report("steps", "How long does each step take, on the host and with the GPU?", steps),
        Report("runtime_api", "Which runtime and driver calls take the host's time?", runtime_api, ("rank",)),
        Report("memcpy", "Which copies run, and how fast?", memcpy, ("rank",), finds=True),
        Report("annotations", "How long do the program's annotated ranges take?", annotated, ("rank",)),
        Report("mfu", "Which share of the device's peak does the model use?", mfu),
        Report(
            "roofline",
            "How close is each op or kernel to the limits of the device?",
            roofline,
            ("shape", "kernel", "rank"),
            finds=True,
        ),
        Report(
            "collectives",
            "How fast are collectives, and how long do ranks wait in them?",
            collectives_by,
            ("group",),
            finds=True,
        ),
        Report("nccl", "How fast are collectives by NCCL's own measurement?", nccl, finds=True),
        Report(
            "stragglers", "Which rank do the others wait for, and how long?", stragglers_by, (*KEYS, "step")
        ),
        Report(
            "op_differences",
            "Does a rank run ops that others do not, or more of them?",
            op_differences,
        ),
        Report("micro_batches", "How long does each micro-batch take?", micro_batches),
        Report(
            "host_cpu",
            "Do ranks lack CPU: cores, threads, garbage collection?",
            host_cpu,
            ("step",),
            finds=True,
        ),
        Report("clocks", "How far apart are the clocks of the ranks?", clocks, finds=True),
        Report("layout", "Which rank has which place: pipeline, data, tensor, expert?", layout, ("rank",)),
        Report("groups", "Which process groups exist, and what are they used for?", groups),
        Report("critical", "What is on the critical path through all ranks?", critical),
        Report(
            "faults", "Who costs time beyond what the others need, why, and how much?", faults, finds=True
        ),
        Report("imbalance", "What does uneven work cost, and whose share is it?", imbalance),
        Report("bubbles", "How long are pipeline stages idle?", bubbles, ("rank",), finds=True),
        Report(
            "fragmentation",
            "How much reserved memory is not in use, and in which pieces?",
            fragmentation,
            finds=True,
        ),
        Report(
            "flight_recorder",
            "The job hung: which rank is missing at which sequence number?",
            flight_recorder,
            finds=True,
        ),
        Report(
            "telemetry",
            "What did the telemetry show, rank by rank, with which alarms?",
            telemetry,
            finds=True,
        ),
        Report("hang", "The job makes no step: where does each rank stand?", hang, finds=True),
        Report(
            "ncu",
            "How close to the device's limits are kernels, measured by ncu?",
            ncu,
            finds=True,
        ),
        Report(
            "gpu",
            "How fast was each GPU clocked, how hot, was it throttled?",
            gpu,
            finds=True,
        ),
        Report(
            "memory", "How much memory is used at the peak, and does it grow?", memory, ("step",), finds=True
        ),
        Report("allocators", "Which ops and modules hold the memory at the peak?", allocators, ("module",)),
    )
}
