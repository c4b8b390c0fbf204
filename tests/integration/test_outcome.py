"""The job's outcome is sacred: exit status, stdout, stderr but for our lines, and files are those of the job alone.

`make faults` repeats such trials at random moments, hundreds of times (tests/faults/capture_trials.py).
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import time
from pathlib import Path

import pytest

from faults.capture_trials import JOB, Signal, Trial, tried
from integration.jobs import (
    PROFILE,
    PYTHON,
    WITH_STANDIN,
    environment,
    needs_torch,
    our_lines,
    run,
    wait_until_in_front,
)

pytestmark = pytest.mark.slow


@needs_torch
@pytest.mark.thorough
def test_odd_scripts_end_as_they_do_alone() -> None:
    """One job after the other's oddity, in the window and after it; then it dies without Python's exit."""
    odd = "fork,wait,sigchld,environment,loader,closerange"
    assert tried(Trial("", ("--torch", "--odd", odd, "--end", "_exit:9"))).difference == ""


@pytest.mark.thorough
def test_a_run_folder_that_vanishes_is_one_line_and_not_the_jobs_failure(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    words = [PYTHON, JOB, "--standin", "--folder", str(folder), "--odd", "vanish", "--end", "7"]
    done = run([*PROFILE, "--steps", "2:4", "-o", str(folder), *words], tmp_path, check=False)
    assert done.returncode == 7
    assert "Traceback" not in done.stderr
    assert [line.partition(str(tmp_path))[0] for line in our_lines(done.stderr)] == [
        "rankscope: rank 0: the trace of steps 2-4 is lost: cannot write ",
        "rankscope: the run folder out was removed, and the traces with it",
    ]


@pytest.mark.thorough
def test_an_output_that_hangs_holds_the_exit_for_seconds_only(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    os.mkfifo(tmp_path / "out" / ".rank-00000.pt.trace.json.gz.part")
    done = run([*PROFILE, "-o", "out", PYTHON, JOB, "--standin", "--end", "5"], tmp_path, check=False)
    assert done.returncode == 5
    assert "is lost: nothing could be written for" in done.stderr
    assert ".part may be left" in done.stderr


def test_sigkill_to_the_front_leaves_the_job_running_and_its_rank_notes_it() -> None:
    killed = (Signal("KILL", "front", 0.1), Signal("USR1", "rank", 0.1))
    trial = Trial("", ("--standin", "--handle"), signals=killed, note="was killed before the job ended")
    assert tried(trial).difference == ""


@pytest.mark.slow(every_variation=True)
@pytest.mark.parametrize(
    ("name", "target"),
    [("INT", "group"), ("TERM", "group"), ("USR1", "group"), ("INT", "front"), ("USR1", "rank")],
)
def test_a_signal_arrives_once(name: str, target: str) -> None:
    trial = Trial("", ("--handle", "--end", "5"), signals=(Signal(name, target, 0.05),))
    assert tried(trial).difference == ""


def test_ctrl_c_in_a_terminal_arrives_once_and_ctrl_z_stops_the_job(tmp_path: Path) -> None:
    """bash with job control, in a terminal of its own."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve("/bin/bash", ["bash", "--norc", "--noprofile", "-i"], environment(PS1="$ ", TERM="dumb"))
    seen = ""

    def type_in(text: str, until: str) -> None:
        nonlocal seen
        os.write(terminal, text.encode())
        end = time.monotonic() + 60
        begin = len(seen)
        while not re.search(until, seen[begin:]):
            assert time.monotonic() < end, seen
            seen += os.read(terminal, 4096).decode(errors="replace")

    type_in(" ".join([*PROFILE, "-o", "out", PYTHON, JOB, "--handle", "--end", "5"]) + "\n", "own line")
    type_in("\x1a", "Stopped")
    type_in("fg\n", "capture_job")
    wait_until_in_front(terminal, lambda group: group != pid)
    type_in("\x03", "done")
    type_in("echo status $?\n", r"status \d")
    os.write(terminal, b"exit\n")
    os.close(terminal)
    os.waitpid(pid, 0)
    assert "{'SIGINT': 1}" in seen
    assert "status 5" in seen


@pytest.mark.thorough
def test_a_long_command_line_is_started_and_captured(tmp_path: Path) -> None:
    words = ["x" * 1000] * 200
    done = run([*PROFILE, "-o", "out", PYTHON, JOB, *words], tmp_path)
    assert "up, 200 more words" in done.stdout
    assert our_lines(done.stderr) == [
        "rankscope: rank 0: nothing was captured: the script never imported torch"
    ]


@pytest.mark.slow(every_variation=True)
@pytest.mark.parametrize("closed", [(2,), (1,), (0, 1, 2)])
def test_our_lines_go_nowhere_where_stderr_is_closed(closed: tuple[int, ...]) -> None:
    assert tried(Trial("", ("--end", "3"), closed=closed)).difference == ""


UNFINISHED = (
    WITH_STANDIN
    + """
import signal, torch

signal.signal(signal.SIGPROF, lambda *_: None)
signal.setitimer(signal.ITIMER_PROF, 0.01, 0.01)
optimizer = torch.optim.SGD(torch.nn.Linear(4, 4).parameters(), lr=0.1)
for step in range(10):
    optimizer.step()
    print("step", step, end="", file=sys.stderr)
"""
)


def test_a_job_may_leave_a_timer_running_and_its_line_unfinished(tmp_path: Path) -> None:
    """SIGPROF ends a process whose Python has restored its default action: not while ours, too, is freed."""
    with (tmp_path / "log").open("w") as log:
        words = [*PROFILE, "-o", "out", PYTHON, "-c", UNFINISHED]
        done = subprocess.run(words, cwd=tmp_path, env=environment(), stderr=log, check=False)
    text = (tmp_path / "log").read_text()
    assert done.returncode == 0, text
    assert re.findall(r".*rankscope: (?:1 trace|rank 0: steps)", text) == [
        "rankscope: rank 0: steps",
        "rankscope: 1 trace",
    ]
    assert "step 9\nrankscope: 1 trace" in text


def test_secrets_of_the_command_are_not_recorded_and_the_folder_is_private(tmp_path: Path) -> None:
    secret = "s3cretValue"
    words = [PYTHON, "-c", "0", "--api-key", secret, f"https://me:{secret}@host/?token={secret}"]
    run([*PROFILE, "-o", "out", *words], tmp_path)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o700
    for path in (tmp_path / "out").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
        assert secret not in path.read_text()
    assert "REDACTED" in (tmp_path / "out" / "rankscope.json").read_text()
    run([*PROFILE, "--group-readable", "-o", "shared", *words], tmp_path)
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o750
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "shared").iterdir()} == {0o640}
