"""The forked export beside libraries that mend their own descriptors in every forked process."""

from __future__ import annotations

import functools
import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.capture.forked_child import fork_child

# A process of its own: the library's descriptors are its first ones, and Python cannot take the hook back.
JOB = """\
import contextlib, os, sys
from pathlib import Path
from rankscope.inapp.forked_export import Export, ExportOrder

def pipes():
    return [number for _ in range(3) for number in os.pipe()]

def as_libuv_does():
    "Close the numbers that once were its pipes, whoever has them now, and make new ones."
    for number in once_ours:
        with contextlib.suppress(OSError):
            os.close(number)
    once_ours[:] = pipes()

once_ours = pipes()
os.register_at_fork(after_in_child=as_libuv_does)
save = lambda name: Path(name).write_text('{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1}]}')
export = Export(ExportOrder(save, Path(sys.argv[1]), None, 0, lambda outcome: None))
export.wait(20)
print(export.outcome["state"])
"""


def test_descriptors_that_a_library_closes_in_every_fork_are_not_ours(tmp_path: Path) -> None:
    target = tmp_path / "rank-0.json.gz"
    done = subprocess.run([sys.executable, "-c", JOB, target], capture_output=True, text=True, check=True)
    assert done.stdout == "whole\n", done.stderr
    assert [event["name"] for event in json.loads(gzip.decompress(target.read_bytes()))["traceEvents"]] == [
        "a"
    ]


# The job closes all descriptors, waits for its own child, and counts SIGCHLD, while its trace is written.
ODD_JOB = """\
import os, signal, sys, time
from pathlib import Path
from rankscope.inapp.forked_export import Export, ExportOrder

ended = []
signal.signal(signal.SIGCHLD, lambda *_: ended.append(1))

def save(name):
    time.sleep(0.3)
    Path(name).write_text('{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1}]}')

export = Export(ExportOrder(save, Path(sys.argv[1]), None, 0, lambda outcome: None))
os.closerange(3, 256)
files = [open(f"{sys.argv[1]}.{number}", "w") for number in range(8)]
assert not export.poll()
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no child of ours")
child = os.fork()
if child == 0:
    os._exit(3)
print(os.wait()[0] == child)
export.wait(20)
print(export.outcome["state"], len(ended))
for file in files:
    file.write("theirs")
    file.close()
print({Path(file.name).read_text() for file in files})
"""


@pytest.mark.slow
def test_the_job_cannot_meet_the_exporter(tmp_path: Path) -> None:
    words = [sys.executable, "-c", ODD_JOB, str(tmp_path / "rank-0.json.gz")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["no child of ours", "True", "whole 1", "{'theirs'}"], done.stderr


STUCK_JOB = """\
import os, sys
from pathlib import Path
from rankscope.inapp import forked_export

forked_export.STUCK_S = 0.3
target = Path(sys.argv[1])
os.mkfifo(forked_export._part_of(target))  # nobody reads it: opening it takes for ever
export = forked_export.Export(forked_export.ExportOrder(lambda name: None, target, None, 0, lambda outcome: None))
export.wait(60)
print(export.stuck, export.outcome)
"""


@pytest.mark.slow
def test_an_export_that_makes_no_progress_is_given_up(tmp_path: Path) -> None:
    words = [sys.executable, "-c", STUCK_JOB, str(tmp_path / "rank-0.json.gz")]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.startswith("True {'state': 'lost', 'why': 'nothing could be written for"), done.stderr
    assert ".rank-0.json.gz.part may be left" in done.stdout


# The exporter's process, then the one that saves, cannot be started: the first fork that is left out is argv[2].
LIMITED_JOB = """\
import os, sys, tempfile
from pathlib import Path
from rankscope.inapp import forked_export

forked_export._CLONE.clear()
tempfile.tempdir = sys.argv[1]
forks = [0]
fork = os.fork

def limited():
    forks[0] += 1
    if forks[0] >= int(sys.argv[2]):
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return fork()

os.fork = limited
save = lambda name: Path(name).write_text("{}")
order = forked_export.ExportOrder(save, Path(sys.argv[1], "a.json"), None, 0, lambda outcome: None)
export = forked_export.Export(order)
export.wait(20)
print(export.outcome["state"], export.outcome["why"], flush=True)
print("checkpoint", flush=True)
"""


@pytest.mark.parametrize(
    ("left_out", "why"),
    [
        (1, "no process could be started to write it (limit of processes or memory)"),
        (2, "no process could be started to write it (limit of processes or memory)"),
        (3, "no process could be started for torch's export: Resource temporarily unavailable"),
    ],
)
def test_the_job_runs_once_at_the_limit_of_processes(tmp_path: Path, left_out: int, why: str) -> None:
    words = [sys.executable, "-c", LIMITED_JOB, str(tmp_path), str(left_out)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.splitlines() == [f"lost {why}", "checkpoint"], done.stderr
    assert not list(tmp_path.iterdir())


def test_a_forked_child_ends_whatever_is_raised_in_it() -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: os._exit(9))  # the job's handler does not run in it
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        for error in (KeyboardInterrupt, MemoryError, SystemExit):
            child = fork_child(functools.partial(_raise, error))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask


def _raise(error: type[BaseException]) -> None:
    signal.raise_signal(signal.SIGUSR1)
    raise error


UNDER_TOOL = """\
import os, sys
from pathlib import Path
from rankscope.capture.under_tool.tool_process import Supervised, run_under_tool

folder = Path(sys.argv[1])
supervised = Supervised(["true"], folder / "pid", os.dup(1), os.dup(2))
try:
    ended = run_under_tool(["true"], os.environ, supervised, folder / "missing" / "log")
    print("status", ended.tool_status, flush=True)
finally:
    print("the job", flush=True)
"""


def test_a_profiler_that_cannot_be_started_is_no_second_job(tmp_path: Path) -> None:
    words = [sys.executable, "-c", UNDER_TOOL, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.splitlines() == ["status 1", "the job"], done.stderr
