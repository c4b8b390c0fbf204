"""Notes for every report that compares ranks: missing ranks, and collectives that were not matched, with the reason."""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.analysis.core.advice import framework
from rankscope.analysis.core.notes import ranks_by_session
from rankscope.model import NCCL
from rankscope.ranges import as_ranges, rank_words
from rankscope.timeline.run import Run

HOW_TO_RECORD_STARTS = (
    "the Inspector records them with NCCL_INSPECTOR_DUMP_VERBOSE=1, the profiler plugin with kernel events, "
    "NCCL_PROFILE_EVENT_MASK=4095"
)


def comparison_notes(run: Run) -> Iterator[str]:
    rows, several = run.collectives, len(run.ranks) > 1
    if not several:
        yield (
            "only one rank was recorded: waiting shows only in a comparison of ranks (rankscope profile --ranks all)"
        )
    if not run.has_traces and run.has(NCCL):
        yield (
            "from NCCL's own files: they say which rank arrives late, not why, nor what runs at the same time"
            if len(rows.rank)
            else f"cannot say who arrives late: NCCL's files have no start times ({HOW_TO_RECORD_STARTS}); "
            "-r collectives.nccl shows times and bandwidth"
        )
    if several and not len(rows.rank) and not run.has(NCCL):
        formats = {entry.format for entry in run.timelines}
        if "nsys" in formats:
            yield (
                "no collectives in these reports: nsys records NCCL's kernels, and gloo's collectives only as NVTX "
                "ranges (rankscope profile --tool torch records them)"
            )
        elif "rocprof" in formats:
            yield "no collectives in these files: rocprofv3 records RCCL's kernels with --kernel-trace"
        else:
            how = ": torch.profiler records them with ProfilerActivity.CPU and CUDA" * (
                framework(run) == "torch"
            )
            yield f"no collectives in these files{how}"
    missing = sorted({rank for group in rows.groups for rank in group.ranks or ()} - {*run.ranks})
    if missing and several:
        yield (
            f"no file for {rank_words(missing)}: waiting for them counts as transfer "
            "(rankscope profile --ranks all records every rank)"
        )
    parts = ranks_by_session(run)
    if len(parts) > 1 and not any(a & b for i, a in enumerate(parts) for b in parts[i + 1 :]):
        shown = " and ".join(f"ranks {as_ranges(sorted(ranks))}" for ranks in parts)
        yield (
            f"{shown} are not from one run (different jobs, or recorded more than a minute apart): they are not "
            "compared"
        )
    for entry in rows.unmatched if several else ():
        yield f"not matched: {entry.count:,} collectives of {rank_words(entry.ranks)}: {entry.why}"
    # Whether a send left early is known only where clocks are.
    ranks = {*rows.rank[rows.sends].tolist(), *rows.rank[rows.recvs].tolist()}
    unaligned = sorted(rank for rank in ranks if run.clocks.of(rank).method == "wall clock")
    if unaligned:
        yield (
            f"the clocks of {rank_words(unaligned)} are not aligned: a send and its receive are taken to end together"
        )
    if rows.count and not all(group.is_named for group in rows.groups):
        yield (
            "some process groups have no name ('?'): they are told apart only by stream and order; torch.profiler "
            "records the names with NCCL, nsys does not"
        )
