"""The capture engine: steps in, windows of torch's profiler out, one trace file for each.

`rankscope profile` feeds it from torch's global optimizer hook (see arm.py); an application can feed it
itself by calling ``step()``. All methods run on the training thread. A failure of ours ends the capture,
never the job.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

from rankscope.capture.plan import FALLBACK_FOR_S, Plan
from rankscope.capture.rank import Identity
from rankscope.capture.rank_files import RankFiles, clock_anchor
from rankscope.capture.schedule import NONE, RECORD, RECORD_AND_SAVE, WARMUP, OnSignal, Schedule, TimeWindow
from rankscope.capture.selector import parse_selector
from rankscope.errors import CaptureError, RankscopeError
from rankscope.inapp.cuda_range_windows import RangeRecorder
from rankscope.inapp.end_messages import ending, nothing_captured
from rankscope.inapp.handlers import Handler
from rankscope.inapp.job_log import Voice
from rankscope.inapp.main_thread import Timer, when_returning
from rankscope.inapp.recorder import Recorder, Region, ScriptProfiler, leave_to_the_system
from rankscope.inapp.sigterm import TerminationGuard
from rankscope.inapp.step_counter import StepCounter, live_optimizers
from rankscope.inapp.window_export import Outbox
from rankscope.units import format_ns

# How long the end of the process waits for a trace that is still being written.
EXIT_WAIT_S = 600.0
TERM_WAIT_S = 20.0
# A signal that asks for a window waits so long for a first optimizer step before it takes a time window
# instead.
SIGNAL_WAIT_S = 10.0

_RECORDING = (RECORD, RECORD_AND_SAVE)


class Engine:
    """Counts steps, opens and closes windows, and hands what was recorded to a forked exporter."""

    def __init__(
        self,
        plan: Plan,
        files: RankFiles,
        voice: Voice,
        handlers: Sequence[Handler] = (),
        recorder: Recorder | RangeRecorder | None = None,
    ) -> None:
        """``handlers`` take what was recorded instead of the one trace file in the run folder; ``recorder``
        stands in for torch's profiler.
        """
        self.plan = plan
        self.files = files
        self.voice = voice
        self.step_number = 0
        self.stopped = False
        self.counter = StepCounter(plan.step_on, live_optimizers)
        self._schedule = plan.when if isinstance(plan.when, Schedule) else None
        self._quiet_until = self._schedule.first_busy_step if self._schedule else sys.maxsize
        self._action = NONE
        self._window: dict[str, Any] | None = None
        self._opened = 0
        self._outbox = Outbox(files, voice, plan.max_size, handlers)
        self._timer: Timer | None = None
        self._kept: object = None
        self._hook: Any = None
        self._finished = False
        self._pid = os.getpid()
        self._guard = TerminationGuard(self._terminated)
        self._recorder = recorder or Recorder(plan, ScriptProfiler(self._step_aside))

    # -- what makes it run

    def watch_optimizers(self) -> None:
        """Count steps by torch's own global hook, and set the clock or the signal that opens windows."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        def after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            self.optimizer_stepped(optimizer, sys._getframe(1))

        # torch.compile shall call this, not trace it (torch.compiler.disable without its import of dynamo).
        after_step._torchdynamo_disable = True  # type: ignore[attr-defined]
        self._hook = register_optimizer_step_post_hook(after_step)
        os.register_at_fork(after_in_child=self._forked)
        when = self.plan.when
        if isinstance(when, TimeWindow):
            self._timer = Timer(when.after_s, lambda: self._shielded(self._open_timed, when.for_s))
            return
        if isinstance(when, Schedule) and when.first_busy_step == 0:
            self._begin_with_first_optimizer()
        if self.plan.fallback_after_s > 0 and not isinstance(when, OnSignal):
            self._timer = Timer(self.plan.fallback_after_s, lambda: self._shielded(self._fall_back))

    def begin(self) -> None:
        """The program begins its first step now and will mark the others itself."""
        os.register_at_fork(after_in_child=self._forked)
        if self._schedule is not None:
            self._shielded(self._advance, self._schedule.action(0))

    def mark_region(self, region: Region) -> None:
        """Have this range begun and ended with each recorded step."""
        self._recorder.region = region

    def release(self) -> None:
        """After ``finish``, where the process goes on without us."""
        self._guard.off()
        self._recorder.release()

    @property
    def action(self) -> int:
        """What the step that runs just now is for, in torch's words."""
        return self._action

    def step(self) -> None:
        """A training step has ended; the next one begins."""
        self.step_number += 1
        if self.step_number == 1:
            self._first_step()
        self._collect_exports()
        if self._schedule is None:
            if self._window is not None:  # a time window: the steps inside it are marked all the same
                self._recorder.end_step()
                self._recorder.begin_step(self.step_number)
            return
        self._advance(self._schedule.action(self.step_number))
        self._go_quiet()

    def count_marked_steps(self) -> None:
        """From now on the program says itself where its steps end; its optimizers do not count."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def mark_step(self) -> None:
        """The program says that a step has ended."""
        self.count_marked_steps()
        if not self.stopped:
            self._shielded(self.step)

    def request(self) -> None:
        """Record the next steps, on demand. A request while one is under way changes nothing."""
        when = self.plan.when
        if self._schedule is not None or self._window is not None or not isinstance(when, OnSignal):
            return
        if self.step_number == 0:
            self._timer = Timer(SIGNAL_WAIT_S, lambda: self._shielded(self._open_timed, FALLBACK_FOR_S))
        self._schedule = Schedule(self.step_number + 1, 0, when.warmup, when.active, 1)
        self._quiet_until = 0
        self.voice.tell(f"asked for a window: the next {when.warmup + when.active} steps")

    def finish(
        self,
        why: str | None = "the script ended in the window",
        wait_s: float = EXIT_WAIT_S,
        *,
        process_ends: bool = True,
    ) -> None:
        """The end: close what is open, wait for what is being written, say where it is.

        ``why`` is why an open window is not whole; None where it was to last until now.
        """
        if self._finished or os.getpid() != self._pid:
            return
        self._finished = True
        if self._timer is not None:
            self._timer.cancel()
        self._close_unfinished(why)
        self._outbox.wait(wait_s)
        if process_ends:
            leave_to_the_system(self._kept)
        if not self.files.manifest["windows"] and not self.stopped:
            self._say_nothing_captured()
        self.files.manifest.update(state="done", steps=self.step_number)
        if self.stopped:
            with contextlib.suppress(RankscopeError):
                self.files.claim()  # so that whoever reads the folder finds why there is no trace
        self.files.manifest["clock"].append(clock_anchor())
        if self.files.claimed:
            self.files.save()
            if not self.stopped and self.files.manifest["windows"]:
                self.voice.speaks = self.voice.speaks or self._speaks_for_rank_zero()
                self.voice.tell(ending(self.files))
        self.stopped = True

    # -- steps and windows

    def optimizer_stepped(self, optimizer: Any, frame: FrameType) -> None:
        """An optimizer has stepped, in this frame of torch's; most calls end after a few comparisons."""
        if self.stopped:
            return
        try:
            if not self.counter.ends_step(optimizer):
                return
            if 0 < self.step_number < self._quiet_until - 1 and not self._outbox.busy:
                self.step_number += 1
            else:
                # torch calls this inside the optimizer's profiled range: a window must not begin or end in it
                when_returning(frame, lambda: self._shielded(self.step))
        except Exception as error:  # noqa: BLE001  (this runs inside the job's optimizer.step)
            self._give_up(error)

    def _first_step(self) -> None:
        if self._timer is not None and not isinstance(self.plan.when, TimeWindow):
            self._timer.cancel()
        self.files.claim()

    def _advance(self, action: int) -> None:
        """torch.profiler's own transitions between what the last step was for and what the next one is."""
        if self._action == NONE and action != NONE and self._recorder.script_profiles:
            self._postpone()
            return
        before, self._action = self._action, action
        if before in _RECORDING:
            self._recorder.end_step()
            if before == RECORD_AND_SAVE:
                self._close_window()
        if action == WARMUP and before != WARMUP:
            self._open_window("steps")
        if action in _RECORDING:
            if not self._recorder.busy:
                self._open_window("steps")
            if not self._recorder.started:
                self._start_recording()
            self._recorder.begin_step(self.step_number)

    def _postpone(self) -> None:
        """Only one profiler can run: while it is the script's own, our window moves on with the steps."""
        assert self._schedule is not None
        self._schedule = self._schedule._replace(skip_first=self._schedule.skip_first + 1)
        note = "the script runs torch.profiler itself: the window waits until it has ended"
        if note not in self.files.manifest["notes"]:
            self.files.manifest["notes"].append(note)
            self.voice.fail(note)

    def _open_window(self, kind: str) -> None:
        self.files.claim()
        self._kept = None  # frees the last window's events, if there was one: torch takes its time for that
        self._window = {"index": self._opened, "kind": kind, "state": "recording"}
        self._opened += 1
        self._guard.on()
        self._recorder.warm_up()

    def _start_recording(self) -> None:
        assert self._window is not None
        self._recorder.start()
        identity = {key: self.files.manifest[key] for key in ("job", "rank", "rank_source")}
        self._recorder.add_metadata("rankscope", json.dumps(identity))
        self._window.update(first_step=self.step_number, start=clock_anchor())

    def _close_window(self, why: str | None = None) -> None:
        """Stop, fork, go on. The two parts of the stall are measured, because they have different owners."""
        window, self._window = self._window, None
        assert window is not None
        last = self.step_number if why or window["kind"] != "steps" else self.step_number - 1
        last = max(last, window["first_step"])
        recording = self._recorder.stop()
        began = time.perf_counter_ns()
        window.update(last_step=last, end=clock_anchor(), stop_ns=recording.stop_ns)
        self._outbox.send(window, recording, why)
        self._outbox.stalled(window, recording.stop_ns + time.perf_counter_ns() - began)
        self._kept = recording.keep
        self.voice.detail(
            f"recorded steps {window['first_step']}-{last}; training stood still for "
            f"{format_ns(window['stall_ns'])}: stop {format_ns(window['stop_ns'])} (torch), "
            f"export {format_ns(window['stall_ns'] - window['stop_ns'])}"
        )

    def _collect_exports(self) -> None:
        self._outbox.collect()
        if not self._outbox.busy and self._window is None:
            self._guard.off()

    def _go_quiet(self) -> None:
        """After the last cycle nothing of ours is left in the loop."""
        assert self._schedule is not None
        skip, wait, warmup, active, repeat = self._schedule
        over = repeat and self.step_number >= skip + repeat * (wait + warmup + active)
        if not over or self._outbox.busy or self._window is not None:
            return
        if isinstance(self.plan.when, OnSignal):
            self._schedule, self._quiet_until = None, sys.maxsize
        elif self._hook is not None:
            self._hook.remove()
            self._hook = None

    # -- windows by the clock

    def _open_timed(self, seconds: float) -> None:
        if self._finished or self.stopped or self._window is not None:
            return
        self._schedule = None
        self._open_window("time")
        self._start_recording()
        self._timer = Timer(seconds, lambda: self._shielded(self._close_timed))

    def _close_timed(self) -> None:
        if self._window is not None:
            self._close_window()

    def _fall_back(self) -> None:
        if self.step_number == 0:
            self.voice.tell(
                f"no optimizer step in {self.plan.fallback_after_s:g} s: recording {FALLBACK_FOR_S:g} s"
            )
            self._open_timed(FALLBACK_FOR_S)

    def _begin_with_first_optimizer(self) -> None:
        """Step 0 is wanted: begin when the first optimizer is made.

        By then the script has chosen its devices; a profiler that started with `import torch` could open
        a CUDA context on the wrong one.
        """
        from torch.optim import Optimizer

        original = Optimizer.__init__

        @functools.wraps(original)
        def make(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            Optimizer.__init__ = original
            original(optimizer, *args, **kwargs)
            if self.step_number == 0 and self._schedule is not None:
                self._shielded(self._advance, self._schedule.action(0))

        Optimizer.__init__ = make

    # -- when things end or go wrong

    def _shielded(self, action: Any, *args: Any) -> None:
        if self.stopped:
            return
        try:
            action(*args)
        except Exception as error:  # noqa: BLE001  (whatever goes wrong here, the job goes on)
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """One line, and nothing of ours is left running."""
        self.stopped = True
        text = (
            f"{error.message}. {error.why}"
            if isinstance(error, RankscopeError)
            else f"{type(error).__name__}: {error}"
        )
        self.voice.fail(f"capture is off, the job goes on: {text}")
        self.files.manifest["notes"].append(text)
        self._window = None
        self._guard.off()
        if self._hook is not None:
            self._hook.remove()
        try:
            self._recorder.abandon()
        except Exception as second:  # noqa: BLE001  (the profiler is in an unknown state; the first error was said)
            self.voice.detail(f"stopping torch's profiler failed too: {second}")

    def _step_aside(self) -> None:
        """The script is about to start its own profiler: ours ends first, with what it has."""
        if self._window is None:
            return
        if self._recorder.started:
            self._shielded(self._close_window, "the script started its own torch.profiler")
            self._schedule = None
        else:
            self._give_up(CaptureError("the script started its own torch.profiler, and only one can run"))

    def _close_unfinished(self, why: str | None) -> None:
        if self._window is not None and self._recorder.started:
            self._shielded(self._close_window, why)
        elif self._window is not None:
            self._window = None
            self._shielded(self._recorder.abandon)

    def _terminated(self, lives_on: bool) -> None:
        """A script that answers SIGTERM itself (to write a checkpoint, say) does not wait for a trace."""
        if lives_on:
            self._close_unfinished("SIGTERM came")
            self._schedule = None
        else:
            self.finish("SIGTERM came", TERM_WAIT_S)

    def _forked(self) -> None:
        """In a child of the job (a DataLoader's worker): nothing of ours may act there."""
        self.stopped = True
        self._guard.off()

    def _say_nothing_captured(self) -> None:
        if not self.step_number and not self.plan.direct and not self.plan.speaks:
            return  # one of several Pythons of a script; the command in front says it if nothing comes
        text = nothing_captured(self.plan, self.step_number, self.counter.calls)
        self.files.manifest["notes"].append(text)
        try:
            self.files.claim()
        except RankscopeError:
            return  # another process of this rank was captured; this one had nothing to add
        self.voice.fail(text)

    def _speaks_for_rank_zero(self) -> bool:
        """Rank 0 speaks for the run; where it is not wanted, the rank that opened the run folder does."""
        rank_zero = Identity(0, 0, None, None, 0, "")
        wanted = parse_selector(self.plan.ranks).selects(rank_zero)
        return self.files.first and self.plan.speaks and not self.plan.quiet and not wanted
