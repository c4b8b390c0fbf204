"""The answers about the recorded runs and some simulated ones are those of tests/answers (benchmarks/answers.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from answers import FOLDER, differences, dumps

MOST_BYTES = 2_000_000


@pytest.mark.slow
@pytest.mark.usefixtures("without_workers")
def test_no_answer_has_changed() -> None:
    changed = [*differences(FOLDER, dumps())]
    if changed:
        advice = "Where that is intended: `make answers`, and commit tests/answers with the change."
        pytest.fail("\n".join(("Answers have changed.", *changed, advice)), pytrace=False)


def test_the_answers_are_small() -> None:
    assert 0 < sum(path.stat().st_size for path in FOLDER.iterdir()) < MOST_BYTES


def test_a_change_is_told_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "run.txt").write_text("A step takes 5 ms\n1. warning, 300 ns\n   Rank 2 is late\n")
    (tmp_path / "old.txt").write_text("A step takes 5 ms\n")
    text = "A step takes 5 ms\n1. warning, 400 ns\n   Rank 2 is late\n"
    assert [*differences(tmp_path, iter([("run", text), ("new", "one line\n")]))] == [
        "--- run, before",
        "+++ run, now",
        "@@ -1,3 +1,3 @@",
        " A step takes 5 ms",
        "-1. warning, 300 ns",
        "+1. warning, 400 ns",
        "    Rank 2 is late",
        "--- new, before",
        "+++ new, now",
        "@@ -0,0 +1 @@",
        "+one line",
        "old: not asked any more",
    ]
