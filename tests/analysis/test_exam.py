"""A fixed part of the exam (docs/exam.md): every fault once, and healthy jobs; the floors are those of `make exam`."""

from __future__ import annotations

import pytest

from exam import answer
from exam_cases import CAUSES, LAYOUTS, REPORTS, all_cases
from exam_report import page
from exam_score import FLOOR, Answer, below_floor, scores, total

pytestmark = pytest.mark.slow

SUBSET = (
    "compute-7%-dp4-1",
    "host-30%-dp4-0",
    "checkpoint-5%-dp2tp2-1",
    "dataloader-10%-dp4-1",
    "link-15%-dp2tp2-0",
    "moving-20%-dp4-0",
    "overlap-dp4-0",
    "leak-dp4-0",
    "hang-dp2tp2-0",
    "healthy-dp4-0",
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


def test_the_page_has_every_table(answers: list[Answer]) -> None:
    text = page(answers, answers)
    for title in ("By effect", "By fault", "By layout", "Real processes", "What is wrong"):
        assert f"## {title}" in text


def test_the_cases_are_as_many_as_promised() -> None:
    cases = all_cases()
    assert len(cases) >= 240 and sum(case.kind == "healthy" for case in cases) >= 60
    assert len({case.name for case in cases}) == len(cases)
    assert {case.kind for case in cases} == {*CAUSES, *REPORTS, "moving", "healthy"}
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
    alarm = Answer("e", "healthy", "dp4", (), 0.0, 0.0, 1e7, alarms=("Rank 0 …",))
    found = total([right, wrong, missed, named, alarm])
    assert (found["precision"], found["recall"], found["false_alarms"]) == (1 / 3, 1 / 3, 0.5)
    assert set(below_floor(found)) == {"precision", "recall", "false_alarms"} <= set(FLOOR)
