"""What a rank finds out about processes, logs and itself when no step ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope import host
from rankscope.inapp.hang_evidence import (
    Frame,
    _children,
    _log_lines,
    _process,
    _stack_in,
    failure,
    own_frame,
)
from rankscope.inapp.step_figures import leave_out_this_frame

KEEPS_LOCK = """\
import ctypes, sys
from rankscope.inapp.hang_evidence import install_stack_signal
install_stack_signal()
install_stack_signal()
def in_c():
    print("ready", flush=True)
    while True:
        ctypes.PyDLL(None).sleep(60)  # PyDLL keeps Python's lock, and a signal ends the sleep
in_c()
"""


def started(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def in_c() -> Iterator[subprocess.Popen[str]]:
    child = started(sys.executable, "-c", KEEPS_LOCK)
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    yield child
    child.kill()
    child.communicate()


def state_of(pid: int, wanted: str) -> str:
    end = time.monotonic() + 30
    while _process(pid)["state"] != wanted and time.monotonic() < end:
        time.sleep(0.01)
    return str(_process(pid)["state"])


def test_the_stack_of_a_process_that_keeps_pythons_lock(in_c: subprocess.Popen[str]) -> None:
    assert state_of(in_c.pid, "S") == "S"
    for _ in range(2):  # a second dump is not mixed with the first
        text = _stack_in(_process(in_c.pid))["stack"]
        assert text.count(" in in_c\n") == 1 and "Current thread" in text
    assert in_c.poll() is None
    in_c.send_signal(signal.SIGSTOP)
    assert state_of(in_c.pid, "T") == "T"
    assert _stack_in(_process(in_c.pid)) == {}


def test_a_process_without_our_handler_gets_no_signal() -> None:
    child = started("sleep", "60")
    try:
        assert state_of(child.pid, "S") == "S"
        assert child.pid in [process["pid"] for process in _children()]
        assert _stack_in(_process(child.pid)) == {} and child.poll() is None
    finally:
        child.kill()
        child.communicate()
    assert _process(child.pid) == {"pid": child.pid, "state": "gone"}


def test_lines_about_errors_in_the_file_that_is_printed_to(tmp_path: Path) -> None:
    log = tmp_path / "slurm-7.out"
    log.write_text("step 1\nnode7: NCCL WARN Cuda failure\nstep 2\n" + "x" * 100_000 + "\nRuntimeError: no\n")
    before = os.dup(2)
    with log.open("a") as file:
        os.dup2(file.fileno(), 2)
        try:
            lines = _log_lines()
        finally:
            os.dup2(before, 2)
            os.close(before)
    assert lines == {"path": str(log), "lines": ["RuntimeError: no"]}  # the last 64 kB are read


def test_messages_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe2(os.O_DIRECT)  # as /dev/kmsg, a read returns one record
    booted_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    for seconds, text in (
        (10, "NVRM: Xid (PCI:0000:17:00): 79"),
        (20, "usb 1-1"),
        (30, "NVRM: Xid (PCI:1): 48"),
    ):
        os.write(writer, f"4,{seconds},{seconds * 10**6},-;{text}\n SUBSYSTEM=pci\n".encode())
    monkeypatch.setattr(host, "_KERNEL_LOG", Path(f"/proc/self/fd/{reader}"))
    assert host.kernel_messages(re.compile("Xid"), booted_ns + 20 * 10**9) == ["NVRM: Xid (PCI:1): 48"]
    os.close(writer)
    os.close(reader)
    monkeypatch.setattr(host, "_KERNEL_LOG", Path("/nonexistent"))
    assert host.kernel_messages(re.compile("Xid"), 0) == []


def test_the_exception_that_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "last_value", raising=False)
    assert failure() is None

    def labels() -> None:
        raise ValueError("label 1001\nis out of range " + "x" * 1000)

    try:
        labels()
    except ValueError as error:
        monkeypatch.setattr(sys, "last_value", error, raising=False)
    noted = failure()
    assert noted is not None
    assert (noted["type"], noted["message"][:27], len(noted["message"])) == (
        "ValueError",
        "label 1001 is out of range ",
        300,
    )
    assert re.fullmatch(r"test_hang_evidence.py:\d+ labels", noted["where"])


def test_the_line_of_the_program_itself() -> None:
    package, script = Frame("/x/site-packages/torch/a.py", "1", "f"), Frame("/home/me/train.py", "2", "g")
    assert own_frame([package, script]) == script
    assert own_frame([package]) == package and own_frame([]) is None


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Python 3.10 keeps the traceback apart from the exception"
)
def test_a_hook_is_not_in_the_traceback() -> None:
    def job() -> None:
        raise ValueError

    def hook() -> None:
        try:
            job()
        except BaseException as error:
            leave_out_this_frame(error)
            raise

    with pytest.raises(ValueError) as caught:
        hook()
    assert [entry.name for entry in caught.traceback][1:] == ["job"]
