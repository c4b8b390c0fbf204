"""Signals and the terminal behind the process in front: real processes, groups and terminals, without torch."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from integration.jobs import wait_until_in_front

FRONT = """\
import os, sys
from rankscope.capture.child_process import end_like, run_command
sys.exit(end_like(run_command(sys.argv[1:], os.environ)))
"""
# Prints the number of each signal; the last is SIGINT. With "read" it reads a line instead.
JOB = """\
import os, signal, sys
if "group" in sys.argv:
    try:
        os.setpgid(0, 0)
    except PermissionError:
        pass
if "read" in sys.argv:
    print("up", flush=True)
    print("read", sys.stdin.readline(), flush=True)
    sys.exit(5)
signals = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
if "stops" in sys.argv:
    signals -= {signal.SIGTSTP, signal.SIGCONT}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
print("up", flush=True)
number = 0
while number != signal.SIGINT:
    info = signal.sigtimedwait(signals, 60)
    number = info.si_signo if info else signal.SIGINT
    print("got", int(number), flush=True)
sys.exit(5)
"""
SLOW = {
    "at once": "import rankscope.capture.signal_relay as relay\nrelay._DELIVERY_S = 0.3\n",
    "soon": "import os, time\nnames = os.listdir\nos.listdir = lambda path: time.sleep(0.3) or names(path)\n",
}
"""What is done in front of the job takes long."""
PYTHON = [sys.executable, "-I", "-S"]
# Importing rankscope needs site.
WITH_US = [sys.executable, "-c", FRONT]
SENT = [
    *sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGINT}),
    signal.SIGINT,
]


@contextmanager
def in_terminal(words: list[str]) -> Iterator[tuple[int, int]]:
    """The process and the terminal; what is left of it is ended."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(words[0], words, {**os.environ, "PS1": "$ ", "TERM": "dumb"})
    try:
        yield pid, terminal
    finally:
        os.close(terminal)  # SIGHUP for what is in the foreground
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextmanager
def in_session(words: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The process, once its job is up, and its output."""
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            read_until(process.stdout.fileno(), "up\n")
            yield process, process.stdout.fileno()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def read_until(descriptor: int, pattern: str) -> str:
    text = ""
    while not re.search(pattern, text):
        ready = select.select([descriptor], [], [], 20)[0]
        piece = b""
        with suppress(OSError):  # the terminal's last process has gone
            piece = os.read(descriptor, 4096) if ready else b""
        assert piece, f"{pattern!r} did not come: {text!r}"
        text += piece.decode()
    return text


@pytest.mark.slow
@pytest.mark.parametrize("sent_to", ["front", "group", "group of a job that has left it"])
def test_every_signal_that_can_be_caught_arrives_once(sent_to: str) -> None:
    words = [*WITH_US, *PYTHON, "-c", JOB, *(["group"] if "left" in sent_to else [])]
    with in_session(words) as (front, output):
        text = ""
        for number in SENT:
            (os.kill if sent_to == "front" else os.killpg)(front.pid, number)
            text += read_until(output, f"got {number:d}\n")
        text += front.communicate(timeout=20)[0].decode()
    assert [int(number) for number in re.findall(r"got (\d+)", text)] == SENT
    assert front.returncode == 5


@pytest.mark.slow
def test_signals_that_come_together_arrive_once() -> None:
    """The witness is asked once for all of them."""
    numbers = [signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM, signal.SIGRTMIN, signal.SIGRTMIN]
    with in_session([*WITH_US, *PYTHON, "-c", JOB]) as (front, _):
        for number in numbers:
            os.killpg(front.pid, number)
        time.sleep(0.3)  # a second one, sent by mistake, has come by then
        os.kill(front.pid, signal.SIGINT)
        text = front.communicate(timeout=20)[0].decode()
    assert sorted(map(int, re.findall(r"got (\d+)", text))) == sorted([*numbers, signal.SIGINT])


@pytest.mark.parametrize("number", [signal.SIGXCPU, signal.SIGRTMIN + 3, signal.SIGRTMAX])
def test_a_signal_that_ends_the_job_is_the_status(number: int) -> None:
    code = "import time; print('up', flush=True); time.sleep(60)"
    with in_session([*WITH_US, *PYTHON, "-c", code]) as (front, _):
        os.kill(front.pid, number)
        front.communicate(timeout=20)
    assert front.returncode == -number


@pytest.mark.parametrize("job", [[*PYTHON, "-c", JOB, "group"], ["timeout", "60", *PYTHON, "-c", JOB]])
def test_ctrl_c_reaches_a_job_with_its_own_group(job: list[str]) -> None:
    with in_terminal([*WITH_US, *job]) as (_, terminal):
        read_until(terminal, "up")
        os.write(terminal, b"\x03")
        assert "got 2" in read_until(terminal, "got 2")


@pytest.mark.slow
@pytest.mark.parametrize(
    "job", [[*PYTHON, "-c", JOB, "read", "group"], ["timeout", "60", *PYTHON, "-c", JOB, "read"]]
)
def test_a_job_with_its_own_group_reads_the_terminal(job: list[str]) -> None:
    with in_terminal([*WITH_US, *job]) as (_, terminal):
        read_until(terminal, "up")
        os.write(terminal, b"a line\n")
        assert "read a line" in read_until(terminal, "read .*\n")


@pytest.mark.slow(every_variation=True)
@pytest.mark.parametrize("group", ["group", "group, at once", "group, soon", ""])
def test_ctrl_z_and_fg_stop_and_continue_the_job(group: str, tmp_path: Path) -> None:
    """bash with job control. At once, soon: before and while it is looked whether the job has to be woken."""
    group, _, when = group.partition(", ")
    (tmp_path / "front.py").write_text(SLOW.get(when, "") + FRONT)
    (tmp_path / "job.py").write_text(JOB)
    command = f"{sys.executable} {tmp_path}/front.py {sys.executable} -IS {tmp_path}/job.py stops {group}\n"

    def is_meant(pid: int) -> bool:
        """The job where it has a group of its own, else the process in front of it."""
        words = Path(f"/proc/{pid}/cmdline").read_text()
        return "job.py" in words and ("front.py" in words) == (not group)

    with in_terminal(["/bin/bash", "--norc", "--noprofile", "-i"]) as (_, terminal):
        os.write(terminal, command.encode())
        read_until(terminal, r"\nup")
        wait_until_in_front(terminal, is_meant)
        os.write(terminal, b"\x1a")
        read_until(terminal, "Stopped")
        os.write(terminal, b"echo shell $((1 + 1)); fg\n")
        read_until(terminal, r"shell 2[\s\S]*job\.py")
        wait_until_in_front(terminal, is_meant)
        os.write(terminal, b"\x03")
        read_until(terminal, "got 2")
        os.write(terminal, b"echo status $?\n")
        read_until(terminal, "status 5")


def test_where_nothing_can_be_forked_the_job_takes_our_process(tmp_path: Path) -> None:
    """ulimit -u 1; root has no such limit."""
    no_fork = (
        "import errno\ndef fork():\n    raise BlockingIOError(errno.EAGAIN, 'no processes')\nos.fork = fork\n"
    )
    head, tail = FRONT.split("\n", 1)
    words = [sys.executable, "-c", f"{head}\n{no_fork}{tail}", "sh", "-c", "echo the job $$; exit 7"]
    done = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = done.communicate(timeout=20)
    assert (done.returncode, out) == (7, f"the job {done.pid}\n")
    reason = "cannot start a process (no processes)"
    assert err == f"rankscope: {reason}: the job runs in this one, and there is no summary at its end\n"


@pytest.mark.parametrize("named", ["path", "on PATH"])
def test_a_script_without_an_interpreter_is_run_by_sh(named: str, tmp_path: Path) -> None:
    script = tmp_path / "train"
    script.write_text('echo "$0 $1"\nexit 7\n')
    script.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    program = str(script) if named == "path" else "train"
    done = subprocess.run([*WITH_US, program, "a b"], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, f"{script} a b\n", "")


def test_a_file_that_is_no_program_is_not_given_to_sh(tmp_path: Path) -> None:
    (tmp_path / "train").write_bytes(b"\x7fELF\0\0\0")
    (tmp_path / "train").chmod(0o755)
    done = subprocess.run([*WITH_US, str(tmp_path / "train")], capture_output=True, text=True, check=False)
    assert done.returncode == 126
    assert "Exec format error" in done.stderr
