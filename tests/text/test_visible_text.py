"""Untrusted text on a terminal: shown, never obeyed. The commands run on a real pseudo-terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT, kernel_event, slice_event, write_kineto
from rankscope.cli import main
from rankscope.errors import ReadError
from rankscope.text.run_words import shell_word
from rankscope.text.visible_text import visible, visible_or_colour

EVIL = "a\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202eb\r"
_OURS = re.compile(rb"\x1b\[(?:0|1|2|32|33|36|1;31)m|\r\x1b\[K")
"""Colours, and the line of progress."""


def test_control_characters_become_escapes() -> None:
    assert visible("plain \t text\n") == "plain \t text\n"
    assert visible(EVIL) == r"a\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202eb\r"
    assert visible_or_colour(f"\x1b[1m{EVIL}\x1b[0m") == f"\x1b[1m{visible(EVIL)}\x1b[0m"
    assert visible("\udcff") == r"\udcff"  # a byte of a file name that is not UTF-8; it could not be printed


def test_the_first_line_of_an_error_is_one_line() -> None:
    assert str(ReadError("no file a\nrankscope: all is well", hint="b\n  c")) == (
        "no file a\\nrankscope: all is well\n  b\n  c"
    )


def _on_a_terminal(*words: str) -> bytes:
    """What a command prints on a terminal, stdout and stderr together."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm", "COLUMNS": "200"}
    process = subprocess.Popen(
        [sys.executable, "-m", "rankscope", *words], stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    printed = b""
    try:
        while piece := os.read(ours, 65536):
            printed += piece
    except OSError:  # the end of a pseudo-terminal
        pass
    finally:
        os.close(ours)
        process.wait()
    return printed


@pytest.mark.slow
def test_no_command_lets_a_trace_control_the_terminal(tmp_path: Path) -> None:
    folder = tmp_path / f"run{EVIL}"
    folder.mkdir()
    events = [slice_event(EVIL, 10, 5), kernel_event(EVIL, 12, 5), slice_event("ProfilerStep#1", 0, 50)]
    trace = write_kineto(
        folder / f"rank-0{EVIL}.json", events, deviceProperties=[{"id": 0, "name": f"GPU{EVIL}"}]
    )
    (folder / f"rank-1{EVIL}.json").write_text("{ not json")
    for words in (
        ["stats", str(folder)],
        ["query", str(folder), "SELECT name, file FROM slices JOIN segments USING (rank)"],
        ["stats", str(trace)],
        ["doctor", str(trace)],
        ["stats", str(tmp_path / f"none{EVIL}")],
        [f"command{EVIL}"],
    ):
        printed = _OURS.sub(b"", _on_a_terminal(*words))
        assert printed, words
        control = re.findall(rb"[^\n\r\t\x20-\x7e\x80-\xff]|\xc2[\x80-\x9f]|\xe2\x80\xae|\r(?!\n)", printed)
        assert control == [], (words, printed)


@pytest.mark.slow
def test_names_behind_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not obeyed by the terminal that a pipe ends in; and a pasted command names the folder, whatever its name."""
    folder = tmp_path / f"a b;id {EVIL}"
    folder.mkdir()
    write_kineto(folder / f"rank-0{EVIL}.json", [slice_event("＝1+1", 10, 5)])
    for words in (
        ["ingest", str(folder)],
        ["stats", str(folder)],
        ["report", str(folder), "-o", str(tmp_path / f"x{EVIL}.html")],
        ["export", str(folder), "-t", "csv", "-o", str(tmp_path / f"y{EVIL}")],
        ["export", str(folder), "-t", "chrome", "-o", str(tmp_path / f"z{EVIL}.json")],
    ):
        assert main(words) == 0
        printed = capsys.readouterr()
        assert visible(printed.out + printed.err) == printed.out + printed.err
        text = printed.out.replace(" \\\n", " ")
        commands = re.findall(r"^(?:Next:)? *(rankscope stats .*)", text, re.MULTILINE)
        assert commands or words[0] in ("report", "export"), printed.out
        for command in commands:
            script = f'rankscope() {{ printf %s "$2"; }}; {command}'
            done = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
            assert done.stdout == os.fsencode(folder), command
    assert ",'＝1+1," in (tmp_path / f"y{EVIL}" / "slices.csv").read_text()


@pytest.mark.slow
def test_secrets_of_an_old_manifest_are_not_in_the_report(tmp_path: Path) -> None:
    """Written by a version that did not redact them."""
    write_kineto(tmp_path / "rank-0.json", [slice_event("a", 0, 5)])
    command = ["train.py", "--api-key", "SECRET1", "--url=https://u:SECRET2@host/", "--lr", "1"]
    (tmp_path / "rankscope.json").write_text(json.dumps({"command": command}))
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "report.html"), "-q"]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "train.py" in page and "SECRET" not in page


@pytest.mark.slow
def test_files_that_were_asked_for_have_the_usual_mode(tmp_path: Path) -> None:
    """Unlike those of a run's store. And tables as CSV hold no formulas."""
    write_kineto(tmp_path / "rank-0.json", [slice_event("=cmd()", 0, 5)])
    target = tmp_path / "out" / "x.json"
    before = os.umask(0o022)
    try:
        assert main(["export", str(tmp_path), "-t", "chrome", "-o", str(target), "-q"]) == 0
        assert main(["export", str(tmp_path), "-t", "csv", "-o", str(target.parent), "-q", "-f"]) == 0
    finally:
        os.umask(before)
    assert ",'=cmd()," in (target.parent / "slices.csv").read_text()
    assert target.stat().st_mode & 0o777 == 0o644


def test_a_path_is_a_word_of_a_shell_whatever_is_in_it() -> None:
    for path in ("runs/a", "with space", "it's", EVIL, f"it's {EVIL} \\x41"):
        word = shell_word(path)
        assert visible(word) == word
        done = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True)
        assert done.stdout == os.fsencode(path)
