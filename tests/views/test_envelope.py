"""The object that programs get: outcome, evidence, definition, next commands, links."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import DATA, ROOT
from rankscope.analysis import REPORTS
from rankscope.analysis.core.result import Column, Fact, Finding, Result, argv, left_out_note
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.evidence import evidence_id, looked_up, parse_evidence
from rankscope.cli import main
from rankscope.errors import UsageError
from rankscope.store.ingest import Options
from rankscope.text.run_words import RunWords
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope.views.envelope import Question, definition_page, envelope, outcome

HERE = Question({"RUN": RunWords(("runs/a",), ("--steps", "3:5"))})


def result(*findings: Finding, rows: int = 1, **more: object) -> Result:
    table = [{"rank": rank} for rank in range(rows)]
    return Result("stragglers", "Stragglers", "whole file", (Column("rank"),), table, findings, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def slow2(tmp_path_factory: pytest.TempPathFactory) -> Run:
    store = tmp_path_factory.mktemp("store") / "store"
    return Run(ingest([DATA / "seqpar-gloo4-slow2"], Options(jobs=1, output=store)))


def test_outcomes() -> None:
    late = Finding("warning", "Rank 2 is late")
    assert outcome(result(Finding("info", "a"), late)) == ("problem", "Rank 2 is late")
    assert outcome(result(Finding("info", "a"))) == ("none", "")
    assert outcome(result()) == ("none", "")
    empty = result(rows=0, notes=(left_out_note("3 events"), "only one rank was recorded"))
    assert outcome(empty) == ("cannot_answer", "only one rank was recorded")
    assert outcome(result(rows=0)) == ("cannot_answer", "nothing was recorded that it could be computed from")
    assert outcome(result(rows=0, unknown="")) == ("none", "")
    assert outcome(result(unknown="no file for rank 3")) == ("cannot_answer", "no file for rank 3")


def test_commands_have_the_path_and_the_window() -> None:
    command = argv("rankscope stats RUN -r kernels --ranks 2")
    finding = Finding("info", "a", ranks=(2,), span=(10, 20), advice="List its kernels.", command=command)
    answer = envelope(result(finding), HERE)
    assert answer["next"] == [
        "rankscope stats runs/a --steps 3:5 -r kernels --ranks 2",
        "rankscope stats runs/a --steps 3:5 -r stragglers",
    ]
    (found,) = answer["findings"]
    assert found["link"] == "#v=1&t=10-20&open=2"
    assert shlex.split(found["view"]) == ["rankscope", "view", "runs/a", "--at", found["link"]]
    assert (
        found["hint"] == f"List its kernels: {answer['next'][0]}" and found["advice"] == "List its kernels."
    )
    assert "RUN" not in json.dumps(answer)


def test_rows_that_are_left_out_are_said() -> None:
    assert envelope(result(rows=5), HERE)["truncated"] is False
    answer = envelope(result(rows=5).head(2), HERE)
    assert answer["truncated"] is True and len(answer["rows"]) == 2
    assert answer["next"] == ["rankscope stats runs/a --steps 3:5 -r stragglers --top all --format json"]


@pytest.mark.slow
def test_every_fact_of_a_run_can_be_looked_up(slow2: Run) -> None:
    facts = [fact for one in REPORTS["findings"].analyse(slow2, Scope(), None).findings for fact in one.facts]
    ids = {evidence_id(fact): fact for fact in facts if fact.report in REPORTS}
    assert any(":" in text for text in ids)
    for text, fact in ids.items():
        evidence = parse_evidence(text)
        assert str(evidence) == text
        rows = looked_up(evidence, REPORTS[evidence.report], slow2, Scope()).rows
        assert rows and all(row[key] == value for row in rows for key, value in fact.row.items())


@pytest.mark.parametrize("text", ["", "no such thing", "kernels:name:xyz", "kernels:name:00000000\n"])
def test_ids_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not an evidence id"):
        parse_evidence(text)


def test_an_id_of_another_run_is_not_found(slow2: Run) -> None:
    text = evidence_id(Fact("total_ns", 1, row={"name": "not there"}, report="kernels"))
    with pytest.raises(UsageError, match="is not in this run"):
        looked_up(parse_evidence(text), REPORTS["kernels"], slow2, Scope())


def test_every_definition_is_a_page() -> None:
    for name in (*REPORTS, "diff", "whatif", "query", "doctor", "blame", "collective"):
        assert (ROOT / definition_page(name)).is_file(), name


@pytest.mark.slow
def test_the_command_line_looks_up_evidence_and_gates_on_what_it_cannot_answer(
    dataset: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = [str(dataset("seqpar-nccl1-bf16")), "--cache", str(tmp_path), "-q"]
    assert main(["stats", *run, "-r", "kernels", "--format", "json", "--fail-on", "critical"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["outcome"] == "none"
    text = evidence_id(Fact("total_ns", 1, row={"name": answer["rows"][0]["name"]}, report="kernels"))
    assert main(["stats", *run, "-r", text, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == answer["rows"][:1]
    assert main(["stats", *run, "-r", "stragglers", "--fail-on", "critical"]) == 3
    assert "cannot answer stragglers: only one rank" in capsys.readouterr().err
    assert main(["stats", *run, "--fail-on", "critical"]) == 0, "the summary is answered"
