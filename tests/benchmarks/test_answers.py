"""All runs are opened once, the recorded ones and some simulated: their answers are those of tests/answers
(benchmarks/answers.py), findings of the recorded ones have the six properties (finding_properties.py), and those of
ordinary jobs name the rank and the reason."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from analysis.finding_properties import violations
from answers import FOLDER, RECORDED, differences, dumps
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.findings import collect
from rankscope.timeline.run import Run
from rankscope.views.help_pages import page_names
from rankscope_bench.exam.ordinary_job import FAULTS
from rankscope_bench.exam.ordinary_record import HEALTHY
from rankscope_bench.exam.ordinary_score import EXPECTED, ask
from rankscope_bench.exam.ordinary_score import Asked as OrdinaryAnswer

MOST_BYTES = 2_000_000
ORDINARY = "data-ordinary-"


class Asked(NamedTuple):
    """What all runs were asked for."""

    changed: list[str]
    violations: dict[str, list[str]]
    ordinary: dict[str, OrdinaryAnswer]
    pages: dict[str, str]
    """Of all findings, by run and title."""


@pytest.fixture(scope="module")
def asked(without_workers: None) -> Asked:
    wrong, ordinary = {}, {}
    pages: dict[str, str] = {}

    def also(name: str, run: Run) -> None:
        pages.update((f"{name}: {finding.title}", finding.page) for finding in collect(run, Scope()))
        if not name.startswith("simulated-"):  # of these test_words.py asks
            wrong[name] = violations(run)
        if name.startswith(ORDINARY):
            ordinary[name.removeprefix(ORDINARY)] = ask(run)

    return Asked([*differences(FOLDER, dumps(also=also))], wrong, ordinary, pages)


@pytest.mark.slow
def test_faults_of_ordinary_jobs_are_named(asked: Asked) -> None:
    assert asked.ordinary.keys() == {path.name for path in (RECORDED[0] / "ordinary").iterdir()}
    for name, answer in asked.ordinary.items():
        if name.startswith(HEALTHY):
            assert (answer.ranks, answer.alarms) == ((), 0), name
        else:
            assert answer.ranks == FAULTS[name].ranks, name
            assert re.search(EXPECTED[name], answer.text, re.DOTALL), answer.text


@pytest.mark.slow
def test_findings_have_the_six_properties(asked: Asked) -> None:
    assert len(asked.violations) > 40
    broken = {name: wrong for name, wrong in asked.violations.items() if wrong}
    assert not broken


@pytest.mark.slow
def test_each_finding_has_a_page(asked: Asked) -> None:
    assert len(asked.pages) > 100
    assert {title: page for title, page in asked.pages.items() if page not in page_names()} == {}
    assert len({*asked.pages.values()}) > 15


@pytest.mark.slow
def test_no_answer_has_changed(asked: Asked) -> None:
    if changed := asked.changed:
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
