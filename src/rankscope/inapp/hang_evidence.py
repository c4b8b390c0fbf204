"""What a rank writes when it has made no step for too long, before anything ends the job.

    RUN/telemetry/stacks-rank-00003.txt       the Python stacks of all its threads, as faulthandler writes them
    RUN/telemetry/flight-rank-00003.json      torch's flight recorder
    RUN/telemetry/rank-00003.hang             its child processes, the ranks of its host, lines of logs

The telemetry's thread writes them, also while the training thread is blocked. It cannot run while C code keeps
Python's lock, nor in a worker process. There faulthandler has a real-time signal, whose handler writes the stacks to a
file in memory without that lock. Another rank of the host, or the worker's parent, sends it: only to a process that
catches the signal and holds such a file.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import re
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rankscope.capture.rank_files import RankFiles
from rankscope.capture.run_folder import rank_stem
from rankscope.capture.telemetry_ring import FOLDER, HEADER_BYTES, NONE, Header, Ring, read_header, ring_path
from rankscope.files import open_private, write_json
from rankscope.host import PROC, high_descriptor, kernel_messages
from rankscope.inapp.job_log import JobLog, joined_distributed, process_groups

# Written again when the hang has lasted so many times as long.
_AGAIN = 10
# Of the timeout of collectives, after which torch ends the job.
_BEFORE_TIMEOUT = 0.9
# A rank of this host that has not written for so long, or half the time of a hang, cannot write its stacks itself.
_STALE_S = 30.0
# How long a process may take to write its stacks, and all children of a rank together.
_ANSWER_S = 1.0
_ANSWERS_S = 2.0
_STACK_FILE = "rankscope-stacks-"
_STACK_LINK = re.compile(rf"/memfd:{_STACK_FILE}(\d+)")
_LOG_BYTES = 1 << 16
_MOST_LINES, _LONGEST_LINE = 5, 300
_ERRORS = re.compile(
    r"error|exception|traceback|warn.*nccl|nccl.*warn|killed|out of memory|timed out|xid", re.I
)
_KERNEL = re.compile(r"Xid|Out of memory|oom-kill|Killed process|segfault|I/O error|not responding")


class HangWatch:
    """Looks once a second whether steps still end, on the telemetry's thread."""

    def __init__(
        self, files: RankFiles, log: JobLog, hang_after_s: float, flight_dump: Callable[[], bytes | None]
    ) -> None:
        self._files = files
        self._log = log
        self._hang_after_s = hang_after_s
        self._flight_dump = flight_dump
        self._progress = (NONE, time.monotonic())
        self._next_s: float | None = None
        self._started_unix_ns = time.time_ns()

    def look(self, ended: int) -> None:
        """``ended`` steps so far. Before the first one nothing is known about how long a step takes."""
        now = time.monotonic()
        if ended != self._progress[0] or not ended:
            self._progress, self._next_s = (ended, now), None
            return
        if self._next_s is None:
            self._next_s = min(self._hang_after_s, _BEFORE_TIMEOUT * collective_timeout_s())
        seconds = now - self._progress[1]
        if seconds >= self._next_s:
            self._next_s *= _AGAIN
            self._write(seconds)

    def _write(self, seconds: float) -> None:
        rank = self._files.manifest["rank"]
        folder = self._files.folder / FOLDER
        self._log.warning(f"no step for {seconds:.0f} s: the stacks of all threads go to {folder}")
        with open_private(stacks_path(folder, rank), "a", encoding="utf-8") as file:
            file.write(_heading(os.getpid(), seconds))
            file.flush()
            faulthandler.dump_traceback(file=file, all_threads=True)
            file.write("\n")
        dump = self._flight_dump()
        if dump is not None:
            write_json(folder / f"flight-{rank_stem(rank)}.json", _with_groups(json.loads(dump)), indent=None)
        evidence = {
            "unix_ns": time.time_ns(),
            "children": [*_children()],
            "ranks": {str(other): process for other, process in self._peers(rank, seconds)},
            "log": _log_lines(),
            "kernel": kernel_messages(_KERNEL, self._started_unix_ns)[-_MOST_LINES:],
        }
        write_json(processes_path(folder, rank), evidence)

    def _peers(self, rank: int, seconds: float) -> Iterator[tuple[int, dict[str, Any]]]:
        """The processes of this host's other ranks, whose numbers are next to each other.

        Of those that do not write any more, the lowest rank that does gets the stacks.
        """
        peers = dict(_rings_beside(self._files.folder, rank, self._files.manifest["host"]))
        now = time.time_ns()
        stale = {other for other, ring in peers.items() if is_stale(ring.header, ring.about, now)}
        for other, ring in peers.items():
            process = _process(ring.about["pid"])
            if other in stale and rank < min(peers.keys() - stale, default=rank + 1):
                text = _stack_in(process).get("stack")
                if text:
                    with open_private(stacks_path(self._files.folder / FOLDER, other), "a") as file:
                        file.write(_heading(process["pid"], seconds) + text + "\n")
            yield other, process | {"stale": other in stale}


def is_stale(header: Header, about: Mapping[str, Any], now_unix_ns: int) -> bool:
    """Whether the threads of a rank do not run, by the time at which it wrote last."""
    stale_s = min(_STALE_S, float(about.get("hang_after_s") or 0) / 2 or _STALE_S)
    return now_unix_ns - header.alive_unix_ns > stale_s * 1e9


def stacks_path(folder: Path, rank: int) -> Path:
    return folder / f"stacks-{rank_stem(rank)}.txt"


def processes_path(folder: Path, rank: int) -> Path:
    return folder / f"{rank_stem(rank)}.hang"


def _heading(pid: int, seconds: float) -> str:
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return f"# {moment} process {pid}: no step for {seconds:.0f} s\n"


def _rings_beside(run: Path, rank: int, host: str) -> Iterator[tuple[int, Ring]]:
    for direction in (-1, 1):
        other = rank + direction
        while (ring := _ring(ring_path(run, other))) is not None and ring.about.get("host") == host:
            yield other, ring
            other += direction


def _ring(path: Path) -> Ring | None:
    try:
        with path.open("rb") as file:
            return read_header(file.read(HEADER_BYTES))
    except OSError:
        return None


def _with_groups(dump: dict[str, Any]) -> dict[str, Any]:
    """The flight recorder of other backends than NCCL does not list the members of groups."""
    config = dump.get("pg_config") or {"": {}}
    groups = process_groups()
    if groups and all(str(group.get("ranks", "[]")) == "[]" for group in config.values()):
        dump["pg_config"] = {
            name: {"name": name, "desc": description, "ranks": ranks} for name, description, ranks in groups
        }
    return dump


def collective_timeout_s() -> float:
    """After how long torch ends a rank that waits in a collective; infinite where that is not known."""
    timeouts = [float("inf")]
    distributed = joined_distributed()
    if distributed is not None:
        with contextlib.suppress(Exception):  # private names of torch
            group = distributed.distributed_c10d._get_default_group()
            backends = map(group._get_backend, group._device_types)
            timeouts += [backend.options._timeout.total_seconds() for backend in backends]
    return min(timeouts)


# -- processes


def _process(pid: int) -> dict[str, Any]:
    """State (R, S, D, T, Z as ps shows them; "gone" without a process), name, and the kernel function it waits in."""
    try:
        name, _, rest = (PROC / f"{pid}/stat").read_text().partition(" (")[2].rpartition(") ")
    except OSError:
        return {"pid": pid, "state": "gone"}
    waits_in = ""
    with contextlib.suppress(OSError):
        waits_in = (PROC / f"{pid}/wchan").read_text().strip("0\n")
    return {"pid": pid, "state": rest[:1], "name": name, "waits_in": waits_in}


def _children() -> Iterator[dict[str, Any]]:
    """Those of this process, workers of data loaders above all, with their stacks."""
    pids: list[str] = []
    for path in (PROC / "self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            pids += path.read_text().split()
    deadline = time.monotonic() + _ANSWERS_S
    for pid in sorted(map(int, pids)):
        process = _process(pid)
        yield process | (_stack_in(process) if time.monotonic() < deadline else {})


def install_stack_signal() -> None:
    """Let a signal that the job does not use write all stacks to a file in memory, which bears its number."""
    with contextlib.suppress(AttributeError, OSError, RuntimeError, ValueError):
        if _stack_signal(os.getpid()) is not None:
            return
        caught = _caught_signals(os.getpid())
        for number in range(signal.SIGRTMAX - 3, signal.SIGRTMIN, -1):
            if not caught >> (number - 1) & 1:
                descriptor = high_descriptor(os.memfd_create(f"{_STACK_FILE}{number}"))
                faulthandler.register(number, file=descriptor, all_threads=True)
                return


def _stack_signal(pid: int) -> tuple[int, Path] | None:
    """The signal of a process that it has installed, or its parent before it was forked, and the file."""
    for path in (PROC / f"{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile, as that of the list itself
            match = _STACK_LINK.match(str(path.readlink()))
            # Without a handler the signal would end the process.
            if match and _caught_signals(pid) >> (int(match[1]) - 1) & 1:
                return int(match[1]), path
    return None


def _stack_in(process: dict[str, Any]) -> dict[str, str]:
    """The stacks of another process that runs and has a stack signal; {} of others."""
    with contextlib.suppress(OSError):
        if process["state"] in ("R", "S", "D") and (channel := _stack_signal(process["pid"])) is not None:
            return {"stack": _written_after(process["pid"], *channel)}
    return {}


def _written_after(pid: int, number: int, path: Path) -> str:
    """What a process adds to this file when it gets the signal."""
    before = size = path.stat().st_size
    os.kill(pid, number)
    deadline = time.monotonic() + _ANSWER_S
    while time.monotonic() < deadline:
        time.sleep(0.05)
        last, size = size, path.stat().st_size
        if size == last > before:
            break
    return path.read_bytes()[before:].decode(errors="replace")


def _caught_signals(pid: int) -> int:
    """A bit for each."""
    status = (PROC / f"{pid}/status").read_text()
    return int(status.partition("SigCgt:")[2].split()[0], 16)


def _log_lines() -> dict[str, Any] | None:
    """The last lines about errors in the file that this process prints to."""
    for descriptor in (2, 1):
        with contextlib.suppress(OSError):
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode):
                path = (PROC / f"self/fd/{descriptor}").readlink()
                with path.open("rb") as file:
                    file.seek(max(status.st_size - _LOG_BYTES, 0))
                    lines = file.read(_LOG_BYTES).decode(errors="replace").splitlines()
                errors = [line[:_LONGEST_LINE] for line in lines if _ERRORS.search(line)]
                return {"path": str(path), "lines": errors[-_MOST_LINES:]}
    return None


# -- the end of a rank


class Frame(NamedTuple):
    file: str
    line: str
    function: str

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line} {self.function}"


def own_frame(frames: Iterable[Frame]) -> Frame | None:
    """The first frame outside installed packages, the standard library and our hooks; else the first."""
    installed = ("site-packages", "dist-packages", "/lib/python", "<frozen", "rankscope/inapp/")
    listed = list(frames)
    of_script = (frame for frame in listed if not any(word in frame.file for word in installed))
    return next(of_script, listed[0] if listed else None)


def failure() -> dict[str, Any] | None:
    """The exception that ends this process, as Python notes it before its exit; None without one."""
    error = getattr(sys, "last_value", None)
    if error is None or hasattr(sys, "ps1"):  # at a prompt the process went on after it
        return None
    frames, position = [], error.__traceback__
    while position is not None:
        code = position.tb_frame.f_code
        frames.append(Frame(code.co_filename, str(position.tb_lineno), code.co_name))
        position = position.tb_next
    message = ""
    with contextlib.suppress(Exception):  # the job's own code
        message = " ".join(str(error).split())[:_LONGEST_LINE]
    where = own_frame(reversed(frames))
    return {
        "type": type(error).__name__,
        "message": message,
        "where": "" if where is None else str(where),
        "unix_ns": time.time_ns(),
    }
