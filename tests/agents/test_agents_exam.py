"""A part of the exam for assistants (docs/accuracy.md): real runs, and one of each kind of planted fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.agents.small_answers import MOST_BYTES
from rankscope.agents.tools import Tools
from rankscope_bench.exam.agents import PLANTED, case_named, examine, questions, summary_of

pytestmark = pytest.mark.slow

SUBSET = (
    *("compute-10%-dp4-0", "dataloader-10%-dp4-1", "hang-dp2tp2-0", "healthy-dp4-0"),
    *("leak-dp4-0", "moving-20%-dp4-0"),
)


def test_a_part_of_the_exam_is_passed(tmp_path: Path) -> None:
    tools = Tools([], tmp_path / "stores", lambda text: None)
    asked = questions(tmp_path, lambda name: "ddp" not in name and "gpt" not in name, SUBSET)
    marked = examine(asked, tools)
    tools.close()
    assert [(one.question, one.reply) for one in marked if not one.right] == []
    assert len(marked) >= 35 and max(one.reply.size for one in marked) <= MOST_BYTES
    assert {one.reply.outcome for one in marked} == {"problem", "none", "cannot_answer"}
    assert "100.0 %" in summary_of(marked)


def test_every_planted_name_is_a_case() -> None:
    assert len({case_named(name).name for name in PLANTED}) == len(PLANTED) >= 18
