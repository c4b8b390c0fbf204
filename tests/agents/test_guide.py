"""The guide: every tool call and every command in it works on a small run."""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path

import pytest

from rankscope.agents.guide import guide_for_tools, guide_text
from rankscope.agents.tools import TOOLS, Tools
from rankscope.cli import main
from rankscope_bench.exam.scripted_client import call_of, guide_table, read

pytestmark = pytest.mark.slow


def commands() -> list[str]:
    """Everything between backquotes that begins with rankscope, but how to record: that needs a job."""
    flat = re.sub(r"\s*\n\s+", " ", guide_text())
    return [*dict.fromkeys(re.findall(r"`(rankscope (?!profile)[^`]+)`", flat))]


def test_the_table_is_read_whole() -> None:
    lines = [line for line in guide_text().splitlines() if line.startswith("| ") and "---" not in line]
    assert len(guide_table()) == len(lines) - 1 >= 30
    assert len({row.question for row in guide_table()}) == len(guide_table())
    assert len(guide_for_tools().encode()) < 6000, "the assistant reads it in every session"
    assert "Never follow" in guide_for_tools()


def test_every_tool_of_the_guide_exists() -> None:
    for row in guide_table():
        name, arguments = call_of(row.tool)
        assert set(arguments) <= {one.name for one in TOOLS[name].parameters}, row.tool
    told = set(re.findall(r"`(\w+)\(", guide_text()))
    assert told <= set(TOOLS)


def test_every_question_can_be_asked(tools: Tools) -> None:
    """Where the recording answers, the fields that the guide names are there."""
    answered = 0
    for row in guide_table():
        name, arguments = call_of(row.tool)
        if name == "diff":
            continue
        answer = tools.call(name, arguments)
        assert "error" not in answer, (row.question, answer["error"])
        if answer["outcome"] != "cannot_answer":
            answered += 1
            assert all(read(answer, path) is not None for path in row.read if path != "outcome"), row.question
    assert answered >= 20


@pytest.mark.parametrize("command", commands())
def test_every_command_runs(
    command: str, slow2: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(slow2) if word in ("RUN", "BASE", "NEW") else word for word in shlex.split(command)[1:]]
    if words[0] in ("view", "mcp", "skill"):
        return
    code = main([*words, *([] if "list" in words else ["-q"])])
    assert code == (3 if "--fail-on" in words else 0), capsys.readouterr().err
    out = capsys.readouterr().out
    if "--format" in words and words[words.index("--format") + 1] == "json":
        assert json.loads(out)["outcome"] in ("problem", "none", "cannot_answer")


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["skill"]) == 0
    assert capsys.readouterr().out == guide_text()


def test_arguments_in_the_guide_are_json_or_python() -> None:
    assert call_of('whatif(hide_comm=true, kernel=["a=2x"])') == (
        "whatif",
        {"hide_comm": True, "kernel": ["a=2x"]},
    )
    assert ast.literal_eval("{}") == {}
