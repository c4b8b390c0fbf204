"""Measuring a command: its CPU time, the memory of all its processes, and what it said when it fails."""

from __future__ import annotations

import sys

import pytest

from measure import CommandError, best_of, measure

MEMORY = 60_000_000
TREE = f"""
import subprocess, sys, threading, time
code = "import sys; held = b'x' * {MEMORY}; print(flush=True); sys.stdin.read()"
def start():
    child = subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
    time.sleep(1)
    child.communicate()
held = b"y" * {MEMORY}
thread = threading.Thread(target=start)
thread.start()
thread.join()
"""


@pytest.mark.slow
def test_memory_is_that_of_all_processes_also_of_those_that_a_thread_started() -> None:
    cost = measure([sys.executable, "-S", "-c", TREE])
    assert 2 * MEMORY < cost.peak_bytes < 3 * MEMORY


@pytest.mark.slow
def test_a_peak_between_two_samples_counts() -> None:
    code = f"import time; b'x' * {MEMORY}; time.sleep(1)"
    assert MEMORY < measure([sys.executable, "-S", "-c", code]).peak_bytes < 2 * MEMORY


def test_the_memory_of_the_process_that_measures_does_not_count() -> None:
    held = b"x" * 2 * MEMORY
    assert 0 < measure(["sleep", "0.1"]).peak_bytes < len(held) // 2


def test_cpu_time_is_not_waiting_time() -> None:
    cost = measure([sys.executable, "-S", "-c", "import time; time.sleep(0.1)"])
    assert cost.cpu_seconds > 0
    assert cost.seconds >= 0.1


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(CommandError, match=r"failed \(1\):\n.*no such luck") as caught:
        measure(["sh", "-c", "echo no such luck >&2; exit 1"])
    assert "sh -c" in str(caught.value)


def test_a_command_that_takes_too_long_is_ended() -> None:
    with pytest.raises(CommandError, match="ended after 0 s"):
        measure(["sleep", "60"], timeout=0.05)


def test_short_commands_are_repeated_from_the_same_start() -> None:
    prepared: list[int] = []
    best_of(3, ["true"], lambda: prepared.append(1))
    assert len(prepared) == 3
