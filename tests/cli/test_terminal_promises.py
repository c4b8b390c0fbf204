"""What the terminal promises: commands that can be pasted, names that were probably meant, help within 80 columns."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import DATA, slice_event, write_kineto
from rankscope.analysis import REPORTS
from rankscope.analysis.core.result import Finding
from rankscope.analysis.questions import QUESTIONS, TOPICS
from rankscope.cli import COMMANDS, command_parser, help_texts, main, top_level_help
from rankscope.cli.help_text import fitted
from rankscope.text.spelling import RENAMED_REPORTS
from rankscope.views.findings import advice_lines, command_lines
from rankscope.views.help_pages import page_names
from rankscope_bench.commands.synthetic import Progress


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("promises") / "slow 2"
    shutil.copytree(DATA / "seqpar-gloo4-slow2", folder)
    assert main(["ingest", "-q", str(folder)]) == 0
    return folder


def output(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    assert main([str(arg) for arg in argv]) == 0
    return capsys.readouterr().out


def pasted(text: str) -> list[list[str]]:
    """The commands of a text, as a shell reads them."""
    joined = re.sub(r" \\\n *", " ", text)
    return [
        shlex.split(command) for command in re.findall(r"rankscope .+?(?=   |\)|$)", joined, re.MULTILINE)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("report", [(), ("-r", "findings"), ("-r", "critical,overlap")])
def test_commands_have_the_path_of_the_run(
    report: Sequence[str],
    run_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = output(capsys, "stats", run_folder, *report)
    pages = [command[2] for command in pasted(text) if command[1] == "help"]
    commands = [command for command in pasted(text) if command[1] != "help"]
    assert {*pages} <= {*page_names()}
    assert bool(commands) == (not report)  # the tables of this run need none
    assert all(command[2] == str(run_folder) for command in commands)
    assert "RUN" not in text
    for command in commands:
        assert command[1] in COMMANDS


@pytest.mark.slow
def test_the_window_is_repeated_in_commands(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(
        output(capsys, "stats", run_folder, "-r", "findings", "--steps", "3:5", "--format", "json")
    )
    commands = found["findings"][0]["commands"]
    assert f"rankscope stats '{run_folder}' --steps 3:5 -r faults" in commands
    assert not any("RUN" in text for text in (*commands, *(row["hint"] for row in found["rows"])))


@pytest.mark.slow
def test_the_findings_of_stats_and_findings_have_one_order(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = json.loads(output(capsys, "stats", run_folder, "-r", "findings", "--format", "json"))["rows"]
    summary = json.loads(output(capsys, "stats", run_folder, "-r", "summary", "--format", "json"))["findings"]
    assert [row["title"] for row in listed] == [finding["title"] for finding in summary]
    assert [row["cost_ns"] for row in listed] == [finding["cost_ns"] for finding in summary]
    screen = output(capsys, "stats", run_folder)
    assert (
        screen.index("Rank 2 costs")
        < screen.index("Limits, at most per step")
        < screen.index("communication\n")
    )


def test_a_command_is_broken_where_a_shell_continues_it() -> None:
    command = shlex.split("rankscope stats /a/long/path/to/some/run -r kernels --by rank --ranks 2")
    lines = command_lines(command, "    ", 50)
    assert len(lines) == 2 and lines[0].endswith(" \\") and all(len(line) <= 50 for line in lines)
    assert shlex.split(" ".join(line.rstrip("\\") for line in lines)) == command
    assert command_lines(command, "    ", 80) == [f"    {shlex.join(command)}"]
    finding = Finding("info", "", advice="List its ops.", command=("rankscope", "stats", "a b/c d"))
    assert advice_lines("→ ", finding, 80) == ["→ List its ops: rankscope stats 'a b/c d'"]
    assert advice_lines("→ ", finding, 30) == ["→ List its ops:", "  rankscope stats 'a b/c d'"]
    assert advice_lines("→ ", replace(finding, command=()), 30) == ["→ List its ops."]


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        (["stat", "RUN"], "stats"),
        (["stats", "RUN", "-r", "straglers"], "stragglers"),
        (["stats", "RUN", "--rank", "3"], "--ranks"),
        (["stats", "RUN", "--format", "cvs"], "csv"),
        (["stats", "RUN", "--report-format", "csv"], "--report or --format"),
        (["stats", "RUN", "-r", "ops", "--by", "rnak"], "rank"),
        (["stats", "NEAR"], "slow 2"),
        (["report", "NEAR"], "slow 2"),
        (["chart", "RUN", "-r", "heatmpa"], "heatmap"),
        (["diff", "RUN", "RUN", "-r", "kernel"], "kernels"),
        (["bench", "synthetic", "--rank", "2"], "--ranks"),
        (["profile", "--step", "2:4", "true"], "--steps"),
    ],
)
def test_did_you_mean(
    argv: list[str], meant: str, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = {"RUN": str(run_folder), "NEAR": str(run_folder.with_name("slow2"))}
    code = main([paths.get(word, word) for word in argv])
    error = capsys.readouterr().err
    assert code == (1 if "NEAR" in argv else 2) and f"Did you mean {meant}?" in error
    assert 2 <= len(error.splitlines()) <= 4


def test_nothing_is_suggested_for_what_is_like_nothing(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stats", str(run_folder), "-r", "xyzzy"]) == 2
    assert main(["profile", "--zebra", "csv", "true"]) == 2
    assert "Did you mean" not in capsys.readouterr().err


def test_reports_are_listed_by_topic(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(capsys, "stats", run_folder, "-r", "list").splitlines()
    assert [line for line in lines if line in TOPICS] == list(TOPICS)
    named = [line.split()[0] for line in lines if line.startswith("  ")]
    assert sorted(named) == sorted(REPORTS), "each report has one line"
    assert max(map(len, lines)) <= 80
    assert "--by shape: ops, roofline" in lines
    peers = output(capsys, "stats", run_folder, "-r", "list", "--compat", "hta").splitlines()
    assert peers[0] == "Reports" and max(map(len, peers)) <= 100


def test_every_table_belongs_to_a_report_and_has_a_function() -> None:
    assert len([name for name in QUESTIONS if "." not in name]) == 24
    assert {name.partition(".")[0] for name in QUESTIONS} <= QUESTIONS.keys()
    assert set(RENAMED_REPORTS.values()) < {name for name in QUESTIONS if "." in name}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_80_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for title, text in help_texts(name):
        wide = [line for line in text.splitlines() if len(line) > 80]
        assert not wide, title
    assert max(map(len, top_level_help().splitlines())) <= 80


def test_examples_that_are_too_long_go_on_in_the_next_line() -> None:
    text = "examples:\n  rankscope stats RUN --option value      what it does, in some words\n  rankscope x"
    assert fitted(text, 40).splitlines() == [
        "examples:",
        "  rankscope stats RUN --option value",
        "      what it does, in some words",
        "  rankscope x",
    ]
    assert fitted("  rankscope stats a b c d e f g", 24).splitlines() == [
        "  rankscope stats a b \\",
        "      c d e f g",
    ]
    assert fitted("Prose that is\nbroken somewhere.", 40).strip() == "Prose that is broken somewhere."


def test_the_help_of_profile_is_short(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for words in (["--help"], ["--help-all"]):
        with pytest.raises(SystemExit) as ended:
            main(["profile", *words])
        assert ended.value.code == 0
    parser, _ = command_parser("profile")
    short, whole = parser.format_help(), parser.format_full_help()
    assert capsys.readouterr().out == short + whole
    assert len(short.splitlines()) <= 60 < 100 < len(whole.splitlines())
    assert "--help-all" in short and "--skip-first" not in short and "--skip-first" in whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (["view", "/nope"], 1, "there is no /nope"),
        (["view", "RUN", "/nope/deep"], 1, "there is no /nope/deep"),
        (["view", "RUN", "--port", "99999"], 2, "--port 99999 is not a port"),
        (["view", "RUN", "--port", "-1"], 2, "--port"),
        (["view", "RUN", "--port", "http"], 2, "--port http is not a port"),
        (["view", "RUN", "--host", "no.such.host.invalid"], 1, "cannot listen on no.such.host.invalid"),
        (["report", "/nope"], 1, "there is no /nope"),
        (["doctor", "/nope"], 1, "there is no /nope"),
        (["diff", "RUN", "/nope"], 1, "there is no /nope"),
        (["report", "RUN", "-o", "/proc/nope/r.html"], 2, "there is no folder /proc/nope"),
    ],
)
def test_what_cannot_be_opened_is_said_in_three_parts(
    words: list[str], code: int, what: str, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run_folder) if word == "RUN" else word for word in words]) == code
    captured = capsys.readouterr()
    assert captured.err.startswith(f"rankscope: {what}") or what in captured.err.splitlines()[0]
    assert len(captured.err.splitlines()) >= 2 and captured.out == ""


@pytest.mark.slow
def test_missing_and_mixed_ranks_are_in_the_first_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (0, 2):
        info = {"backend": "gloo", "rank": rank, "world_size": 4}
        write_kineto(tmp_path / "run" / f"rank-{rank}.json", [slice_event("op", 0, 5)], distributedInfo=info)
    assert (
        output(capsys, "stats", "-q", tmp_path / "run").splitlines()[0].startswith("In doubt: 2 of 4 ranks")
    )


def test_an_error_names_the_run_in_its_command(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", str(run_folder), "--kernel", "nosuchkernel=2x"]) == 2
    assert f"rankscope stats '{run_folder}' -r kernels" in capsys.readouterr().err


def test_view_of_a_folder_without_traces_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(tmp_path), "--no-open"]) == 1
    assert "no trace in" in capsys.readouterr().err
    assert main(["view", str(tmp_path / "nowhere"), "--no-open"]) == 1
    assert "there is no" in capsys.readouterr().err


@pytest.mark.parametrize("is_terminal", [False, True])
def test_progress_redraws_its_line_only_on_a_terminal(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = iter(range(0, 1000, 5))
    monkeypatch.setattr("rankscope_bench.commands.synthetic.time.monotonic", lambda: next(now))
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    progress = Progress()
    for _ in range(9):
        progress.add(10**6)
    progress.close()
    text = capsys.readouterr().err
    assert ("\r" in text) == is_terminal
    # Without a terminal a line every ten seconds.
    assert len(text.splitlines()) == (10 if is_terminal else 5) and "9.00 MB written" in text
