"""Whether two runs differ in the clock of their GPUs, and whether that explains what changed."""

from __future__ import annotations

from rankscope.analysis.core.result import Fact, Finding
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.within_rank.event_tables import kernel_sums
from rankscope.analysis.within_rank.gpu_state import LOWER, LowClock, explains, gpu_states, slower_kernels
from rankscope.ranges import rank_words
from rankscope.records import dataclass
from rankscope.timeline.run import Run


@dataclass(frozen=True)
class ClockChange:
    """A clock that is lower in one of two runs."""

    low: LowClock
    """Of the rank with the lowest, in the run in which it is lower."""
    ranks: tuple[int, ...]
    """Those whose clock is lower; empty for all."""
    is_new: bool
    """It is lower in the new run, not in the base."""
    slower: float
    """How much longer its kernels take in that run."""

    @property
    def words(self) -> str:
        """'the SM clock is locked at 900 MHz, against 1,452 MHz'."""
        low, whose = self.low, f" of {rank_words(self.ranks)}" if self.ranks else ""
        mine, others = f"{low.mine_mhz:,.0f} MHz", f"{low.others_mhz:,.0f} MHz"
        locked = low.state.is_locked
        if self.is_new:
            return (
                f"the SM clock{whose} is {'locked at ' * locked}{mine}, against {others}{low.slowed_by.words}"
            )
        return f"the SM clock{whose} is {others}, against {mine}{' (locked)' * locked}"

    @property
    def facts(self) -> tuple[Fact, ...]:
        low, where = self.low, "in the new run" if self.is_new else "in the base"
        return (
            *low.facts(),
            Fact("clock_ratio", low.others_mhz / low.mine_mhz, "", where),
            Fact("kernels_ratio_of_runs", self.slower, "", where),
        )

    @property
    def advice(self) -> str:
        return f"Compare runs with the same clock. {self.low.advice}" if self.is_new else ""

    @property
    def command(self) -> tuple[str, ...]:
        return self.low.slowed_by.command if self.is_new else ()

    def explains(self, base: float | None, new: float | None) -> bool:
        """Whether it explains a change, of the step or of a row."""
        slow, fast = (new, base) if self.is_new else (base, new)
        return bool(slow and fast and slow > fast and explains(self.low, slow / fast))

    def finding(self) -> Finding:
        """For a clock that does not explain the change of the step time."""
        words = self.words
        return Finding(
            "info",
            f"{words[0].upper()}{words[1:]}",
            ranks=self.ranks,
            advice=self.advice,
            command=self.command,
            facts=self.facts,
        )


def clock_change(base: Run, new: Run, scope: Scope) -> ClockChange | None:
    """The lower clock, where logs cover ranks of both runs; None if it is not known, or the same within its error."""
    runs = (base, new)
    scopes = [scope.in_run(run) for run in runs]
    states = [gpu_states(run, each) for run, each in zip(runs, scopes, strict=True)]
    lower: dict[bool, list[LowClock]] = {True: [], False: []}
    common = [rank for rank in states[0] if rank in states[1]]
    for rank in common:
        gpus = [state[rank] for state in states]
        if any(len(each) != 1 for each in gpus) or gpus[0][0].model != gpus[1][0].model:
            continue
        before, after = gpus[0][0].clock, gpus[1][0].clock
        if (
            before is None
            or after is None
            or abs(before.mean - after.mean) <= 2 * (before.error + after.error)
        ):
            continue
        is_new = after.mean < before.mean
        mine, other = (gpus[1][0], gpus[0][0]) if is_new else (gpus[0][0], gpus[1][0])
        low, high = min(before.mean, after.mean), max(before.mean, after.mean)
        if low > 0 and 1 - low / high >= LOWER:
            lower[is_new].append(LowClock(rank, mine, low, high, ((rank, other),)))
    is_new = len(lower[True]) >= len(lower[False])
    if not lower[is_new]:
        return None
    worst = max(lower[is_new], key=lambda clock: clock.lower)
    sums = [kernel_sums(run, each) for run, each in zip(runs, scopes, strict=True)]
    if sums[0] is None or sums[1] is None:
        return None
    slow, fast = (sums[1], sums[0]) if is_new else (sums[0], sums[1])
    slowdown = slower_kernels(slow.get(worst.rank, ()), [fast.get(worst.rank, ())])
    if slowdown is None:
        return None
    ranks = tuple(sorted(clock.rank for clock in lower[is_new]))
    return ClockChange(worst, () if len(ranks) == len(common) else ranks, is_new, slowdown[0])
