"""The capture engine: it counts training steps and opens and closes windows as the plan asks.

`rankscope profile` counts steps with torch's global optimizer hook (start_capture.py); a program can also mark
its steps itself. All methods run on the training thread. A failure ends the capture, never the job.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
from collections import deque
from collections.abc import Sequence
from time import perf_counter_ns
from types import FrameType
from typing import Any

from rankscope.capture.capture_request import CaptureRequest
from rankscope.capture.plan import FALLBACK_FOR_S, Plan
from rankscope.capture.rank import SINGLE, UNNUMBERED, Identity
from rankscope.capture.rank_files import RankFiles, clock_anchor
from rankscope.capture.schedule import (
    NONE,
    RECORD,
    RECORD_AND_SAVE,
    WARMUP,
    EveryStep,
    OnRequest,
    OnSignal,
    Schedule,
    ScheduleFunction,
    TimeWindow,
)
from rankscope.capture.selector import parse_selector
from rankscope.capture.summary import captured_by_rank, nothing_captured_by_rank
from rankscope.errors import RankscopeError
from rankscope.inapp.cuda_range import CudaRangeRecorder
from rankscope.inapp.job_log import JobLog
from rankscope.inapp.main_thread import Timer, when_returning
from rankscope.inapp.pause_warning import LITTLE_PAUSE_S, PauseWarning
from rankscope.inapp.sigterm import SigtermGuard
from rankscope.inapp.step_counter import DeepSpeedSteps, StepCounter, live_optimizers
from rankscope.inapp.telemetry import Telemetry
from rankscope.inapp.torch_recorder import Region, ScriptProfiler, TorchRecorder
from rankscope.inapp.window_handlers import Handler
from rankscope.inapp.windows import BY_STEPS, BY_TIME, Windows

# How long the process waits at its end for a trace that is still being written; for one that is stuck, seconds.
EXIT_WAIT_S = 600.0
TERM_WAIT_S = 20.0
# A window that a signal requested before any optimizer step becomes a time window after this long.
SIGNAL_WAIT_S = 10.0

_RECORDING = (RECORD, RECORD_AND_SAVE)


class Engine:
    """Counts steps, opens and closes windows, and ends the capture."""

    def __init__(
        self,
        plan: Plan,
        files: RankFiles,
        log: JobLog,
        handlers: Sequence[Handler] = (),
        recorder: CudaRangeRecorder | None = None,
    ) -> None:
        """``handlers`` receive each window; without them it becomes one trace file in the run folder.
        ``recorder`` replaces torch's profiler.
        """
        import torch

        files.manifest["torch"] = torch.__version__
        log.leads = parse_selector(plan.ranks).leads(files.identity)
        self.plan = plan
        self.files = files
        self.log = log
        self.step_number = 0
        self.stopped = False
        self.counter = StepCounter(plan.step_on, live_optimizers)
        when = plan.when.schedule if isinstance(plan.when, EveryStep) else plan.when
        self._schedule = when if isinstance(when, Schedule | ScheduleFunction) else None
        self._idle_until = self._schedule.first_busy_step if self._schedule else sys.maxsize
        self._planned: Schedule | None = None  # of a window that has become longer
        self._action = NONE
        self._timer: Timer | None = None
        self._hook: Any = None
        self._deepspeed: DeepSpeedSteps | None = None
        self._telemetry: Telemetry | None = None
        self._requests: deque[CaptureRequest] = deque()
        self._request: CaptureRequest | None = None
        self._finished = False
        self._pid = os.getpid()
        self._sigterm = SigtermGuard(self._terminated)
        detailed = plan.record_shapes or plan.profile_memory
        self._pause = PauseWarning(self._say, with_stack=plan.with_stack, detailed=detailed)
        self._announces = recorder is None
        self._windows = Windows(
            files,
            log,
            recorder or TorchRecorder(plan, ScriptProfiler(self._yield_to_script), self._pause, self._say),
            self._sigterm,
            plan.max_size,
            handlers,
        )

    def _say(self, text: str) -> None:
        self.files.manifest["notes"].append(text)
        self.log.progress(text)  # every rank has the same window: one reports

    # -- how steps are counted and windows are triggered

    def watch_optimizers(self) -> None:
        """Count steps with torch's global optimizer hook, and start the timers that open windows."""
        if self.plan.watch:
            # First: its hooks then run before the step ends.
            self.keep_telemetry(self.plan.hang_after_s, self.plan.watch_budget_pct)
        self.count_optimizer_steps()
        self._deepspeed = DeepSpeedSteps(lambda engine: self._count_call(engine, sys._getframe(1)))
        self._sigterm.watch_forks(self._forked)
        when = self.plan.when
        if isinstance(when, TimeWindow):
            self._timer = Timer(when.after_s, lambda: self._safely(self._open_timed, when.for_s))
            return
        if self._schedule is not None and self._schedule.first_busy_step == 0:
            self._begin_with_first_optimizer()
        if self.plan.fallback_after_s > 0 and isinstance(when, Schedule):
            self._timer = Timer(self.plan.fallback_after_s, lambda: self._safely(self._fall_back))

    def count_optimizer_steps(self) -> None:
        """The end of an optimizer's step may be the end of a step."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        def after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            began = perf_counter_ns()
            self.optimizer_stepped(optimizer, sys._getframe(1))
            if self._telemetry is not None and self._telemetry.clock.measures:
                self._telemetry.clock.spent(began)

        # As torch.compiler.disable, which would import dynamo: torch.compile must call the hook, not trace it.
        after_step._torchdynamo_disable = True  # type: ignore[attr-defined]
        self._hook = register_optimizer_step_post_hook(after_step)

    def keep_telemetry(self, hang_after_s: float, budget_pct: float) -> None:
        """From now on, note the times of every step, and record what is requested while the job runs."""
        if self._telemetry is None:
            self._telemetry = Telemetry(
                self.files, self.log, hang_after_s, self._requests.append, budget_pct, self.plan.watcher
            )
            if self.files.claimed:
                self._telemetry.begin()

    def joined(self, identity: Identity) -> None:
        """torch.distributed has given this process its rank: it is a rank of the job, whoever started it."""
        self._safely(self._join, identity)

    def begin(self) -> None:
        """The first step begins now; the program marks the ends of steps itself."""
        self._sigterm.watch_forks(self._forked)
        schedule = self._schedule
        if schedule is not None:
            self._safely(lambda: self._advance(schedule.action(0)))  # a schedule function may fail

    def mark_region(self, region: Region) -> None:
        """Begin and end this range with each recorded step."""
        self._windows.recorder.region = region

    def use_torch_options(self, options: dict[str, Any]) -> None:
        """Further arguments of torch's profiler, which no plan can hold."""
        if isinstance(self._windows.recorder, TorchRecorder):
            self._windows.recorder.options = options

    def release(self) -> None:
        """After ``finish``, in a process that continues: leave torch and SIGTERM as they were found."""
        self._windows.release()

    @property
    def action(self) -> int:
        """The profiler action of the current step, one of torch's ProfilerAction values."""
        return self._action

    def step(self) -> None:
        """A training step has ended; the next one begins."""
        self.step_number += 1
        if self._is_too_dear:
            self._switch_off_telemetry()
        if not self._windows.is_open:
            self._pause.trained(self.step_number)
        if self.step_number == 1:
            if self._timer is not None and not isinstance(self.plan.when, TimeWindow):
                self._timer.cancel()
            self._claim()
        self._windows.collect_exports()
        if self._schedule is None:
            if self._windows.is_open:  # a time window: its steps are marked too
                self._windows.next_step(self.step_number)
            return
        self._advance(self._schedule.action(self.step_number))
        over = self._schedule is not None and self._schedule.is_over(self.step_number)
        if over and not (self._windows.exporting or self._windows.is_open):
            self._nothing_scheduled()  # the last cycle has ended

    def mark_step(self) -> None:
        """The program marks the end of a step."""
        self.stop_counting()
        self._note_step(self._windows.exporting)
        if not self.stopped:
            self._safely(self.step)
        elif self._telemetry is not None:
            self.step_number += 1
            if self._is_too_dear:
                self._switch_off_telemetry()

    def request(self) -> None:
        """Record the next steps, after a signal. Ignored while an earlier request is being served."""
        when = self.plan.when
        busy = self._schedule is not None or self._windows.is_open
        if self.stopped or busy or not isinstance(when, OnSignal):
            return
        if self.step_number == 0:
            self._timer = Timer(SIGNAL_WAIT_S, lambda: self._safely(self._open_timed, FALLBACK_FOR_S))
        self._schedule = Schedule(self.step_number + 1, 0, when.warmup, when.active, 1)
        self._idle_until = 0
        self.log.info(f"window requested: the next {when.warmup + when.active} steps")

    def finish(
        self,
        why: str | None = "the script ended in the window",
        wait_s: float = EXIT_WAIT_S,
        *,
        process_ends: bool = True,
    ) -> None:
        """End the capture: close an open window, wait for exports, print where the traces are.

        ``why`` is the reason why an open window is partial; None where it was to last until now. Called by Python's
        exit, which would print a traceback: a failure (a full disk, a folder that is gone) is one line.
        """
        if self._finished or os.getpid() != self._pid:
            return
        self._finished = True
        try:
            self._finish(why, wait_s, process_ends=process_ends)
        except Exception as error:  # noqa: BLE001  (nothing after the job may be the job's failure)
            lost = any(window["state"] == "lost" for window in self.files.manifest["windows"])  # said already
            (self.log.debug if lost else self.log.warning)(
                f"the end of the capture could not be noted: {_text(error)}"
            )
        self.stopped = True

    def _finish(self, why: str | None, wait_s: float, *, process_ends: bool) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._end_telemetry()
        if isinstance(self.plan.when, EveryStep):
            why = None  # the tool records to the end, and the steps until now are whole
        self._close_unfinished(why)
        answers = self._windows.wait_for_exports(wait_s)
        if process_ends:
            self._windows.leave_events_to_exit()
        if not answers:
            return  # nothing more can be written there, and trying would hold the exit
        self._note_lost_front()
        if not self.files.manifest["windows"] and not self.stopped:
            self._report_nothing_captured()
        uneven = self.counter.uneven()
        if uneven is not None and self.files.manifest["windows"]:
            self.files.manifest["notes"].append(uneven)
            self.log.info(uneven)
        self.files.manifest.update(state="done", steps=self.step_number)
        if self.stopped:
            with contextlib.suppress(RankscopeError):
                self.files.claim()  # the manifest tells readers of the folder why there is no trace
        self.files.manifest["clock"].append(clock_anchor())
        if self.files.claimed:
            self.files.save()
            if not self.stopped and self.files.manifest["windows"]:
                self.log.info(captured_by_rank(self.plan, self.files))

    def _note_lost_front(self) -> None:
        """`rankscope profile` in front of the job was killed: the job has gone on, as behind nohup."""
        front = self.plan.front
        if front is not None and front.host == self.files.manifest["host"] and not front.runs():
            self._note(
                f"rankscope profile (process {front.pid}) was killed before the job ended; the job went on"
            )

    # -- steps and windows

    def optimizer_stepped(self, optimizer: Any, frame: FrameType) -> None:
        """An optimizer has stepped, in ``frame`` of torch. Most calls return after a few comparisons."""
        if self._deepspeed is None or not self._deepspeed.inside or self.plan.step_on is not None:
            self._count_call(optimizer, frame)

    def _count_call(self, optimizer: Any, frame: FrameType) -> None:
        """Of an optimizer, or of a DeepSpeed engine, which has several."""
        if self.stopped and self._telemetry is None:
            return
        try:
            if not self.counter.ends_step(optimizer):
                return
            exporting = self._windows.exporting
            self._note_step(exporting)
            quick = 0 < self.step_number < self._idle_until - 1 and not exporting and not self._is_too_dear
            if quick or self.stopped:
                self.step_number += 1
                if self._is_too_dear:
                    when_returning(frame, self._switch_off_telemetry)
            else:
                # torch calls this inside the optimizer's profiled range; a window must not begin or end there
                when_returning(frame, lambda: self._safely(self.step))
        except Exception as error:  # noqa: BLE001  (this runs inside the job's optimizer.step)
            self._give_up(error)

    def _claim(self) -> None:
        job = self.files.job
        self.files.claim()
        if self.files.job != job and self.files.identity.rank == 0:
            self.log.warning(f"the job has several trainers: this one writes to {self.files.folder}")
        if self._telemetry is not None:
            self._telemetry.begin()

    def _join(self, identity: Identity) -> None:
        if self.files.identity.source in (SINGLE, UNNUMBERED) and not self.files.claimed:
            self.files.identify(identity)
            self.log.rank = identity.rank
            self.log.leads = parse_selector(self.plan.ranks).leads(identity)
            if not parse_selector(self.plan.ranks).selects(identity):
                self._nothing_scheduled()
        if self._telemetry is not None:
            self._claim()

    def _note_step(self, exporting: bool) -> None:
        """A step ends now. Requests are taken here, so that a window can begin with the next step."""
        if self._telemetry is not None:
            self._telemetry.clock.step_ended(self.step_number, exporting or self._windows.is_open)
            if self._requests:
                self._safely(self._take_request)

    def _take_request(self) -> None:
        """Requested windows come one after another, and after those of the schedule."""
        request = self._requests[0]
        ahead = request.first_step - self.step_number - 1
        if ahead < 0:
            self._requests.popleft()
            self._refuse(request, f"the rank was in step {self.step_number} already, or recorded others")
            self.files.save()
            return
        if self._schedule is not None or self._windows.is_open:
            return
        self._requests.popleft()
        warmup = min(request.warmup, ahead)
        self._request, self._action = request, NONE
        self._schedule = Schedule(request.first_step - warmup, 0, warmup, request.steps, 1)
        self._idle_until = self._schedule.first_busy_step
        self.log.info(f"steps {request.first_step}-{request.last_step} will be recorded: {request.reason}")

    def _refuse(self, request: CaptureRequest, why: str) -> None:
        self._note(f"the requested steps {request.first_step}-{request.last_step} were not recorded: {why}")

    def _note(self, text: str) -> None:
        """In the manifest and on stderr."""
        self.files.manifest["notes"].append(text)
        self.log.warning(text)

    def _advance(self, action: int) -> None:
        """Go from the last step's action to the next one's, with torch.profiler's transitions."""
        if self._action == NONE and action != NONE:
            schedule = self._schedule
            steps = schedule.warmup + schedule.active if isinstance(schedule, Schedule) else 1
            if self._windows.recorder.script_profiles(steps):
                self._postpone()
                return
        before, self._action = self._action, action
        if before in _RECORDING:
            self._windows.recorder.end_step()
            if before == RECORD_AND_SAVE or action not in _RECORDING:
                # torch drops a window that its schedule function ends without RECORD_AND_SAVE; here it is kept
                self._windows.close(self.step_number)
        elif before == WARMUP and action == NONE:
            self._windows.drop()
        if action == WARMUP and before != WARMUP:
            self._windows.open(BY_STEPS)
            self._pause.trained(self.step_number)  # opening takes time that no later step takes
        if action in _RECORDING:
            if before not in _RECORDING:
                self._announce()
            self._windows.record_step(self.step_number)

    def _announce(self) -> None:
        """Before a window: what it will cost. Of several, the first is announced."""
        if self._announces and isinstance(self._schedule, Schedule):
            with contextlib.suppress(Exception):
                more = "" if self.files.manifest["windows"] else self._lengthen(self._schedule)
                cost = self._pause.expect(self.step_number, self._schedule.active)
                if cost and not self.files.manifest["windows"]:
                    self.log.progress(cost + more)

    def _lengthen(self, planned: Schedule) -> str:
        """Record more steps if they cost little. The other ranks run the same program, and decide alike."""
        steps = self.plan.active_up_to
        takes_s = self._pause.if_little(self.step_number, steps)
        # A timer's action, as the end of the script, runs on the main thread.
        if not takes_s or threading.current_thread() is not threading.main_thread():
            return ""
        self._planned, self._schedule = planned, planned._replace(active=steps)
        self._timer = Timer(LITTLE_PAUSE_S + 2 * takes_s, lambda: self._safely(self._end_longer))
        return f"; as that is little, {steps} steps instead of {planned.active} (--active sets how many)"

    def _end_longer(self) -> None:
        """The steps take longer than those before, as with an evaluation, or training is over: record no more."""
        if self._planned is not None and self._windows.is_open:
            self._schedule = self._planned
            if self._schedule.is_over(self.step_number):
                self._action = NONE
                self._cut(None)

    def _cut(self, why: str | None) -> None:
        """Close the window early. It is whole if it has the steps that were planned."""
        whole = self._planned is not None and self._planned.is_over(self.step_number)
        self._safely(self._windows.close, self.step_number, None if whole else why)

    def _postpone(self) -> None:
        """Only one profiler can run: while the script's own does, our window is put off step by step.

        Not a requested one, as it would have other steps than that of the other ranks.
        """
        assert self._schedule is not None
        if self._request is not None:
            self._refuse(self._request, "the script ran torch.profiler itself")
            self._nothing_scheduled()
            return
        self._schedule = self._schedule.postponed()
        note = "the script runs torch.profiler itself: the window waits until it has ended"
        if note not in self.files.manifest["notes"]:
            self._note(note)

    def _nothing_scheduled(self) -> None:
        """Remove the hook, unless another window can be requested."""
        self._schedule, self._idle_until, self._request, self._planned = None, sys.maxsize, None, None
        if not isinstance(self.plan.when, OnSignal) and self._telemetry is None:
            self.stop_counting()

    def stop_counting(self) -> None:
        """From now on only steps that the program marks count; optimizer steps do not."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if self._deepspeed is not None:
            self._deepspeed.release()

    # -- time windows

    def _open_timed(self, seconds: float) -> None:
        if self._finished or self.stopped or self._windows.is_open:
            return
        self._schedule = None
        self._windows.open(BY_TIME)
        self._windows.start(self.step_number)
        self._timer = Timer(seconds, lambda: self._safely(self._close_timed))

    def _close_timed(self) -> None:
        if self._windows.is_open:
            self._windows.close(self.step_number)

    def _fall_back(self) -> None:
        """No optimizer has stepped for a long time: record a time window instead."""
        if self.step_number == 0 and not self.files.taken:
            self.log.info(
                f"no optimizer step in {self.plan.fallback_after_s:g} s: recording {FALLBACK_FOR_S:g} s"
            )
            self._open_timed(FALLBACK_FOR_S)

    def _begin_with_first_optimizer(self) -> None:
        """Step 0 is to be recorded: begin when the first optimizer is made.

        By then the script has chosen its device. A profiler that starts with `import torch` could open a CUDA
        context on the wrong one.
        """
        from torch.optim import Optimizer

        original = Optimizer.__init__
        begun: list[bool] = []

        @functools.wraps(original)
        def make(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            if Optimizer.__init__ is make:  # else the script has wrapped it since
                Optimizer.__init__ = original
            original(optimizer, *args, **kwargs)
            if not begun and self.step_number == 0 and self._schedule is not None:
                begun.append(True)
                self._safely(self._advance, self._schedule.action(0))

        Optimizer.__init__ = make

    # -- failures and endings

    def _safely(self, action: Any, *args: Any) -> None:
        if self.stopped:
            return
        try:
            action(*args)
        except Exception as error:  # noqa: BLE001  (the job must go on)
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Print one line and leave nothing running."""
        self.stopped = True
        text = _text(error)
        self.log.warning(f"capture is off, the job goes on: {text}")
        self.files.manifest["notes"].append(text)
        self._sigterm.off()
        if self._telemetry is not None and not self._telemetry.begun:
            self._end_telemetry()
        if self._telemetry is None:
            self.stop_counting()
        try:
            self._windows.drop()
        except Exception as second:  # noqa: BLE001  (the profiler's state is unknown; the first error was printed)
            self.log.debug(f"stopping torch's profiler failed too: {second}")

    def _end_telemetry(self) -> None:
        telemetry, self._telemetry = self._telemetry, None
        if telemetry is not None:
            telemetry.end()
            if telemetry.off_because is None and (cost := str(telemetry.cost)):
                self.log.progress(cost)
            if self._request is not None and not (self._windows.is_open or self._windows.exporting):
                self._refuse(self._request, f"the job ended after {self.step_number} steps")
            for request in self._requests:
                self._refuse(request, "the job's own schedule, or its end, came first")

    @property
    def _is_too_dear(self) -> bool:
        return self._telemetry is not None and self._telemetry.off_because is not None

    def _switch_off_telemetry(self) -> None:
        """Its cost exceeds its budget: remove every hook that nothing else needs. The job goes on."""
        assert self._telemetry is not None
        self._note(
            f"telemetry is off from step {self.step_number} on, the job goes on: {self._telemetry.off_because}"
        )
        self._end_telemetry()
        if self._schedule is None and not self._windows.is_open:
            self._nothing_scheduled()

    def _yield_to_script(self) -> None:
        """The script is about to start its own profiler: close our window first, as a partial one, or open it later."""
        if not self._windows.is_open:
            return
        if self._windows.recorder.started:
            self._cut("the script started its own torch.profiler")
            self._schedule = None
        else:
            self._safely(self._windows.drop)
            self._action = NONE
            self._safely(self._postpone)

    def _close_unfinished(self, why: str | None) -> None:
        if not self._windows.is_open:
            return
        if self._windows.recorder.started and (self.step_number or not isinstance(self.plan.when, EveryStep)):
            self._cut(why)
        else:
            self._safely(self._windows.drop)

    def _terminated(self, lives_on: bool) -> None:
        """A script with its own SIGTERM handler (to write a checkpoint, say) does not wait for the export."""
        if lives_on:
            self._close_unfinished("SIGTERM arrived")
            self._schedule = None
        else:
            self.finish("SIGTERM arrived", TERM_WAIT_S)

    def _forked(self) -> None:
        """In a forked child of the rank, such as a DataLoader worker: the capture must not run there."""
        self.stopped = True
        if self._telemetry is not None:
            self._telemetry.forked()
            self._telemetry = None
        self._windows.forked()

    def _report_nothing_captured(self) -> None:
        if not self.step_number and ((not self.plan.direct and not self.plan.speaks) or self.files.taken):
            return  # one of several Python processes of a script; the command in front reports if none captured
        if self.step_number and isinstance(self.plan.when, OnRequest):
            return
        plan = self.plan._replace(when=self._schedule) if isinstance(self._schedule, Schedule) else self.plan
        text = nothing_captured_by_rank(plan, self.step_number, self.counter.calls)
        self.files.manifest["notes"].append(text)
        if isinstance(self.plan.when, EveryStep):
            self.files.claim()
            return  # the tool's report is there; its summary says that it has no steps
        try:
            self.files.claim()
        except RankscopeError:
            return  # another process of this rank was captured
        self.log.warning(text)


def _text(error: Exception) -> str:
    if isinstance(error, RankscopeError):
        return f"{error.message}. {error.why}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.strerror}: {error.filename}"
    return f"{type(error).__name__}: {error}"


_engine: Engine | None = None


def set_engine(engine: Engine | None) -> None:
    """Make this the engine of the process, which ends its capture at the exit: there is at most one."""
    global _engine
    if _engine is not None:
        atexit.unregister(_engine.finish)
    if engine is not None:
        atexit.register(engine.finish)
    _engine = engine


def current_engine() -> Engine | None:
    """The engine of this process, started by `rankscope profile` or by rankscope.profile in the code."""
    return _engine


def mark_step() -> None:
    """Mark the end of a step. For loops without an optimizer, under `rankscope profile`.

    Does nothing where nothing is captured. After the first call only these calls count as steps.
    """
    if _engine is not None:
        _engine.mark_step()
