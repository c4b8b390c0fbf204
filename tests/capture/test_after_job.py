"""Nothing that follows a job changes its status: a failure, a signal, a folder that does not answer."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from rankscope.capture.after_job import within_seconds

# The job exits with 7, or is killed; then comes `code`.
FRONT = """\
import os, signal, sys, time
from rankscope.capture.after_job import after_job
from rankscope.capture.child_process import end_like, run_command

def say(text):
    print(text, flush=True)

status = run_command(["sh", "-c", sys.argv[1]], os.environ)
with after_job(say):
    {code}
sys.exit(end_like(status))
"""


def front(code: str, job: str = "exit 7") -> subprocess.Popen[str]:
    words = [sys.executable, "-c", FRONT.format(code=code), job]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise KeyError('rank')", "after the job's end: KeyError: 'rank'"),
        ("sys.exit(3)", "after the job's end: SystemExit: 3"),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(20)", "interrupted by SIGTERM"),
        ("os.kill(os.getpid(), signal.SIGINT); time.sleep(20)", "interrupted by SIGINT"),
        ("os.kill(os.getpid(), signal.SIGUSR1); say('went on')", "went on"),
        ("from rankscope.errors import StoreError; raise StoreError('a', 'b', 'c')", "a\n  b\n  c"),
    ],
)
def test_the_status_is_the_jobs(code: str, said: str) -> None:
    done = front(code)
    out, err = done.communicate(timeout=60)
    assert done.returncode == 7
    assert said in out
    assert err == ""


def test_a_signal_that_killed_the_job_ends_the_front_after_a_failure() -> None:
    done = front("raise OSError(28, 'No space left on device')", "kill -TERM $$")
    assert "No space left on device" in done.communicate(timeout=60)[0]
    assert done.returncode == -signal.SIGTERM


def test_the_status_is_kept_where_the_caller_ignores_sigchld() -> None:
    code = f"import signal, os; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv({sys.executable!r}, "
    words = [sys.executable, "-c", FRONT.format(code="pass"), "exit 7"]
    done = subprocess.run([sys.executable, "-c", f"{code}{words!r})"], check=False)
    assert done.returncode == 7


def test_what_does_not_answer_is_not_waited_for() -> None:
    assert not within_seconds(lambda: time.sleep(60), 0.01)
    assert within_seconds(lambda: None)
    with pytest.raises(ZeroDivisionError):
        within_seconds(lambda: print(1 / 0))
