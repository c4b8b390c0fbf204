"""torch's profiler, one recording at a time, without conflict with a profiler that the script runs itself."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from rankscope.capture.plan import Plan
from rankscope.capture.schedule import unfinished_step
from rankscope.errors import CaptureError
from rankscope.inapp.pause_warning import PauseWarning


class Recording(NamedTuple):
    """A stopped profiler."""

    save: Callable[[str], object]
    """Kineto's export to a file."""
    events: object
    """torch's profile object, or None."""
    stop_ns: int
    """How long stopping it held the training thread."""
    paused: Callable[[int], object] = lambda _ns: None
    """Called with the whole pause of training, stop and export."""


class ScriptProfiler:
    """Tracks whether the script runs torch.profiler itself; calls ``before_start`` before it starts.

    The second Kineto session in a process raises an error where it is started; that must not be the script.
    """

    def __init__(self, before_start: Callable[[], None]) -> None:
        import torch
        import torch.autograd.profiler as profiler

        self.in_use = False
        self.ours = False
        self._scheduled: Any = None
        self._originals: list[tuple[Any, str, Any, Any]] = []

        def prepare(_profile: Any) -> None:
            before_start()
            self.in_use = True

        self._call_before(profiler.profile, "_prepare_trace", prepare)
        self._call_before(profiler.profile, "__exit__", lambda _: setattr(self, "in_use", False))
        scheduled = torch.profiler.profile
        self._call_before(scheduled, "start", lambda profile: setattr(self, "_scheduled", profile))
        self._call_before(scheduled, "stop", lambda _: setattr(self, "_scheduled", None))

    def _call_before(self, owner: Any, name: str, notice: Callable[[Any], None]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def method(profile: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.ours:
                notice(profile)
            return original(profile, *args, **kwargs)

        setattr(owner, name, method)
        self._originals.append((owner, name, original, method))

    def runs_within(self, steps: int) -> bool:
        """Whether it runs now, or will by its schedule before so many steps have ended."""
        profile = self._scheduled
        return self.in_use or (
            profile is not None
            and any(profile.schedule(profile.step_num + ahead).value for ahead in range(steps + 1))
        )

    def release(self) -> None:
        """Leave torch as it was found."""
        for owner, name, original, method in self._originals:
            if getattr(owner, name) is method:  # not wrapped again since
                setattr(owner, name, original)


class Region(Protocol):
    """A range inside each recorded step (train_step_region.py)."""

    def begin(self) -> None: ...

    def end(self) -> None: ...


class TorchRecorder:
    """Warm up, start, mark steps, stop. Everything runs on the calling thread."""

    def __init__(
        self, plan: Plan, script_profiler: ScriptProfiler, pause: PauseWarning, say: Callable[[str], None]
    ) -> None:
        self._plan = plan
        self._say = say
        self._pause = pause
        self._script = script_profiler
        self._profile: Any = None
        self._step_range: Any = None
        self._step_number = 0
        self.region: Region | None = None
        self.options: dict[str, Any] = {}
        self.started = False
        self.has_stacks = False
        """Whether torch records Python's functions."""
        self.saves_at_sigterm = True
        self._leave_child: Callable[[], None] | None = None

    @property
    def busy(self) -> bool:
        return self._profile is not None

    def warm_up(self) -> None:
        """Prepare torch's profiler; on a GPU this starts CUPTI."""
        import torch

        self._leave_child = self._leave_child or _leave_kineto()
        if self._script.in_use or torch.autograd._profiler_enabled():
            raise CaptureError(
                "the script runs torch.profiler itself, and only one profiler can run",
                hint="Capture other steps (--steps A:B), or turn off the script's own profiler.",
            )
        # torch's stacks take the place of a function of sys.setprofile, on every thread
        stacks = sys.getprofile() is None and threading.getprofile() is None
        wanted = self._plan.with_stack or self._plan.with_modules
        self.has_stacks = stacks and wanted
        if wanted and not stacks:
            self._say(
                "no stacks are recorded: the script runs a Python profiler of its own (cProfile, sys.setprofile)"
            )
        self._profile = torch.profiler._KinetoProfile(
            activities=_activities(self._plan.activities),
            record_shapes=self._plan.record_shapes,
            profile_memory=self._plan.profile_memory,
            with_stack=self._plan.with_stack and stacks,
            with_flops=self._plan.with_flops,
            with_modules=self._plan.with_modules and stacks,
            **_known_options(self.options),
        )
        self._ours(self._profile.prepare_trace)

    def start(self) -> None:
        self._ours(self._profile.start_trace)
        self.started = True
        self._pause.started()

    def add_metadata(self, key: str, json_text: str) -> None:
        """Write it into the trace, so that a file without its manifest still has it."""
        self._profile.add_metadata_json(key, json_text)

    def begin_step(self, number: int) -> None:
        """Named as torch names a step, so that every tool that reads the trace finds it."""
        from torch.autograd.profiler import record_function

        self._pause.step()
        self._step_number = number
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

    def mark_unfinished(self) -> None:
        """The recording ends in this step, which torch would show as one of the others."""
        from torch.autograd.profiler import record_function

        if self._step_range is not None:
            with record_function(unfinished_step(self._step_number)):
                pass

    def stop(self) -> Recording:
        """End the recording. torch post-processes here while the training thread waits."""
        self.end_step()
        profile = self._profile
        self._pause.check()
        began = time.perf_counter_ns()
        # acc_events reads the events at once: what it cannot read, as below, is recorded nevertheless.
        with contextlib.suppress(UnicodeDecodeError):
            self._ours(profile.stop_trace)
        took = time.perf_counter_ns() - began
        self._profile, self.started = None, False
        results = profile.profiler.kineto_results
        if self.has_stacks:
            profile.profiler.kineto_results = _ReadableNames(results)
        return Recording(results.save, profile, took, self._pause.ended)

    def abandon(self) -> None:
        """End a recording without keeping it; torch's profiler must not stay on."""
        profile, self._profile, self._step_range = self._profile, None, None
        if profile is None:
            return
        import torch

        try:
            if not self.started:  # as torch leaves a warm-up; ending it at once prints a line
                self._ours(profile.start_trace)
            self._ours(profile.stop_trace)
        finally:
            self.started = False
            if torch.autograd._profiler_enabled():
                torch.autograd._disable_profiler()

    def forked(self) -> None:
        """In a forked child: it is not recorded, and Kineto does not hold its end."""
        if self._leave_child is None:
            return
        self._leave_child()
        if self._profile is not None:
            import torch

            torch.autograd._enable_record_function(False)

    def script_profiles(self, steps: int) -> bool:
        """Whether the script's own profiler runs within so many steps."""
        return self._script.runs_within(steps)

    def release(self) -> None:
        """No more recordings: leave torch as it was found."""
        self._script.release()

    def _ours(self, call: Callable[[], Any]) -> None:
        """Call torch's profiler. What the script has begun to profile its Python with goes on."""
        self._script.ours = True
        scripts = sys.getprofile()
        if type(scripts).__name__ == "TraceContext":  # torch's own
            scripts = None
        try:
            with warnings.catch_warnings():
                # torch warns about profiler arguments that the job did not choose; under -W error it would raise.
                warnings.simplefilter("ignore")
                call()
        finally:
            self._script.ours = False
            if scripts is not sys.getprofile() and scripts is not None:
                getattr(scripts, "enable", lambda: sys.setprofile(scripts))()  # cProfile's is an object


class _ReadableNames:
    """Kineto's results, or an event of theirs. torch 2.13 names a Python function that was freed in the window (the
    code of a module, say) by bytes of freed memory, which are no text."""

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def events(self) -> list[_ReadableNames]:
        return [_ReadableNames(event) for event in self._wrapped.events()]

    def name(self) -> str:
        try:
            return str(self._wrapped.name())
        except UnicodeDecodeError as error:
            return error.object.decode("utf-8", "replace")


def _known_options(options: dict[str, Any]) -> dict[str, Any]:
    """Those that this torch's profiler takes: its schedule and what it does with windows are ours."""
    import inspect

    import torch

    names = inspect.signature(torch.profiler._KinetoProfile.__init__).parameters if options else ()
    return {name: value for name, value in options.items() if name in names}


def _activities(names: tuple[str, ...]) -> Any:
    """None lets torch record every activity that this machine supports."""
    if not names:
        return None
    import torch

    members = torch.profiler.ProfilerActivity.__members__
    return {members[name.upper()] for name in names if name.upper() in members}


def never_free(events: object) -> None:
    """Leave a window's events to the end of the process: torch takes longer to free them than to export them."""
    if events is not None:
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(events))


def _leave_kineto() -> Callable[[], None]:
    """For forked children of a process that has used Kineto: a function that makes their exit skip C++ destructors.

    Kineto's waits for a thread that does not exist in the child, for ever. The child flushes C's streams and ends.
    """
    import ctypes

    libc = ctypes.CDLL(None)
    if not hasattr(libc, "on_exit"):  # only glibc has it
        return lambda: None

    def leave() -> None:
        # The last that is registered is called first; each gets its argument or the exit status.
        libc.on_exit(libc._exit, None)
        libc.__cxa_atexit(libc.fflush, None, None)

    return leave
