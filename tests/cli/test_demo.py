"""rankscope demo: the recorded runs of the package, in the browser and in the terminal."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from conftest import DEMO
from rankscope.cli import demo, main

pytestmark = pytest.mark.slow


def test_in_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["demo", "--no-view"]) == 0
    captured = capsys.readouterr()
    assert "\nRank 2 costs" in captured.out and "3.8x faster" in captured.out and captured.err == ""
    assert captured.out.startswith(demo._ABOUT) and captured.out.endswith(f"{demo._OWN_JOB}\n")
    commands = re.findall(r"\$ (rankscope .+)", captured.out.replace(" \\\n", ""))
    assert len(commands) == 2
    for command in commands:  # as they are printed
        assert main(shlex.split(command)[1:]) == 0
        assert capsys.readouterr().out in captured.out


def test_what_is_there_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = demo._copied_runs()
    (manifest := folder / "run" / "rankscope.json").write_text("{}")
    (folder / "fixed" / "rankscope.json").unlink()
    assert demo._copied_runs() == folder and manifest.read_text() == "{}"
    copied = {path.relative_to(folder) for path in folder.rglob("*.*")}
    recorded = {path.relative_to(DEMO) for path in DEMO.rglob("*.*") if ".rankscope" not in path.parts}
    assert copied == recorded and len(recorded) == 18
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    elsewhere = demo._copied_runs()
    assert (elsewhere / "run" / "rankscope.json").is_file() and elsewhere != folder


def test_in_the_browser(tmp_path: Path) -> None:
    """The address is printed first, and answers; Ctrl-C ends it."""
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "rankscope", "demo", "--no-open"]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as viewer:
        assert viewer.stdout and viewer.stderr
        url = viewer.stdout.readline().strip()
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert answer.status == 200
        viewer.send_signal(signal.SIGINT)
        said = viewer.stderr.read()
        assert viewer.wait(60) == 0
    assert f"rankscope stats {tmp_path}/" in said and "Traceback" not in said
    assert max(len(line) for line in demo._IN_BROWSER.splitlines()) <= 80
