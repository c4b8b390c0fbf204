"""What every comparison of ranks must say: which ranks are missing, what was not matched, and why."""

from __future__ import annotations

from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.scope import Scope
from rankscope.ranges import as_ranges
from rankscope.store.collectives.loading import recording_sessions
from rankscope.store.run import Run


def across_notes(run: Run, scope: Scope) -> list[str]:
    parts = (_one_rank, _none, _missing, mixed, _unmatched, _unnamed)
    return [*left_out(run, scope), *(note for part in parts for note in part(run))]


def _none(run: Run) -> list[str]:
    """No collective at all, in a run of several ranks."""
    if len(run.ranks) < 2 or len(run.collectives.rank):
        return []
    if any(entry.format == "nsys" for entry in run.timelines):
        return ["no collective in these reports: nsys sees NCCL's kernels, but gloo only through NVTX "
                "(rankscope profile --tool torch records gloo's collectives)"]  # fmt: skip
    return [
        "no collective in these files: torch.profiler marks them when ProfilerActivity.CPU and CUDA record"
    ]


def _one_rank(run: Run) -> list[str]:
    if len(run.ranks) > 1:
        return []
    return ["one rank: who waits for whom shows only with the others' traces (rankscope profile --ranks all)"]


def _missing(run: Run) -> list[str]:
    """Ranks that process groups speak of and that have no file here."""
    rows = run.collectives
    wanted = {rank for group in rows.groups for rank in group.ranks or ()}
    missing = sorted(wanted - set(run.ranks))
    if not missing or len(run.ranks) == 1:
        return []
    return [
        f"no file of rank{'s' * (len(missing) > 1)} {as_ranges(missing)}: waiting for a rank that is not here looks "
        "like transfer (rankscope profile --ranks all)"
    ]


def mixed(run: Run) -> list[str]:
    """Files of different jobs, or recorded at different times, on different ranks: not one run."""
    by_era: dict[int, set[int]] = {}
    for (rank, _), era in recording_sessions(run.timelines).items():
        by_era.setdefault(era, set()).add(rank)
    parts = [ranks for ranks in by_era.values() if not any(ranks < other for other in by_era.values())]
    if len(parts) < 2 or any(a & b for i, a in enumerate(parts) for b in parts[i + 1 :]):
        return []
    told = " and ".join(f"ranks {as_ranges(sorted(ranks))}" for ranks in parts)
    return [f"{told} are not of one run (another job, or more than a minute apart): they are not compared"]


def _unmatched(run: Run) -> list[str]:
    return [
        f"not matched: {entry.count:,} collectives of rank{'s' * (len(entry.ranks) > 1)} "
        f"{as_ranges(list(entry.ranks))}: {entry.why}"
        for entry in run.collectives.unmatched
        if len(run.ranks) > 1
    ]


def _unnamed(run: Run) -> list[str]:
    rows = run.collectives
    if rows.count == 0 or all(group.is_named for group in rows.groups):
        return []
    return [
        "process groups without names ('?'): told apart by stream and order alone; torch.profiler records their names "
        "with NCCL, nsys does not"
    ]
