"""A fixed part of the exam (docs/accuracy.md): every fault once, and healthy jobs, with the floors of `make exam`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankscope_bench.blame.case_set import CAUSES, MOVING
from rankscope_bench.exam.cases import LAYOUTS, REPORTS, all_cases
from rankscope_bench.exam.exam import answer
from rankscope_bench.exam.report import section
from rankscope_bench.exam.score import AT_MOST, FLOOR, Answer, below_floor, scores, total

pytestmark = pytest.mark.slow

SUBSET = (
    "compute-15%-dp2tp2-0",
    "host-30%-dp4-0",
    "checkpoint-15%-dp4-1",
    "dataloader-10%-dp4-1",
    "link-15%-dp2tp2-0",
    "moving-20%-dp4-0",
    "overlap-dp4-0",
    "leak-dp4-0",
    "hang-dp2tp2-0",
    "healthy-dp4-0",
    "healthy-pp4-1f1b-0",
    "stages-30%-pp4dp2-1f1b-0",
    "lengths-10%-dp8-0",
    "experts-20%-dp4-0",
)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Answer]:
    cases = {case.name: case for case in all_cases()}
    folder = tmp_path_factory.mktemp("exam")
    found = []
    for name in SUBSET:
        place = folder / name
        place.mkdir()
        found.append(answer(cases[name], place))
    return found


def test_the_small_exam_is_passed(answers: list[Answer]) -> None:
    assert [one.wrong for one in answers if one.wrong] == []
    found = total(answers)
    assert below_floor(found) == []
    assert found["recall"] == 1.0 and found["other"] == 1.0 and found["moving"] == 1.0


def test_costs_are_close_to_the_truth(answers: list[Answer]) -> None:
    found = scores(answers, 5.0)
    assert found["cost"] is not None and found["cost"] >= 0.5
    assert total(answers)["balance"] == 1.0


def test_the_section_has_every_table(answers: list[Answer]) -> None:
    text = section(answers, answers)
    for title in ("By effect", "By fault", "By layout", "Real processes", "What is wrong"):
        assert f"\n{title}" in text


def test_the_cases_are_as_many_as_promised() -> None:
    cases = all_cases()
    assert len(cases) >= 400 and sum(case.kind == "healthy" for case in cases) >= 80
    assert 0.3 < sum(case.held_out for case in cases) / len(cases) < 0.4
    assert not {case.name for case in cases if case.held_out} & set(SUBSET)
    assert len({case.name for case in cases}) == len(cases)
    assert {case.kind for case in cases} == {*CAUSES, *REPORTS, *MOVING, "healthy"}
    assert {case.layout for case in cases} == set(LAYOUTS)


def test_scores_of_wrong_answers() -> None:
    right = Answer(
        "a",
        "host",
        "dp4",
        (1,),
        10.0,
        1e6,
        1e7,
        named=(1,),
        severity="info",
        cause="host",
        alone_ns=1_050_000,
    )
    assert right.hit and right.cause_right and right.cost_right and not right.wrong
    wrong = Answer("b", "host", "dp4", (1,), 10.0, 1e6, 1e7, named=(2,), severity="info")
    missed = Answer("c", "host", "dp4", (1,), 10.0, 1e6, 1e7)
    named = Answer("d", "healthy", "dp4", (), 0.0, 0.0, 1e7, named=(0,), severity="info")
    assert not named.wrong and not named.accused
    alarm = Answer("e", "healthy", "dp4", (), 0.0, 0.0, 1e7, alarms=("Rank 0 …",))
    calm = Answer("f", "healthy", "pp4", (), 0.0, 0.0, 1e7, first="bubbles")
    found = total([right, wrong, missed, named, alarm, calm])
    assert (found["precision"], found["recall"]) == (1 / 3, 1 / 3)
    assert (found["false_alarms"], found["named_healthy"]) == (1 / 3, 1 / 3)
    assert set(below_floor(found)) == {"precision", "recall", "stated", *AT_MOST} <= set(FLOOR)


def test_scores_of_uneven_work() -> None:
    truth = {"t_ns": 1.2e7, "ranks_ns": 1e7, "slowdown": 1.2}
    moving = Answer(
        "a", "lengths", "dp4", (), 15.0, 2e6, 1.2e7, balance=truth, said_balance=truth, title="…",
        first="moves", alone_ns=2_100_000, said_ns=1_500_000,
    )  # fmt: skip
    assert moving.first_right and moving.cost_right and not moving.stated_right and not moving.wrong
    assert (
        moving.balance_right and not replace(moving, said_balance={**truth, "slowdown": 1.23}).balance_right
    )
    blamed = replace(moving, named=(2,), first="rank", first_ranks=(2,))
    assert blamed.accused and not blamed.first_right and not blamed.cost_right and blamed.wrong
    stages = Answer("b", "stages", "pp2dp2", (2, 3), 15.0, 2e6, 1.2e7, named=(2, 3), cause="stages")
    assert stages.hit and stages.cause_right and not stages.first_right
    assert replace(stages, first="stage", first_ranks=(2, 3)).first_right
    rank = replace(stages, named=(2,), first="rank", first_ranks=(2,))
    assert rank.accused and not rank.first_right
    found = total([moving, blamed, stages, rank])
    assert (found["precision"], found["recall"], found["first"], found["moving"]) == (1 / 3, 0.5, 0.25, 0.5)
