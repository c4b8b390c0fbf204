"""Options from pyproject.toml and ~/.config/rankscope.toml."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT
from rankscope.cli import COMMANDS, command_parser, main
from rankscope.cli.settings import _KEYS, fill, read_settings

Words = list[str]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder below one with pyproject.toml is the working directory."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config").mkdir()
    (inside := tmp_path / "project" / "inside").mkdir(parents=True)
    monkeypatch.chdir(inside)
    return inside.parent


def parsed(name: str, *words: str) -> argparse.Namespace:
    parser, _ = command_parser(name)
    settings = read_settings(parser, name, COMMANDS)
    args = parser.parse_args(words)
    fill(args, parser, settings)
    return args


def test_the_command_line_is_before_the_project_and_the_user(project: Path, tmp_path: Path) -> None:
    (tmp_path / "config" / "rankscope.toml").write_text(
        '[stats]\nformat = "csv"\ntop = 5\nreport = ["steps", "ops"]\n'
    )
    assert (parsed("stats").format, parsed("stats").top, parsed("stats").report) == ("csv", "5", "steps,ops")
    (project / "pyproject.toml").write_text(
        '[project]\nname = "x"\n[tool.rankscope.stats]\nformat = "json"\n'
    )
    assert (parsed("stats").format, parsed("stats").top) == ("json", "5")
    assert parsed("stats", "--format", "table").format == "table"
    assert parsed("view").port == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), (3, 5, None, None)),
        (("--wait", "2"), (3, 2, None, None)),
        (("--steps", "20:24"), (None, None, "20:24", None)),
        (("--on-signal", "USR2"), (None, None, None, "USR2")),
    ],
)
def test_a_schedule_in_the_command_is_in_place_of_another(
    project: Path, words: Words, expected: tuple[object, ...]
) -> None:
    (project / "pyproject.toml").write_text(
        "[tool.rankscope.profile]\nactive = 3\nwait = 5\nwith-stack = true\nranks = [0, 4]\n"
    )
    args = parsed("profile", *words, "true")
    assert (args.active, args.wait, args.steps, args.on_signal) == expected
    assert args.with_stack is True and args.ranks == "0,4" and args.profile_memory is False


def test_help_shows_values_and_where_they_come_from(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    (project / "pyproject.toml").write_text('[tool.rankscope.stats]\njobs = 3\nformat = "csv"\n')
    with pytest.raises(SystemExit):
        main(["stats", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "(default: csv, from ../pyproject.toml, line 3)" in text and "default: table" not in text
    assert "--jobs N files read at a time (default: 3, from ../pyproject.toml, line 2)" in text


WRONG = {
    "[tool.rankscope.stats]\nformt = 1": (
        "line 2: rankscope stats has no setting formt",
        "Did you mean format?",
    ),
    "[tool.rankscope.stats]\n\nnsys = './x'": (
        "line 3: rankscope stats has no setting nsys",
        "Correct the file",
    ),
    "[tool.rankscope.stats]\nformat = 'cvs'": ("line 2: format = cvs", "Invalid choice"),
    "[tool.rankscope.stats]\njobs = 0": ("line 2: jobs = 0", "not a positive number"),
    "[tool.rankscope.stats]\nverbose = 'yes'": ("line 2: verbose = yes", "true or false"),
    "[tool.rankscope.stat]\nformat = 'csv'": (
        "line 1: stat is not a rankscope command",
        "Did you mean stats?",
    ),
    "[tool.rankscope]\nformat = 'csv'": (
        "line 2: format is not a rankscope command",
        "[tool.rankscope.stats]",
    ),
    "[tool.rankscope.stats]\nformat = \ntop = 1": ("cannot be read", "line 2"),
    "[tool.rankscope.stats]\nranks = '1-'": ("does not name ranks", "ranks = 1- (../pyproject.toml, line 2)"),
}


@pytest.mark.parametrize("content", WRONG)
def test_what_is_wrong_is_said_with_its_place(
    content: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "pyproject.toml").write_text(content)
    assert main(["stats", "nowhere"]) == 2
    error = capsys.readouterr().err
    assert 3 <= len(error.splitlines()) <= 4
    for part in WRONG[content]:
        assert part in error


@pytest.mark.parametrize(
    "content",
    [
        "[tool.rankscope.profile]\nrank = 3",
        "[tool.rankscope.profile]\nactive = ",
        "[tool.rankscope.profile]\nranks = '3-'\nwith-stack = false",
        "[tool.rankscope.profile]\nactive = 'many'",
    ],
)
def test_a_file_that_is_wrong_stops_no_job(content: str, project: Path) -> None:
    (project / "pyproject.toml").write_text(content)
    command = [sys.executable, "-m", "rankscope", "profile", "--dry-run", "--with-stack", "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert '"with_stack":true' in done.stdout and '"ranks":"auto"' in done.stdout
    assert done.stderr.count("The job runs without these settings.") == 1 and "pyproject.toml" in done.stderr
    behind = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**_environment(), "RANK": "1"}
    )
    assert behind.stderr == "", "one rank says it"


def test_the_command_inside_a_launcher_has_the_settings_of_that_in_front(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "pyproject.toml").write_text("[tool.rankscope.profile]\nwith-flops = true\nstats = true\n")
    (launcher := project / "mpiexec").write_text("#!/bin/sh\n")
    launcher.chmod(0o755)
    assert main(["profile", "--dry-run", str(launcher), "-n", "2", sys.executable, "train.py"]) == 0
    inserted = capsys.readouterr().out
    assert "--with-flops" in inserted and "--inner --" in inserted and "--stats" not in inserted
    assert main(["profile", "--dry-run", "--inner", "--", "true"]) == 0
    assert '"with_flops":false' in capsys.readouterr().out


def _environment() -> dict[str, str]:
    return {**os.environ, "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def test_every_key_is_an_option_and_none_of_them_starts_a_program() -> None:
    options = {
        name: action
        for command in COMMANDS
        for name, action in command_parser(command)[0]._option_string_actions.items()
    }
    for key in _KEYS.split():
        assert f"--{key}" in options
    for name in (
        "nsys",
        "ncu",
        "ssh",
        "remote-rankscope",
        "on-alarm",
        "watcher",
        "tool-arg",
        "trace-processor",
        "host",
        "force",
    ):
        assert f"--{name}" in options and name not in _KEYS.split()


def test_the_page_about_settings_shows_some_that_work(project: Path) -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    (project / "pyproject.toml").write_text(page.partition("```toml\n")[2].partition("```")[0])
    assert parsed("profile", "true").output == "runs/%q{SLURM_JOB_ID}"
    assert parsed("stats").peak == "bf16=989TF"


def test_without_a_file_nothing_is_imported(project: Path) -> None:
    program = (
        "import sys; from rankscope.cli import main; main(['profile', '-n', 'true']); "
        "print({'tomllib', 'tomli', 'pathlib', 'difflib'} & sys.modules.keys())"
    )
    (project / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "tomllib" not in done.stdout.splitlines()[-1] and "tomli" not in done.stdout.splitlines()[-1]
