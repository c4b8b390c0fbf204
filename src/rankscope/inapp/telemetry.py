"""The telemetry of this rank: a thread that writes the figures of each step to the run folder, once a second.

It also looks for requests to capture, and writes all stacks when no step has ended for a long time. The training thread
never waits for it. A write that fails ends the telemetry with one line; one that hangs, hangs this thread alone.
"""

from __future__ import annotations

import _thread
import functools
import json
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter_ns, time_ns
from typing import Any

from rankscope.capture.capture_request import CaptureRequest, read_request
from rankscope.capture.plan import WATCH_BUDGET_PCT
from rankscope.capture.rank_files import RankFiles
from rankscope.capture.selector import parse_selector
from rankscope.capture.telemetry_ring import FOLDER, NONE, PHASES, RingWriter, ring_path
from rankscope.errors import RankscopeError
from rankscope.files import make_private_folder
from rankscope.inapp.hang_evidence import HangWatch, failure, install_stack_signal
from rankscope.inapp.job_log import JobLog, current_identity, process_groups
from rankscope.inapp.main_thread import start_waiting_thread
from rankscope.inapp.step_figures import (
    BEGIN,
    FORWARD_END,
    OPTIMIZER_BEGIN,
    OPTIMIZER_END,
    StepClock,
    StepFigures,
)
from rankscope.inapp.watch_cost import WatchCost

PERIOD_S = 1.0
# How long the process waits at its end for the last records.
EXIT_WAIT_S = 2.0
# A request that is older than the rank by more than this, the clocks' difference, was for an earlier attempt or job.
_EARLIER_NS = 60 * 10**9
_PIPELINE = re.compile(r"(?<![a-z])(pp|pipeline)(?![a-z])")
# torch's functions for it, NCCL's and then that of all other backends; older versions have none or one of them.
OTHER_BACKENDS = "_dump_fr_trace_json"
_DUMPS = ("_dump_nccl_trace_json", OTHER_BACKENDS)


class Telemetry:
    """Figures of every step, from ``begin`` to ``end``."""

    def __init__(
        self,
        files: RankFiles,
        log: JobLog,
        hang_after_s: float,
        requested: Callable[[CaptureRequest], None],
        budget_pct: float = WATCH_BUDGET_PCT,
        watcher: str | None = None,
    ) -> None:
        """``requested`` is called, on the telemetry's thread, with each request that selects this rank. ``watcher``:
        the options of `rankscope watch`, which rank 0 starts."""
        self.cost = WatchCost(budget_pct)
        self.off_because: str | None = None
        """Set by its thread, which then has ended: the cost exceeds the budget, and the hooks are to be removed."""
        self.clock = StepClock()
        self._files = files
        self._log = log
        self._hang_after_s = hang_after_s
        self._requested = requested
        self._watcher_options = watcher
        self._watcher: Any = None
        self._requests = 0
        self._started_unix_ns = time.time_ns()
        self._pending: deque[StepFigures] = deque()
        self._hang = HangWatch(files, log, hang_after_s, fullest_dump)
        self._ring: RingWriter | None = None
        self._stage: int | None = None
        self._stage_asked = False
        self._pause = _thread.allocate_lock()
        self._over = False
        self._ended = threading.Event()
        self.begun = False

    def begin(self) -> None:
        """The run folder is there, and this process is its rank: write from now on."""
        if not self.begun:
            self.begun = True
            start_waiting_thread(functools.partial(self._pause.acquire, True, PERIOD_S), None, self._run)

    def end(self) -> None:
        """The training is over: write what is left, but do not wait long for it."""
        self._over = True
        self.clock.off()
        if self.begun:
            if self._pause.locked():
                self._pause.release()
            self._ended.wait(EXIT_WAIT_S)

    def forked(self) -> None:
        """In a forked child, which has no such thread and is not the rank."""
        self.clock.off()

    def _run(self, _woken: bool) -> bool:
        """At the begin, once a second, and at the end; False ends the thread."""
        try:
            if self._ring is None:
                self.make_ring()
                if self._watcher_options is not None and self._files.manifest["rank"] == 0:
                    self._watcher = start_watcher(self._files.folder, self._watcher_options)
            if not self._over:
                began = time.thread_time_ns()
                self.look()
                self.cost.add_thread_ns(time.thread_time_ns() - began)
                self.off_because = self.cost.excess()
                if self.off_because is None:
                    return True
            self._write(self.clock.phase, last=True)
            assert self._ring is not None
            share = self.cost.share()
            ending = {"cost": share and share._asdict(), "off": self.off_because, "failure": failure()}
            self._ring.describe(self._about() | ending)
            # Last: who watches takes a rank that has ended without a reason for one that is done.
            self._write((PHASES.index("ended"), time.perf_counter_ns()), last=True)
        except Exception as error:  # noqa: BLE001  (the job must go on)
            self.clock.off()
            reason = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else repr(error)
            self._log.warning(f"telemetry is off, the job goes on: {reason}")
        self._ended.set()
        return False

    def look(self) -> None:
        """What is done once a second."""
        self._write(self.clock.phase)
        self._look_for_requests()
        assert self._ring is not None
        self._hang.look(self._ring.records + len(self._pending) + len(self.clock.done))
        if self._ring.records and not self._stage_asked:  # process groups are made before the first step
            self._stage_asked, self._stage = True, pipeline_stage()
            self._ring.describe(self._about())

    def make_ring(self) -> None:
        """Make this rank's file, with its whole size."""
        manifest = self._files.manifest
        make_private_folder(self._files.folder / FOLDER)
        path = ring_path(self._files.folder, manifest["rank"])
        install_stack_signal()
        try:
            self._ring = RingWriter(path, self._about())
        except OSError:
            path.unlink(missing_ok=True)
            raise

    def _about(self) -> dict[str, Any]:
        fields = ("rank", "local_rank", "world_size", "node", "host", "pid", "role")
        about = {key: self._files.manifest[key] for key in fields}
        times = {"started_unix_ns": self._started_unix_ns, "hang_after_s": self._hang_after_s}
        return about | times | {"stage": self._stage}

    # -- records

    def _write(self, phase: tuple[int, int], *, last: bool = False) -> None:
        """Write the steps whose figures are complete; ``last`` writes all."""
        assert self._ring is not None
        clock = self.clock
        while clock.done:
            step = clock.done.popleft()
            self.cost.add_step(step)
            self._pending.append(step)
        offset = unix_offset_ns()
        ready = []
        while self._pending and (last or _is_complete(self._pending[0])):
            step = self._pending.popleft()
            ready.append(ring_record(step, device_ns=_device_ns(step.marks), end_unix_ns=step.ended + offset))
            self.clock.free_marks.extend(mark for mark in step.marks if mark is not None)
        self._ring.write(ready, time.time_ns(), phase[0], phase[1] + offset)

    # -- captures

    def _look_for_requests(self) -> None:
        while (request := read_request(self._files.folder, self._requests + 1)) is not None:
            self._requests += 1
            try:
                old = 0 < request.made_unix_ns < self._started_unix_ns - _EARLIER_NS
                if not old and parse_selector(request.ranks).selects(self._files.identity):
                    self._requested(request)
            except RankscopeError as error:
                self._log.warning(f"capture request {self._requests} is refused: {error.message}")


def pipeline_stage() -> int | None:
    """Of this rank, by the description of a process group (Megatron's, and those of a DeviceMesh)."""
    for _name, description, ranks in process_groups():
        if len(ranks) > 1 and _PIPELINE.search(description.lower()):
            return ranks.index(current_identity().rank)
    return None


def ring_record(step: StepFigures, *, device_ns: int, end_unix_ns: int) -> tuple[int, ...]:
    """A step as the ring has it (FIELDS without `number`); docs/definitions.md defines each figure."""
    step_ns = step.ended - step.began
    wait_ns = min(step.wait_ns, step_ns)
    return (
        step.number,
        end_unix_ns,
        step_ns,
        step_ns - wait_ns if device_ns == NONE else device_ns,
        step.first_wait - step.began if step.first_wait else NONE,
        wait_ns,
        step.data_ns,
        step.optimizer_ns,
        step.forward_ns,
        device_ns,
        step.cpu_ns,
        step.gc_ns,
        step.memory_bytes,
        step.run_delay_ns,
        int(step.profiled),
    )


def _is_complete(step: StepFigures) -> bool:
    """Whether the GPU has reached all its events."""
    return all(mark is None or mark.query() for mark in step.marks)


def _device_ns(marks: Sequence[Any]) -> int:
    """On the GPU: from the step's begin until backward begins, and the optimizer."""
    if any(mark is None or not mark.query() for mark in marks):
        return NONE
    spans = ((BEGIN, FORWARD_END), (OPTIMIZER_BEGIN, OPTIMIZER_END))
    return int(sum(marks[begin].elapsed_time(marks[end]) for begin, end in spans) * 1e6)


def unix_offset_ns() -> int:
    """What is added to a time of perf_counter_ns to get Unix time."""
    return time_ns() - perf_counter_ns()


def flight_entries(name: str) -> list[dict[str, Any]]:
    """The entries of one of torch's recorders, the oldest first; none where this torch has no such recorder."""
    dump = flight_dump(name)
    entries = json.loads(dump).get("entries", []) if dump else []
    return [entry for entry in entries if "record_id" in entry and "time_created_ns" in entry]


def flight_dump(name: str) -> bytes | None:
    """The recorder's content as torch writes it: a JSON object."""
    import torch

    if not torch.distributed.is_available():
        return None
    dump = getattr(torch._C._distributed_c10d, name, None)
    return None if dump is None else dump(True, False)  # collectives too, and also those that have ended


def start_watcher(folder: Path, options: str) -> Any:
    """Start `rankscope watch` for this run. It ends with this process, and what it prints goes to stderr."""
    import shlex
    import subprocess

    from rankscope.capture.launcher_command import own_command

    words = ["watch", str(folder), *shlex.split(options), "--parent", f"{os.getpid()}"]
    return subprocess.Popen([*own_command(), *words], stdin=subprocess.DEVNULL, stdout=2)


def fullest_dump() -> bytes | None:
    """The dump of the recorder that has entries: a job uses one backend for its training."""
    return next((dump for name in _DUMPS if flight_entries(name) and (dump := flight_dump(name))), None)
