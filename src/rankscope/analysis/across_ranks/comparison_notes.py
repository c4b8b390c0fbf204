"""Notes for every report that compares ranks: missing ranks, and collectives that were not matched, with the reason."""

from __future__ import annotations

from rankscope.analysis.core.advice import framework
from rankscope.analysis.core.notes import left_out, ranks_by_session
from rankscope.analysis.core.scope import Scope
from rankscope.model import NCCL
from rankscope.ranges import as_ranges, rank_words
from rankscope.timeline.run import Run

HOW_TO_RECORD_STARTS = (
    "the Inspector records them with NCCL_INSPECTOR_DUMP_VERBOSE=1, the profiler plugin with kernel events, "
    "NCCL_PROFILE_EVENT_MASK=4095"
)


def comparison_notes(run: Run, scope: Scope) -> list[str]:
    sources = (
        _one_rank,
        _from_nccl,
        _no_collectives,
        missing_ranks,
        _several_runs,
        _unmatched,
        _unaligned_messages,
        _unnamed_groups,
    )
    return [*left_out(run, scope), *(note for source in sources for note in source(run))]


def _from_nccl(run: Run) -> list[str]:
    """A run with NCCL's own files and no traces."""
    if run.has_traces or not run.has(NCCL):
        return []
    if len(run.collectives.rank):
        return [
            "from NCCL's own files: they say which rank arrives late, not why, nor what runs at the same time"
        ]
    return [f"cannot say who arrives late: NCCL's files have no start times ({HOW_TO_RECORD_STARTS}); -r nccl shows "
            "times and bandwidth"]  # fmt: skip


def _no_collectives(run: Run) -> list[str]:
    """A run of several ranks without any collective."""
    if len(run.ranks) < 2 or len(run.collectives.rank) or run.has(NCCL):
        return []
    if any(entry.format == "nsys" for entry in run.timelines):
        return ["no collectives in these reports: nsys records NCCL's kernels, and gloo's collectives only as NVTX "
                "ranges (rankscope profile --tool torch records them)"]  # fmt: skip
    if any(entry.format == "rocprof" for entry in run.timelines):
        return ["no collectives in these files: rocprofv3 records RCCL's kernels with --kernel-trace"]
    if framework(run) == "torch":
        return [
            "no collectives in these files: torch.profiler records them with ProfilerActivity.CPU and CUDA"
        ]
    return ["no collectives in these files"]


def _one_rank(run: Run) -> list[str]:
    if len(run.ranks) > 1:
        return []
    return [
        "only one rank was recorded: waiting shows only in a comparison of ranks (rankscope profile --ranks all)"
    ]


def missing_ranks(run: Run) -> list[str]:
    """A note on ranks that are members of a process group but have no file."""
    rows = run.collectives
    wanted = {rank for group in rows.groups for rank in group.ranks or ()}
    missing = sorted(wanted - set(run.ranks))
    if not missing or len(run.ranks) == 1:
        return []
    return [
        f"no file for {rank_words(missing)}: waiting for them counts as transfer "
        "(rankscope profile --ranks all records every rank)"
    ]


def _several_runs(run: Run) -> list[str]:
    """Groups of ranks whose files come from different jobs, or were recorded at different times."""
    parts = ranks_by_session(run)
    if len(parts) < 2 or any(a & b for i, a in enumerate(parts) for b in parts[i + 1 :]):
        return []
    shown = " and ".join(f"ranks {as_ranges(sorted(ranks))}" for ranks in parts)
    return [
        f"{shown} are not from one run (different jobs, or recorded more than a minute apart): they are not compared"
    ]


def _unmatched(run: Run) -> list[str]:
    return [
        f"not matched: {entry.count:,} collectives of {rank_words(entry.ranks)}: {entry.why}"
        for entry in run.collectives.unmatched
        if len(run.ranks) > 1
    ]


def _unaligned_messages(run: Run) -> list[str]:
    """Ranks with sends and receives whose clocks are not known: whether a send left early is not either."""
    rows = run.collectives
    if not len(rows.sends):
        return []
    ranks = {*rows.rank[rows.sends].tolist(), *rows.rank[rows.recvs].tolist()}
    unaligned = sorted(rank for rank in ranks if run.clocks.of(rank).method == "wall clock")
    if not unaligned:
        return []
    return [
        f"the clocks of {rank_words(unaligned)} are not aligned: a send and its receive are taken to end together"
    ]


def _unnamed_groups(run: Run) -> list[str]:
    rows = run.collectives
    if rows.count == 0 or all(group.is_named for group in rows.groups):
        return []
    return [
        "some process groups have no name ('?'): they are told apart only by stream and order; torch.profiler records "
        "the names with NCCL, nsys does not"
    ]
