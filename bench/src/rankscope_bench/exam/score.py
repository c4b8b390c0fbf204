"""How the exam's answers are scored: what is right about one, and the shares over many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rankscope_bench.blame.case_set import CAUSES, LEAST_PCT, MOVING
from rankscope_bench.exam.cases import REPORTS
from rankscope_bench.exam.fault_facts import OF_RANKS

FLOOR = {
    "precision": 0.98,
    "recall": 0.98,
    "cause": 0.95,
    "first": 0.95,
    "cost": 0.95,
    "stated": 0.95,
    "false_alarms": 0.0,
    "named_healthy": 0.1,
}
"""For effects of FROM_PCT or more; of those in AT_MOST, the most."""
AT_MOST = ("false_alarms", "named_healthy")
FROM_PCT = 5.0
FIRST_FROM_PCT = 10.0
COST_TOLERANCE = 0.10
BALANCE_TOLERANCE = 0.02


@dataclass(frozen=True)
class Answer:
    """A case, its truth, and what was said about it."""

    name: str
    kind: str
    layout: str
    culprits: tuple[int, ...]
    effect_pct: float
    """True share of the step."""
    cost_ns: float
    step_ns: float
    real: bool = False
    held_out: bool = False
    balance: dict[str, float] = field(default_factory=dict)
    """True times of a step: T and balanced, and the slowdown."""
    said_balance: dict[str, float] = field(default_factory=dict)
    named: tuple[int, ...] = ()
    """Ranks of the first fault that names ranks, a link or a stage, at any severity."""
    severity: str = ""
    cause: str = ""
    said_ns: int | None = None
    """The finding's cost: without what findings above it have claimed."""
    alone_ns: int | None = None
    """What whatif says the culprit costs."""
    first: str = ""
    """Of the first finding: a fault's axis, or "moves"; else its report."""
    first_ranks: tuple[int, ...] = ()
    warned: tuple[str, ...] = ()
    """Reports with a finding of warning or above."""
    alarms: tuple[str, ...] = ()
    """Titles of faults of warning or above."""
    title: str = ""
    error: str = ""
    seconds: float = 0.0

    @property
    def has_culprit(self) -> bool:
        return self.kind in CAUSES and self.effect_pct >= LEAST_PCT

    @property
    def hit(self) -> bool:
        """A slow link has two ends: its group may be named, as long as the rank is in it."""
        if self.kind == "link":
            return set(self.culprits) <= set(self.named) and len(self.named) <= 4
        return bool(self.named) and self.named == self.culprits

    @property
    def accused(self) -> bool:
        """A wrong rank is named; of imbalance that moves, any; in a healthy job, with a warning or above."""
        if self.kind in CAUSES and not self.has_culprit:
            return False
        if self.kind == "healthy":
            return bool(self.alarms)
        return bool(self.named) and not self.hit

    @property
    def cause_right(self) -> bool:
        return self.hit and self.cause == CAUSES.get(self.kind)

    def _is_close(self, cost_ns: int | None) -> bool:
        return cost_ns is not None and abs(cost_ns - self.cost_ns) <= COST_TOLERANCE * self.cost_ns

    @property
    def is_told(self) -> bool:
        """The culprit is named, or imbalance without one is reported: there is a cost to compare."""
        if self.kind in MOVING:
            return bool(self.title) and not self.named
        return self.hit

    @property
    def cost_right(self) -> bool:
        return self.is_told and self._is_close(self.alone_ns)

    @property
    def stated_right(self) -> bool:
        return self.is_told and self._is_close(self.said_ns)

    @property
    def balance_right(self) -> bool:
        """T, the balanced times and the slowdown are those of the simulation."""
        return all(
            name in self.said_balance and abs(self.said_balance[name] - value) <= BALANCE_TOLERANCE * value
            for name, value in self.balance.items()
            if name != "schedule_bubble_ns"
        )

    @property
    def first_right(self) -> bool:
        if self.kind in MOVING:
            return self.first == "moves"
        if self.kind == "stages":
            return self.first == "stage" and self.first_ranks == self.culprits
        if self.kind == "leak":  # it has no cost, so findings with one are listed before it
            return bool(set(self.warned) & set(REPORTS["leak"]))
        if self.kind in REPORTS:
            named_right = self.kind != "hang" or self.first_ranks == self.culprits
            return self.first in REPORTS[self.kind] and named_right
        return self.first in OF_RANKS and self.hit

    @property
    def wrong(self) -> str:
        """What is wrong with the answer, for the line of the case; empty where nothing is."""
        if self.error:
            return self.error
        if self.kind == "healthy":
            return f"alarm: {self.alarms[0]}" if self.alarms else ""
        if self.kind in MOVING:
            return (
                "one rank is blamed" if self.accused else "" if self.first_right else f"first is {self.first}"
            )
        if self.kind in REPORTS:
            return "" if self.first_right else f"first is {self.first} {self.first_ranks}"
        if not self.has_culprit:
            return ""
        if not self.hit:
            return f"named {self.named}" if self.named else "not found"
        return "" if self.cause_right else f"cause {self.cause}"


def share(values: Iterable[bool]) -> float | None:
    """Of the cases that are true; None without cases."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else None


def scores(answers: Sequence[Answer], low: float, high: float = 101.0) -> dict[str, float | None]:
    """The scores of the cases whose true effect is in [low, high) percent."""
    uneven = [one for one in answers if one.kind in MOVING and low <= one.effect_pct < high]
    inside = [one for one in answers if one.has_culprit and low <= one.effect_pct < high]
    named = [one for one in inside if one.named]
    told = [one for one in (*inside, *uneven) if one.is_told]
    return {
        "cases": float(len(inside)),
        "precision": share(one.hit for one in named),
        "recall": share(one.hit for one in inside),
        "cause": share(one.cause_right for one in inside if one.hit),
        "cost": share(one.cost_right for one in told),
        "stated": share(one.stated_right for one in told),
        "first": share(one.first_right for one in (*inside, *uneven) if one.effect_pct > FIRST_FROM_PCT),
    }


def total(answers: Sequence[Answer]) -> dict[str, float | None]:
    """The figures of the last line. Precision counts also ranks that are named where nobody is to blame."""
    large = scores(answers, FROM_PCT)
    healthy = [one for one in answers if one.kind == "healthy"]
    accused = sum(one.accused for one in answers if one.kind in ("healthy", *MOVING))
    inside = [one for one in answers if one.has_culprit and one.effect_pct >= FROM_PCT]
    named, hits = sum(bool(one.named) for one in inside), sum(one.hit for one in inside)
    return large | {
        "precision": hits / (named + accused) if named + accused else None,
        "false_alarms": share(bool(one.alarms) for one in healthy),
        "named_healthy": share(bool(one.named) and not one.alarms for one in healthy),
        "other": share(one.first_right for one in answers if one.kind in REPORTS),
        "moving": share(not one.accused for one in answers if one.kind in MOVING),
        "balance": share(one.balance_right for one in answers if one.balance),
    }


def below_floor(found: dict[str, float | None]) -> list[str]:
    """Names of the scores that miss the floor."""
    return [
        name
        for name, floor in FLOOR.items()
        if (value := found.get(name)) is not None and (value > floor if name in AT_MOST else value < floor)
    ]


def text(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def line_of(found: dict[str, float | None]) -> str:
    """Scores in one line."""
    return " · ".join(
        f"{name.replace('_', ' ')} {text(value)}" for name, value in found.items() if name != "cases"
    )
