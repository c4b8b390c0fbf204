"""What the judges of the exam read out of findings: who, why, at what cost; limits and health accuse nobody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from rankscope.analysis.core.result import Fact, Finding
from rankscope_bench.blame.ask import answer_of as blamed
from rankscope_bench.exam.fault_facts import Named, accused, answer_of, cause, moves, who

MS = 1_000_000


def fault(
    axis: str, *subjects: str, ranks: tuple[int, ...] = (), why: str = "host", how: str = "pause"
) -> Finding:
    """Each subject costs 1 ms, all together 2."""
    facts: list[Fact] = []
    for subject in subjects:
        row: Mapping[str, Any] = {"axis": axis, "subject": subject}
        facts += [Fact("margin_ns", MS, row=row), Fact("how", how, row=row), Fact("cause", why, row=row)]
    return Finding(
        "critical", "It costs time", ranks=ranks, cost_ns=2 * MS, facts=tuple(facts), report="faults",
        alone_ns=3 * MS, subject=f"{axis} {', '.join(subjects)}",
    )  # fmt: skip


def said(*findings: Finding) -> list[dict[str, Any]]:
    return [finding.to_dict() for finding in findings]


LIMIT = Finding("limit", "Data loading", ranks=(0, 1), cost_ns=5 * MS, alone_ns=5 * MS, report="dataloader")
HANG = Finding("critical", "Rank 1 is missing", ranks=(1,), report="hang")
MOVES = replace(fault("rank", "2"), facts=(Fact("turns", "0, 2, -, 1"), *fault("rank", "2").facts))
GROWS = Finding(
    "warning", "Memory grows", ranks=(3,), facts=(Fact("growth_bytes", 2**20, "bytes"),), report="memory"
)


def test_each_subject_of_a_fault_is_named_with_its_own_cause() -> None:
    both = fault("rank", "1", "3", ranks=(1, 3))
    slow = [replace(each, value="compute") if each.quantity == "cause" else each for each in both.facts[-3:]]
    findings = said(replace(both, facts=(*both.facts[:-3], *slow)), LIMIT, HANG)
    answer = answer_of(findings)
    assert answer.named == (Named("rank", (1,), "host", MS), Named("rank", (3,), "compute", MS))
    assert answer.joint_ns == 2 * MS and not answer.moves
    assert accused(findings[0]) == (1, 3) and who(findings[0]) == "node"


@pytest.mark.parametrize(
    ("finding", "named", "ranks", "whose", "word"),
    [
        (fault("link", "dp", ranks=(2, 0), why="transfer"), ((0, 2),), (0, 2), "node", "link"),
        (fault("stage", "1", ranks=(4, 5), how="extra"), (1,), (4, 5), "stage", "stages"),
        (fault("stage", "1", ranks=(4, 5), why="compute", how="slower"), (1,), (4, 5), "stage", "compute"),
        (fault("step", "7", ranks=(0, 1, 2, 3)), (7,), (), "nobody", "host"),
        (fault("position", "3", ranks=(0, 1), why="data"), (3,), (), "nobody", "dataloader"),
    ],
)
def test_axes(
    finding: Finding, named: tuple[object, ...], ranks: tuple[int, ...], whose: str, word: str
) -> None:
    (one,) = said(finding)
    assert [each.subjects for each in answer_of([one]).named] == [named]
    assert (accused(one), who(one), cause(one)) == (ranks, whose, word)


def test_what_moves_names_nobody() -> None:
    """The rank in its facts is an example."""
    (one,) = said(MOVES)
    assert moves(one) and accused(one) == () and who(one) == "nobody"
    answer = answer_of([one])
    assert answer.moves and not answer.named and answer.joint_ns == 2 * MS


@pytest.mark.parametrize(("why", "how"), [("contention", "slower"), ("host", "slower x1.30")])
def test_slow_cores_can_be_left_out(why: str, how: str) -> None:
    core = fault("rank", "1", ranks=(1,), why=why)
    facts = tuple(replace(each, value=how) if each.quantity == "how" else each for each in core.facts)
    findings = said(replace(core, facts=facts), fault("rank", "2", ranks=(2,)))
    assert [each.subjects for each in answer_of(findings).named] == [(1,), (2,)]
    left = answer_of(findings, with_cores=False)
    assert [each.subjects for each in left.named] == [(2,)] and left.joint_ns == 2 * MS


@pytest.mark.parametrize(
    ("findings", "whose", "ranks", "why"),
    [
        ([LIMIT], "nobody", [], "none"),
        ([HANG, fault("rank", "2", ranks=(2,))], "rank", [1], "hang"),
        ([GROWS, LIMIT], "rank", [3], "memory"),
        ([fault("rank", "2", ranks=(2,), why="dataloader"), GROWS, LIMIT], "rank", [2], "dataloader"),
        ([MOVES, LIMIT], "nobody", [], "uneven"),
        ([fault("stage", "1", ranks=(5, 4), how="extra")], "stage", [4, 5], "stages"),
    ],
)
def test_the_answer_to_a_case_of_the_benchmark_of_blame(
    findings: list[Finding], whose: str, ranks: list[int], why: str
) -> None:
    answer = blamed(said(*findings))
    assert (answer["who"], answer["ranks"], answer["cause"]) == (whose, ranks, why)
    if "ms_per_step" in answer and why not in ("hang", "memory"):
        assert answer["ms_per_step"] == 3.0 and answer["confidence"] > 0.5
