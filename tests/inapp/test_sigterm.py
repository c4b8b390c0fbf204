"""SIGTERM while a window is open: only that of this process counts, and a handler that the script saves is harmless."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

# In a process of its own, because the signal ends it.
HEAD = """\
import multiprocessing, os, signal, sys, time
from rankscope.inapp import sigterm
from rankscope.inapp.sigterm import SigtermGuard

guard = SigtermGuard(lambda lives_on: print("saved", lives_on, flush=True))

def term():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1)

"""


def run(script: str) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", HEAD + script], capture_output=True, text=True, check=False, timeout=30
    )
    assert not done.stderr
    return done.returncode, done.stdout.splitlines()


YOUNG_WORKER = """\
guard.watch_forks(lambda: time.sleep(0.2))  # the signal comes in the worker's first moments
guard.on()
for after_s in (0, 0.1):
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(9,))
    worker.start()
    time.sleep(after_s)
    worker.terminate()
    worker.join()
    print("worker", worker.exitcode, flush=True)
time.sleep(0.5)
assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
term()
"""


def test_a_signal_to_a_young_worker_ends_it_and_not_the_trainer() -> None:
    assert run(YOUNG_WORKER) == (-signal.SIGTERM, ["worker -15", "worker -15", "saved False"])


WITHOUT_HOOKS = """\
import ctypes
guard.on()
child = ctypes.CDLL(None).fork()  # as a C library forks: Python's hooks do not run
if child == 0:
    signal.raise_signal(signal.SIGTERM)
    os._exit(0)
os.waitpid(child, 0)
time.sleep(0.5)
print("the trainer goes on")
"""


def test_nor_one_to_a_child_that_a_library_has_forked() -> None:
    assert run(WITHOUT_HOOKS) == (0, ["the trainer goes on"])


@pytest.mark.parametrize(
    ("script", "lines"),
    [
        ("guard.on(); term()", ["saved False"]),
        (
            "guard.on(); saved = signal.getsignal(15); guard.off(); signal.signal(15, saved); term()",
            ["saved False"],
        ),
        (
            "guard.on(); saved = signal.getsignal(15); guard.off(); signal.signal(15, saved); guard.on(); term()",
            ["saved False"],
        ),
        (
            "guard.on(); saved = signal.getsignal(15); guard.off()\n"
            "signal.signal(15, lambda *a: (callable(saved) and saved(*a), print('own'), os.kill(os.getpid(), 9)))\n"
            "guard.on(); term()",
            ["saved True", "saved True", "own"],
        ),
    ],
)
def test_a_handler_that_the_script_saves_does_not_call_itself(script: str, lines: list[str]) -> None:
    status, printed = run(script)
    assert status == (-signal.SIGKILL if lines[-1] == "own" else -signal.SIGTERM)
    assert printed[-len(lines) :] == lines


STUCK = """\
import ctypes, threading
sigterm.STUCK_S = 0.3
signal.signal(signal.SIGUSR1, lambda *_: None)
guard.on()

def signals():
    for number in (signal.SIGTERM, signal.SIGUSR1):
        time.sleep(0.1)
        os.kill(os.getpid(), number)

threading.Thread(target=signals, daemon=True).start()
mutex = ctypes.create_string_buffer(64)
for _ in range(2):  # the second time it waits for itself, and no signal interrupts it
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""


def test_a_process_that_is_stuck_ends_whatever_other_signals_come() -> None:
    assert run(STUCK) == (-signal.SIGTERM, [])
