"""Ten kinds of hangs and three of failures in real jobs of gloo ranks, and what rankscope makes of them.

    python benchmarks/hangs.py [KIND …] [--at-once 3]

Each job is started, watched and asked about as a user would: `rankscope watch RUN --fail-on hang,ended`, then
`rankscope stats RUN -r hang`. One row for each: the ranks and the line that were planted and those that were named,
and the seconds from the hang's detection to the verdict. Exit code 1 where a verdict is wrong.

The ranks are forked from this process, which has imported torch once: a job takes a tenth of the CPU time.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "integration"))
import fake_compiler  # noqa: F401
import torch
from torch import distributed

import rankscope
from rankscope.text.plain_table import plain_table

RANKS = 4
CULPRIT = 1
AT_STEP = 8
HANG_AFTER_S = 6.0
"""How long a rank must be without a step. A job that fails has ten times as long."""
WAIT_S = 120.0
FOREVER_S = 3600.0


class Job(NamedTuple):
    """What a rank of a job has at hand."""

    rank: int
    folder: Path
    groups: tuple[Any, Any]


# -- the faults: each is called in step AT_STEP, on every rank, before the model's collectives


def own_code(job: Job) -> None:
    """A rank waits for a lock of its own program."""
    if job.rank == CULPRIT:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()  # planted


def blocked_read(job: Job) -> None:
    """A rank reads from a file that never answers, without Python's lock."""
    if job.rank == CULPRIT:
        pipe, _ = os.pipe()
        os.read(pipe, 1)  # planted


def c_code(job: Job) -> None:
    """A rank is in C code that keeps Python's lock: no other thread of it can run."""
    if job.rank == CULPRIT:
        re.fullmatch(r"(a|a)*b", "a" * 60)  # planted


def frozen(job: Job) -> None:
    """A rank's process is stopped."""
    if job.rank == CULPRIT:
        os.kill(os.getpid(), signal.SIGSTOP)  # planted


def dead(job: Job) -> None:
    """A rank is killed; the others wait for a key that it was to set."""
    if job.rank == CULPRIT:
        os.kill(os.getpid(), signal.SIGKILL)
    distributed.distributed_c10d._get_default_store().wait(["never set"], timedelta(seconds=FOREVER_S))


def skipped(job: Job) -> None:
    """A rank leaves out a collective, and waits in the next one, which the others have not reached."""
    if job.rank != CULPRIT:
        distributed.all_reduce(torch.ones(3))
    distributed.barrier(job.groups[0])  # planted


def mismatch(job: Job) -> None:
    """A rank calls another collective than the others."""
    if job.rank == CULPRIT:
        distributed.all_gather([torch.ones(3) for _ in range(RANKS)], torch.ones(3))  # planted
    else:
        distributed.all_reduce(torch.ones(3))


def order(job: Job) -> None:
    """Two groups of all ranks, used in different order."""
    first, second = job.groups if job.rank < RANKS // 2 else job.groups[::-1]
    distributed.all_reduce(torch.ones(3), group=first)  # planted
    distributed.all_reduce(torch.ones(3), group=second)


def no_partner(job: Job) -> None:
    """A rank waits for a message that its neighbour does not send: that one goes on to the step's collectives."""
    if job.rank == CULPRIT:
        distributed.recv(torch.ones(3), src=0)  # planted


def teardown(job: Job) -> None:
    """A rank has fewer batches, and waits at the end of the program while the others train."""
    if job.rank == CULPRIT:
        distributed.barrier(job.groups[0])  # planted


class Samples(torch.utils.data.Dataset[torch.Tensor]):  # type: ignore[misc]
    """The culprit's loader worker fails in its last sample."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def __len__(self) -> int:
        return AT_STEP + 8

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == AT_STEP + 1 and self.fault == "worker":
            with tempfile.TemporaryFile() as file, Path(f"/proc/self/fd/{file.fileno()}").open("ab") as other:
                fcntl.flock(file, fcntl.LOCK_EX)
                fcntl.flock(other, fcntl.LOCK_EX)  # planted in the worker
        if index == AT_STEP + 1 and self.fault == "worker-killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.ones(4, 16)


def worker(job: Job) -> None:
    """A DataLoader worker is stuck."""


# -- jobs that fail instead of hanging


def raises(job: Job) -> None:
    """A rank raises; the others lose their connection to it."""
    if job.rank == CULPRIT:
        raise ValueError("the label 1001 is out of range")  # planted


def killed(job: Job) -> None:
    """A rank is killed; the others lose their connection to it."""
    if job.rank == CULPRIT:
        os.kill(os.getpid(), signal.SIGKILL)


def worker_killed(job: Job) -> None:
    """A DataLoader worker is killed, and the rank raises."""


HANGS: dict[str, Callable[[Job], None]] = {
    "own-code": own_code,
    "blocked-read": blocked_read,
    "c-code": c_code,
    "frozen": frozen,
    "dead": dead,
    "skipped": skipped,
    "mismatch": mismatch,
    "order": order,
    "no-partner": no_partner,
    "teardown": teardown,
    "worker": worker,
}
FAILURES: dict[str, Callable[[Job], None]] = {
    "raises": raises,
    "killed": killed,
    "worker-killed": worker_killed,
}
KINDS = HANGS | FAILURES
_NO_LINE = ("frozen", "dead", "killed", "worker-killed")
"""Kinds in which the process cannot tell its line, or in which a signal ends it at any line."""


def train(kind: str, rank: int, run: Path, port: int) -> None:
    """One rank, from its beginning until it is ended."""
    log = os.open(run.parent / f"{kind}-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    groups = distributed.new_group(range(RANKS)), distributed.new_group(range(RANKS))
    rankscope.watch(run, hang_after_s=HANG_AFTER_S * (10 if kind in FAILURES else 1), budget_pct=100)
    job = Job(rank, run, groups)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples = Samples(kind if rank == CULPRIT else "")
    loader = torch.utils.data.DataLoader(samples, batch_size=None, num_workers=int(kind.startswith("worker")))
    for step, inputs in enumerate(loader):  # planted for the loader
        time.sleep(0.02)
        if step == AT_STEP:
            KINDS[kind](job)
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()


def fork_ranks(kind: str, run: Path, port: int) -> list[int]:
    """The processes of a job. A child leaves this program as a script of its own would."""
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)  # with its workers
            train(kind, rank, run, port)
            sys.exit(0)
        children.append(child)
    return children


def planted_line(kind: str) -> str:
    """`hangs.py:87 own_code`: the marked line of a fault."""
    function: Any = train if kind.startswith("worker") else KINDS[kind]
    lines, first = inspect.getsourcelines(function)
    offset = next((index for index, line in enumerate(lines) if "# planted" in line), None)
    return "" if offset is None or kind in _NO_LINE else f"{Path(__file__).name}:{first + offset}"


def planted_ranks(kind: str) -> list[int]:
    return [*range(RANKS)] if kind == "order" else [CULPRIT]


class Verdict(NamedTuple):
    """What rankscope said of a job."""

    kind: str
    alarm: dict[str, Any]
    finding: dict[str, Any]
    alarm_s: float
    """From the moment at which a rank had been without a step for too long, or failed, to the alarm."""
    report_s: float
    """To the answer of `stats`, which is asked then."""

    @property
    def is_right(self) -> bool:
        text = f"{self.finding.get('title')} {self.finding.get('evidence')}"
        right = self.alarm.get("ranks") == self.finding.get("ranks") == planted_ranks(self.kind)
        return right and planted_line(self.kind) in text


class Watched:
    """A job that runs, and the commands that watch it, one after another."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.run = kind, folder / kind
        self.ranks = fork_ranks(kind, self.run, _free_port())
        self.verdict: Verdict | None = None
        self._alarm: dict[str, Any] = {}
        self._began = time.monotonic()
        self._since_s = self._alarm_s = 0.0
        self._command: subprocess.Popen[str] | None = None

    def advance(self) -> bool:
        """Look after it; False once the verdict is there."""
        command = self._command
        if command is None:
            if len(list(self.run.glob("telemetry/*.ring"))) == RANKS:
                self._command = _rankscope(
                    "watch", str(self.run), "--format", "json", "--fail-on", "hang,ended"
                )
            elif time.monotonic() - self._began > WAIT_S:
                raise SystemExit(f"{self.kind}: the job did not begin; see {self.run.parent}")
            return True
        if command.poll() is None:
            if time.monotonic() - self._began > WAIT_S:
                command.kill()
            return True
        output, errors = command.communicate()
        if not self._alarm:
            states = [json.loads(line) for line in output.splitlines()]
            wanted = ("hang", "ended")
            alarms = [each for state in states for each in state["new_alarms"] if each["kind"] in wanted]
            if not alarms:
                raise SystemExit(f"{self.kind}: no alarm. {states[-1:]} {errors}")
            self._alarm = alarms[0]
            waited_s = HANG_AFTER_S * (self._alarm["kind"] == "hang")
            self._since_s = self._alarm["since_unix_ns"] / 1e9 + waited_s
            self._alarm_s = time.time() - self._since_s
            self._command = _rankscope("stats", str(self.run), "-q", "-r", "hang", "--format", "json")
            return True
        result = json.loads(output)
        finding: dict[str, Any] = next(iter(result["findings"]), {})
        self.verdict = Verdict(self.kind, self._alarm, finding, self._alarm_s, time.time() - self._since_s)
        return False

    def end(self) -> None:
        for child in self.ranks:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _rankscope(*words: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-m", "rankscope", *words], stdout=pipe, stderr=pipe, text=True)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def verdicts(kinds: Sequence[str], folder: Path, at_once: int) -> list[Verdict]:
    """Run the jobs, some at a time."""
    waiting = [*kinds]
    running: list[Watched] = []
    judged: list[Verdict | None] = []
    pid = os.getpid()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(Watched(waiting.pop(0), folder))
            for job in [*running]:
                if not job.advance():
                    running.remove(job)
                    job.end()
                    judged.append(job.verdict)
            time.sleep(0.1)
    finally:
        for job in running if os.getpid() == pid else ():  # a rank ends with an exception
            job.end()
    return sorted((each for each in judged if each is not None), key=lambda each: kinds.index(each.kind))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--at-once", type=int, default=3, help="jobs at a time (default: 3)")
    parser.add_argument("--folder", type=Path, help="keep the run folders here")
    args = parser.parse_args()
    if unknown := set(args.kinds) - set(KINDS):
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(KINDS)}")
    folder = args.folder or Path(tempfile.mkdtemp())
    judged = verdicts(args.kinds or [*KINDS], folder, args.at_once)
    if not args.folder:  # not by a context manager, which a rank would leave as well
        shutil.rmtree(folder)
    headings = ("kind", "right", "ranks", "planted at", "alarm after (s)", "report after (s)", "verdict")
    rows = [
        (
            each.kind,
            "yes" if each.is_right else "NO",
            ",".join(map(str, each.finding.get("ranks", []))),
            planted_line(each.kind),
            f"{each.alarm_s:.1f}",
            f"{each.report_s:.1f}",
            str(each.finding.get("title")),
        )
        for each in judged
    ]
    print(plain_table(headings, rows, left=7))
    for each in judged:
        if not each.is_right:
            print(f"\n{each.kind}: alarm: {each.alarm['text']} {each.alarm['ranks']}\n  {each.finding}")
    return 0 if all(each.is_right for each in judged) else 1


if __name__ == "__main__":
    sys.exit(main())
