"""torch's profiler, one recording at a time, and never in the way of one that the script runs itself."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from rankscope.capture.plan import Plan
from rankscope.errors import CaptureError


class Recording(NamedTuple):
    """What a stopped profiler holds, and what stopping it cost the training thread."""

    save: Callable[[str], object]
    keep: object
    stop_ns: int


class ScriptProfiler:
    """Knows when the script uses torch.profiler itself, and asks us to step aside before it does.

    Two Kineto sessions in one process raise inside whoever comes second, which must not be the script.
    """

    def __init__(self, step_aside: Callable[[], None]) -> None:
        import torch.autograd.profiler as profiler

        self.in_use = False
        self.ours = False
        watch = self
        prepare, leave = profiler.profile._prepare_trace, profiler.profile.__exit__

        @functools.wraps(prepare)
        def prepare_trace(profile: Any, *args: Any, **kwargs: Any) -> Any:
            if not watch.ours:
                step_aside()
                watch.in_use = True
            return prepare(profile, *args, **kwargs)

        @functools.wraps(leave)
        def exit_profile(profile: Any, *args: Any, **kwargs: Any) -> Any:
            if not watch.ours:
                watch.in_use = False
            return leave(profile, *args, **kwargs)

        profiler.profile._prepare_trace = prepare_trace
        profiler.profile.__exit__ = exit_profile

        def release() -> None:
            if profiler.profile._prepare_trace is prepare_trace:  # nobody has wrapped ours since
                profiler.profile._prepare_trace, profiler.profile.__exit__ = prepare, leave

        self.release: Callable[[], None] = release


class Region(Protocol):
    """A range inside each recorded step (region.py)."""

    def begin(self) -> None: ...

    def end(self) -> None: ...


class Recorder:
    """Warm up, start, mark steps, stop. Everything happens on the thread that calls."""

    def __init__(self, plan: Plan, script_profiler: ScriptProfiler) -> None:
        self._plan = plan
        self._script = script_profiler
        self._profile: Any = None
        self._step_range: Any = None
        self.region: Region | None = None
        self.started = False

    @property
    def busy(self) -> bool:
        return self._profile is not None

    def warm_up(self) -> None:
        """Make torch's profiler ready (on a GPU this is where CUPTI comes up)."""
        import torch

        if self._script.in_use or torch.autograd._profiler_enabled():
            raise CaptureError(
                "the script runs torch.profiler itself just now, and only one can",
                hint="Capture other steps (--steps A:B), or switch the script's own profiler off.",
            )
        self._profile = torch.profiler._KinetoProfile(
            activities=_activities(self._plan.activities),
            record_shapes=self._plan.record_shapes,
            profile_memory=self._plan.profile_memory,
            with_stack=self._plan.with_stack,
            with_flops=self._plan.with_flops,
            with_modules=self._plan.with_modules,
        )
        self._ours(self._profile.prepare_trace)

    def start(self) -> None:
        self._ours(self._profile.start_trace)
        self.started = True

    def add_metadata(self, key: str, json_text: str) -> None:
        """Write a fact into the trace itself, where a file that is moved away from its manifest keeps it."""
        self._profile.add_metadata_json(key, json_text)

    def begin_step(self, number: int) -> None:
        """torch's own name for a step, so that every tool that reads these traces finds it."""
        from torch.autograd.profiler import record_function

        self._step_range = record_function(f"ProfilerStep#{number}")
        self._step_range.__enter__()
        if self.region is not None:
            self.region.begin()

    def end_step(self) -> None:
        if self._step_range is not None:
            if self.region is not None:
                self.region.end()
            step_range, self._step_range = self._step_range, None
            step_range.__exit__(None, None, None)

    def stop(self) -> Recording:
        """End the recording. Torch post-processes here, with the training thread waiting: this is torch's own
        cost.
        """
        self.end_step()
        profile = self._profile
        began = time.perf_counter_ns()
        self._ours(profile.stop_trace)
        self._profile, self.started = None, False
        results = profile.profiler.kineto_results
        return Recording(results.save, profile, time.perf_counter_ns() - began)

    def abandon(self) -> None:
        """End a recording whose results nobody wants; torch must not be left with a profiler that is on."""
        profile, self._profile, self._step_range = self._profile, None, None
        if profile is None:
            return
        import torch

        try:
            if self.started:
                self._ours(profile.stop_trace)
        finally:
            self.started = False
            if torch.autograd._profiler_enabled():
                torch.autograd._disable_profiler()

    @property
    def script_profiles(self) -> bool:
        """Whether the script's own profiler is on just now."""
        return self._script.in_use

    def release(self) -> None:
        """Nothing will be recorded any more: leave torch as it was found."""
        self._script.release()

    def _ours(self, call: Callable[[], Any]) -> None:
        self._script.ours = True
        try:
            with warnings.catch_warnings():
                # Torch's advice on its profiler's arguments is for us, not for whoever reads the job's output;
                # and under -W error it would be an exception.
                warnings.simplefilter("ignore")
                call()
        finally:
            self._script.ours = False


def _activities(names: tuple[str, ...]) -> Any:
    """None lets torch take all that this machine has."""
    if not names:
        return None
    import torch

    known = torch.profiler.ProfilerActivity.__members__
    return {known[name.upper()] for name in names if name.upper() in known}


def leave_to_the_system(events: object) -> None:
    """Never free a window's events: at the end of a process torch frees them slower than it exports them."""
    if events is not None:
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(events))
