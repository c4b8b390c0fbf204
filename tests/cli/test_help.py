"""Help of commands, of kinds of findings and of terms."""

from __future__ import annotations

import re

import pytest

from conftest import ROOT
from rankscope.cli import COMMANDS, GROUPS, command_parser, main, top_level_help
from rankscope.cli.help import TERMS
from rankscope.views.help_pages import page_names


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def output(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


def test_commands_are_in_groups() -> None:
    lines = top_level_help().splitlines()
    assert [*GROUPS][:5] == ["look", "record", "jobs", "data", "assistants"]
    at = [lines.index(title) for title in GROUPS]
    assert at == sorted(at)
    for title, commands in GROUPS.items():
        first = lines.index(title) + 1
        assert [line.split()[0] for line in lines[first : first + len(commands)]] == [*commands]
    modules = (ROOT / "src" / "rankscope" / "cli").iterdir()
    assert {*COMMANDS} <= {path.stem for path in modules}


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("stats", 39),
        ("view", 45),
        ("diff", 45),
        ("report", 45),
        ("whatif", 45),
        ("watch", 50),
        ("export", 55),
    ],
)
def test_help_is_short_and_help_all_has_every_option(
    name: str, most: int, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = []
    for word in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as ended:
            main([name, word])
        assert ended.value.code == 0
        texts.append(capsys.readouterr().out)
    short, full = texts
    assert len(short.splitlines()) <= most < len(full.splitlines())
    parser, module = command_parser(name)
    dests = {action.dest for action in parser._actions}
    assert {*module.MAIN_OPTIONS.split()} <= dests  # type: ignore[attr-defined]
    shown = [action for action in parser._actions if action.help != "==SUPPRESS=="]
    assert all(option in full for action in shown for option in action.option_strings)
    assert "--help-all" in short and short.splitlines()[0] == full.splitlines()[0]


def test_without_a_name_everything_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "help")
    words = " ".join(text.split())
    assert text.startswith(top_level_help()) and max(map(len, text.splitlines())) <= 80
    assert ", ".join(page_names()) in words and ", ".join(TERMS) in words


@pytest.mark.parametrize("term", TERMS)
def test_a_term_is_explained_in_short_sentences(term: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "help", *term.lower().split())
    assert " ".join(text.split()).startswith(TERMS[term])
    assert all(len(sentence.split()) <= 20 for sentence in re.split(r"(?<=[.:;]) ", TERMS[term]))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_in_short_sentences(name: str) -> None:
    parser, _ = command_parser(name)
    own = parser.subcommands if name != "bench" else ()  # most of these are of rankscope-bench
    for each in (parser, *own):
        texts = [each.description or "", *(action.help or "" for action in each._actions)]
        for sentence in (part for text in texts for part in re.split(r"[.:;](?:\s|$)|\(|\n\n", text)):
            assert len(sentence.split()) <= 20, sentence


def test_every_kind_of_finding_has_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    for name in page_names():
        assert output(capsys, "help", name).strip()


def test_what_has_no_help_is_said_with_what_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    for word, meant in (("data-loadin", "data-loading"), ("stat", "stats"), ("mffu", "MFU")):
        assert main(["help", word]) == 2
        error = capsys.readouterr().err
        assert f"there is no help on '{word}'" in error and f"Did you mean {meant}?" in error


def test_a_word_that_is_neither_a_command_nor_a_run(
    capsys: pytest.CaptureFixture[str], tmp_path: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs-a").mkdir()  # type: ignore[operator]
    monkeypatch.chdir(str(tmp_path))
    for word, meant in (("stat", "stats"), ("run-a", "runs-a")):
        assert main([word]) == 2
        assert f"Did you mean {meant}?" in capsys.readouterr().err
