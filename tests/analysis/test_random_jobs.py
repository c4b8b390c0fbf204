"""The judge of random jobs: what it plants costs what it says, and right and wrong answers are told apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankscope_bench.exam.fault_facts import Answer, Named
from rankscope_bench.exam.random_jobs import Culprit, Mark, Truth, marked, table, truth_of
from rankscope_bench.synthetic.job import Fault, Job

MS = 1_000_000
JOB = Job(data=4, steps=4, layers=2, noise_pct=0.0)
THREE = (
    Culprit("rank", (1,), "compute", 1, 2 * MS),
    Culprit("rank", (2,), "host", 1, MS),
    Culprit("rank", (3,), "host", 1, MS // 10),
)
TWO = Truth("job", "culprits", "dp4", 4, 10 * MS, 3 * MS, THREE, {"model": "plain"})
"""Two of the three count."""
RIGHT = Answer((Named("rank", (1,), "compute", 2 * MS), Named("rank", (2,), "host", MS)), 3 * MS)


def test_the_truth_is_what_each_fault_costs_beside_the_others() -> None:
    """Different places of the step: the later ranks wait for both. At the same place they hide each other."""
    host, compute = Fault("host", (1,), 2 * MS), Fault("compute", (2,), MS)
    truth = truth_of("job", "culprits", "dp4", replace(JOB, faults=(host, compute, Fault("host", (3,), MS))))
    margins = [culprit.margin_ns / MS for culprit in truth.culprits]
    assert margins == pytest.approx([2, 1, 1], rel=0.05)
    assert truth.culprits[2].alone_ns == pytest.approx(0, abs=MS / 20)
    assert truth.joint_ns / MS == pytest.approx(2, rel=0.05)
    assert [culprit.cause for culprit in truth.culprits] == ["host", "compute", "host"]


def test_work_that_moves_has_no_culprit() -> None:
    lengths = replace(JOB, faults=(Fault("lengths", (0, 1, 2, 3), MS),))
    truth = truth_of("job", "lengths", "dp4", lengths)
    assert not truth.culprits and truth.joint_ns > 0.2 * MS


def test_a_right_answer() -> None:
    """The third culprit costs too little: it may be named, and need not be."""
    for more in ((), (Named("rank", (3,), "host", MS / 10),)):
        mark = marked(TWO, replace(RIGHT, named=RIGHT.named + more))
        assert mark.what == "" and mark.wrongly == 0
        twice = [True, True]
        assert mark.right == {"found": twice, "causes": twice, "margins": twice, "joint": [True]}


@pytest.mark.parametrize(
    ("answer", "figures", "what"),
    [
        (
            replace(RIGHT, named=RIGHT.named[:1]),
            {"found": [True, False]},
            "not found host of rank (2,) (10.0 %)",
        ),
        (
            replace(RIGHT, named=(*RIGHT.named, Named("rank", (0,), "host"))),
            {"wrongly": 1},
            "wrongly rank 0",
        ),
        (
            replace(RIGHT, named=(RIGHT.named[0], Named("rank", (2,), "copy", MS))),
            {"causes": [True, False]},
            "cause of host of rank (2,) (10.0 %): copy",
        ),
        (replace(RIGHT, joint_ns=3.4 * MS), {"joint": [False]}, "joint 3.40 for 3.00 ms"),
        (replace(RIGHT, moves=True), {"wrongly_moving": True}, "moves"),
    ],
)
def test_a_wrong_answer(answer: Answer, figures: dict[str, object], what: str) -> None:
    mark = marked(TWO, answer)
    assert mark.what == what
    assert {name: {**vars(mark), **mark.right}[name] for name in figures} == figures


def test_links_stages_and_steps() -> None:
    link = Culprit("link", (3,), "link", 1, MS)
    stage = Culprit("stage", (4, 5), "stages", 1, MS, stage=2)
    late = Culprit("rank", (1,), "host", 2, MS)
    truth = replace(TWO, culprits=(link, stage, late), joint_ns=3 * MS)
    named = (
        Named("link", ((1, 3), (2, 3)), "link"),
        Named("stage", (2,), "stages"),
        Named("rank", (1,), "host"),
        Named("step", (1, 3), "host"),
    )
    mark = marked(truth, Answer(named, 3 * MS))
    assert (mark.right["found"], mark.right["stages"], mark.wrongly) == ([True, True], [True], 0)
    strays = (
        Named("link", ((0, 1),), "link"),
        Named("stage", (1,), "stages"),
        Named("rank", (4,), "compute"),
    )
    mark = marked(truth, Answer((*strays, Named("step", (2,), "host")), 3 * MS))
    assert (mark.right["found"], mark.right["stages"], mark.wrongly) == ([False, False], [False], 4)


def test_the_table_has_the_ratios() -> None:
    healthy, moving = replace(TWO, kind="healthy", culprits=()), replace(TWO, kind="moving", culprits=())
    marks = [
        marked(TWO, RIGHT),
        marked(healthy, RIGHT),
        marked(moving, Answer((), 3 * MS, moves=True)),
        Mark(TWO, {"found": [False, False]}, error=True),
    ]
    lines = dict(line.split("  ", 1) for line in table(marks).splitlines())
    assert lines["culprits named, from 2 % of the step"].strip() == "2 of 4 (0.500)"
    assert lines["healthy, and something is named"].strip() == "1 of 1 (1.000)"
    assert lines["moving: said, nobody named"].strip() == "1 of 1 (1.000)"
    assert lines["errors"].strip() == "1"
