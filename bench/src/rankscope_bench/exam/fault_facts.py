"""What the faults among the findings of a run say: who, why, at what cost. All judges read them here.

Findings are those of the JSON form (`Finding.to_dict`, `rankscope stats -r findings --format json`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rankscope.analysis.core.scope import Scope
from rankscope.analysis.findings import collect
from rankscope.timeline.run import open_run

Said = Mapping[str, Any]
"""A finding as JSON."""
Subject = int | tuple[int, ...]
"""A rank, stage, step or micro-batch; of a link the ranks of the group."""
PROBLEMS = ("warning", "critical")
OF_RANKS = ("rank", "link", "stage")
"""Axes whose subjects are ranks: the others accuse none."""
_WORDS = {"data": "dataloader", "transfer": "link", "contention": "host", "core": "host"}


def cause_word(cause: str) -> str:
    """The word of the exam for a class of time: compute, host, dataloader, copy or link."""
    return _WORDS.get(cause, cause)


class Named(NamedTuple):
    """A subject of a fault, or several of one axis with the same cause."""

    axis: str
    """rank, link, step, stage or position."""
    subjects: tuple[Subject, ...]
    cause: str
    margin_ns: float | None = None
    """Of all subjects together."""
    is_core: bool = False
    """All that its host does takes longer: its core is slow."""


@dataclass(frozen=True)
class Answer:
    """What somebody says about a run."""

    named: tuple[Named, ...] = ()
    joint_ns: float = 0.0
    """What all of it costs together."""
    moves: bool = False
    """Imbalance without a culprit."""


def findings_in(traces: Path) -> list[dict[str, Any]]:
    """All findings of a run."""
    return [finding.to_dict() for finding in collect(open_run([traces]), Scope())]


def faults_in(findings: Sequence[Said]) -> list[Said]:
    return [finding for finding in findings if finding["kind"] == "fault"]


def fact(finding: Said, quantity: str) -> Any:
    """The value of the first fact about a quantity; None without one."""
    return next((each["value"] for each in finding["facts"] if each["quantity"] == quantity), None)


def moves(finding: Said) -> bool:
    """It is another one's turn in each step: nobody is named."""
    return fact(finding, "turns") is not None


def is_growth(finding: Said) -> bool:
    """Memory that grows."""
    return finding["report"] == "memory" and fact(finding, "growth_bytes") is not None


def axis_of(finding: Said) -> str:
    """What is compared; empty where nobody is named."""
    return next((each.axis for each in named_in(finding)), "")


def accused(finding: Said) -> tuple[int, ...]:
    """The ranks that a fault names; none where steps or micro-batches are compared, or where it moves."""
    return tuple(sorted(finding["ranks"])) if axis_of(finding) in OF_RANKS else ()


def who(finding: Said) -> str:
    """Whose fault it is, as the benchmark of blame has it: rank, node, stage or nobody."""
    if not accused(finding):
        return "nobody"
    if axis_of(finding) == "stage":
        return "stage"
    return "rank" if len(finding["ranks"]) == 1 else "node"


def cause(finding: Said) -> str:
    """The cause class of its first subject; of stages with more work, that work is there."""
    if axis_of(finding) == "stage" and fact(finding, "how") == "extra":
        return "stages"
    return cause_word(str(fact(finding, "cause") or ""))


def named_in(finding: Said) -> list[Named]:
    """Its subjects, each with its cause and margin; none where it moves, for that has only an example."""
    margins = [each for each in finding["facts"] if each["quantity"] == "margin_ns"]
    return [] if moves(finding) else [_named(finding, margin) for margin in margins]


def answer_of(findings: Sequence[Said], with_cores: bool = True) -> Answer:
    """What the faults say. Without those of slow cores, where the machine has them in healthy runs too."""
    faults = [
        finding
        for finding in faults_in(findings)
        if with_cores or moves(finding) or not all(each.is_core for each in named_in(finding))
    ]
    return Answer(
        tuple(each for finding in faults for each in named_in(finding)),
        sum(finding["cost_ns"] or 0 for finding in faults),
        any(map(moves, faults)),
    )


def _named(finding: Said, margin: Said) -> Named:
    axis, subject = margin["row"]["axis"], margin["row"]["subject"]
    own = {each["quantity"]: each["value"] for each in reversed(finding["facts"])}
    own |= {each["quantity"]: each["value"] for each in finding["facts"] if each["row"] == margin["row"]}
    raw, how = str(own.get("cause") or ""), str(own.get("how") or "")
    members = tuple(sorted(margin["ranks"] or finding["ranks"]))
    return Named(
        axis,
        (members if axis == "link" else int(subject),),
        "stages" if axis == "stage" and how == "extra" else cause_word(raw),
        margin["value"],
        raw in ("contention", "core") or (raw == "host" and how.startswith("slower")),
    )
