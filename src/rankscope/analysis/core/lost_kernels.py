"""Ranks whose profiler stopped recording kernels while the job went on."""

from __future__ import annotations

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.gpu_counts import gpu_counts
from rankscope.analysis.core.run_steps import in_order_of_start
from rankscope.analysis.core.scope import Scope, steps_in_scope
from rankscope.timeline.run import Run

_LEAST_STEPS = 2
"""So many steps without a kernel, at the end of a recording with GPU events, are no accident."""


def kernels_end_in(run: Run, scope: Scope) -> dict[int, int | None]:
    """By rank, the last step with kernels, where the later ones have none at all; None where no step has one.

    All recorded steps are compared, not only those in scope.
    """
    return _kernels_end_in(run, scope.only_ranks())  # once for all windows of these ranks


@once_per_run
def _kernels_end_in(run: Run, ranks: Scope) -> dict[int, int | None]:
    counts = gpu_counts(run, ranks)
    with_events = {count.rank for count in counts if count.step is not None}
    with_kernels = {(c.rank, c.segment, c.step) for c in counts if c.category == "kernel"}
    steps = in_order_of_start(steps_in_scope(run, ranks))
    by_rank: dict[int, list[tuple[int, int, int]]] = {}
    for rank, segment, step, start in zip(
        *(steps[name].tolist() for name in ("rank", "segment", "step", "start")), strict=True
    ):
        by_rank.setdefault(rank, []).append((start, segment, step))
    found: dict[int, int | None] = {}
    for rank in sorted(with_events & by_rank.keys()):
        having = [
            (start, step) for start, segment, step in by_rank[rank] if (rank, segment, step) in with_kernels
        ]
        last = max((start for start, _ in having), default=None)
        after = sum(last is None or start > last for start, _, _ in by_rank[rank])
        if after >= _LEAST_STEPS:
            found[rank] = max((step for start, step in having if start == last), default=None)
    return found
