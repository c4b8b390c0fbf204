"""rankscope.profile: torch's profiler for training loops, with the same engine as `rankscope profile`.

with rankscope.profile(model=model) as prof:
    for batch in loader:
        train(batch)
        prof.step()
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rankscope.capture.job_name import script_name
from rankscope.capture.plan import Plan
from rankscope.capture.rank import Identity
from rankscope.capture.rank_files import RankFiles
from rankscope.capture.schedule import RECORD, RECORD_AND_SAVE, Schedule, ScheduleFunction
from rankscope.capture.selector import parse_selector
from rankscope.errors import UsageError
from rankscope.inapp.engine import Engine, current_engine, set_engine
from rankscope.inapp.job_log import JobLog, current_identity
from rankscope.inapp.memory import memory_line
from rankscope.inapp.operator_table import Summary
from rankscope.inapp.train_step_region import DEFAULT_REGION, MemoryMoments, TrainStepRegion
from rankscope.inapp.window_handlers import ChromeTrace, Handler, Recorded, TorchProfile, TraceReady

DEFAULT_FOLDER = "prof"
# Without a schedule torch records from beginning to end.
_EVERYTHING = Schedule(0, 0, 0, sys.maxsize, 1)


def schedule(*, wait: int, warmup: int, active: int, repeat: int = 1, skip_first: int = 0) -> Schedule:
    """As torch.profiler.schedule, except that ``repeat`` defaults to 1; 0 repeats without end."""
    cycle = Schedule(skip_first, wait, warmup, active, repeat)
    cycle.validate()
    return cycle


class profile:  # noqa: N801  (torch.profiler.profile's spelling)
    """torch.profiler.profile for training jobs: in its place it takes the same arguments, records the same and answers
    the same (key_averages, events, export_chrome_trace, …). A failure of the profiler ends the recording, never the
    training.

    folder       for traces and summaries; the profile of an earlier job in it is replaced
    schedule     rankscope.schedule(...), torch.profiler.schedule(...) or any function from a step to a
                 ProfilerAction; None, as in torch, records everything between enter and exit
    ranks        which ranks: "all", "0,8-15", "local:0", or a list of numbers
    handlers     called with each recorded window (default: a Chrome trace and the summaries)
    on_trace_ready  a function for torch.profiler.profile's argument of that name, which writes the trace itself
    name         the first part of the trace's file name (default: the script's name)
    region       the name of the range around forward and backward; None for none
    model        the trained model; for a DeepSpeed engine its flops profile is written
    debug        print on stderr what happens, and the memory in use before and after forward and backward; on stdout
                 the summary
    enabled      False: every method does nothing, so that a loop needs no ``if``
    The other arguments are those of torch.profiler.profile.
    """

    def __init__(
        self,
        folder: str | Path = DEFAULT_FOLDER,
        *,
        schedule: Schedule | Callable[[int], Any] | None = None,
        ranks: str | Iterable[int] = "all",
        handlers: Sequence[Handler] | None = None,
        on_trace_ready: Callable[[Any], object] | None = None,
        name: str | None = None,
        region: str | None = DEFAULT_REGION,
        model: Any = None,
        debug: bool = False,
        enabled: bool = True,
        activities: Iterable[Any] = (),
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        **torch_options: Any,
    ) -> None:
        when = _when(schedule)
        self._torch_options = _checked_options(torch_options)
        self._latest: TorchProfile | None = None
        self._steps = 0
        self.schedule, self.on_trace_ready = schedule, on_trace_ready
        self.record_shapes, self.profile_memory, self.with_stack = record_shapes, profile_memory, with_stack
        self.with_flops, self.with_modules = with_flops, with_modules
        self.activities = set(activities)
        self.enabled = enabled
        self._debug = debug
        self._moments = MemoryMoments(memory_line, self._print_memory) if debug else None
        self._region = region
        self._engine: Engine | None = None
        self._owns_engine = False
        self._flops: Any = None
        self._model = model
        self._everything = schedule is None
        selector = ranks if isinstance(ranks, str) else ",".join(map(str, ranks))
        parse_selector(selector)
        label = name or script_name(sys.argv or ["trace"])
        self._handlers = _handlers(handlers, on_trace_ready, label)
        for handler in self._handlers:
            if debug and isinstance(handler, Summary):
                handler.prints = True
        self._plan = Plan(
            when=when,
            ranks=selector,
            output=str(folder),
            command=tuple(sys.orig_argv),
            activities=tuple(getattr(each, "name", str(each)).lower() for each in self.activities),
            record_shapes=record_shapes,
            profile_memory=profile_memory,
            with_stack=with_stack,
            with_flops=with_flops,
            with_modules=with_modules,
            force=True,
            verbose=debug,
        )

    @property
    def step_number(self) -> int:
        """How many steps have ended."""
        return self._engine.step_number if self._engine is not None else self._steps

    @property
    def step_num(self) -> int:
        """torch's name for it."""
        return self.step_number

    def _remember(self, recorded: Recorded) -> None:
        self._latest = TorchProfile(recorded)

    def __getattr__(self, name: str) -> Any:
        """What torch's profiler object has: of the window that was recorded last."""
        if name.startswith("_"):
            raise AttributeError(name)
        import torch

        if self._latest is None and hasattr(torch.profiler.profile, name):
            raise UsageError(
                f"{name}: nothing has been recorded yet",
                why="It answers about the last recorded window, and none has ended on this rank.",
                hint="Call it after the with block, or in on_trace_ready.",
            )
        if self._latest is None:
            raise AttributeError(f"'profile' has no attribute '{name}'")
        return getattr(self._latest, name)

    @property
    def recording(self) -> bool:
        """Whether the current step is being recorded."""
        return self._engine is not None and self._engine.action in (RECORD, RECORD_AND_SAVE)

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop(f"{kind.__name__} ended the loop" if kind is not None else None)

    def start(self) -> None:
        """The first step begins now. Call it after init_process_group, so that the rank is known."""
        if not self.enabled:
            return
        identity = current_identity()
        selector = parse_selector(self._plan.ranks)
        if not selector.selects(identity):
            self.enabled = False
            if selector.matches_none(identity) and identity.rank == 0:
                JobLog(0).warning(
                    f"ranks {self._plan.ranks} select none of the {identity.world_size} ranks: nothing is recorded"
                )
            return
        self._engine = current_engine()
        if self._engine is None:
            self._engine = self._start_engine(identity)
        else:
            self._engine.stop_counting()
            if identity.rank == 0:  # even with --quiet: the folder named in the code stays empty
                self._engine.log.warning(
                    "`rankscope profile` captures this job already: rankscope.profile in the code only counts steps"
                )
        self._follow_step()
        self._watch_memory(True)

    def step(self) -> None:
        """A training step has ended, the next one begins."""
        if self._engine is None:
            return
        self._watch_memory(False)
        if self._moments is not None:
            self._print_memory("at its end", memory_line())
        self._engine.mark_step()
        self._follow_step()
        self._watch_memory(True)

    def stop(self, why: str | None = None) -> None:
        """The loop is over. ``why`` is the reason why an open window is partial, if it ended by an error."""
        self._watch_memory(False)
        self._steps = self.step_number
        engine, self._engine = self._engine, None
        if engine is None or not self._owns_engine:
            return
        if self._flops is not None:
            _attempt(engine.log, "DeepSpeed's flops profile", self._flops.end)
        if why is None and not self._everything:
            why = "the loop ended in the window"
        set_engine(None)
        _attempt(engine.log, "ending the capture", lambda: engine.finish(why, process_ends=False))
        engine.release()
        for handler in self._handlers:
            _attempt(engine.log, type(handler).__name__, getattr(handler, "close", lambda: None))

    def _start_engine(self, identity: Identity) -> Engine:
        log = JobLog(identity.rank, verbose=self._debug)
        files = RankFiles(self._plan, identity, os.environ)
        # Without handlers the engine writes the window itself.
        handlers = [*self._handlers, self._remember] if self._handlers else []
        engine = Engine(self._plan, files, log, handlers)
        engine.use_torch_options(self._torch_options)
        if self._region is not None:
            engine.mark_region(TrainStepRegion(self._region))
        set_engine(engine)
        self._owns_engine = True
        self._flops = _flops_profile(self._model, files.folder, identity.rank, self._handlers)
        engine.begin()
        return engine

    def _watch_memory(self, on: bool) -> None:
        """Hooked inside the region's hooks: both replace torch.autograd.backward, the last one first."""
        if self._moments is not None and self._engine is not None:
            watch = self._moments.begin if on else self._moments.end
            _attempt(self._engine.log, "watching the memory", watch)

    def _print_memory(self, moment: str, text: str) -> None:
        if self._engine is not None:
            self._engine.log.info(f"step {self._engine.step_number} {moment}: {text}")

    def _follow_step(self) -> None:
        """Start or end DeepSpeed's flops profiler. It slows its step down, so it gets the warm-up step."""
        if self._flops is not None and self._engine is not None:
            action = self._engine.action
            _attempt(self._engine.log, "DeepSpeed's flops profile", lambda: self._flops.follow(action))


def _attempt(log: JobLog, what: str, action: Callable[[], object]) -> None:
    """Run code that may fail without ending the training."""
    try:
        action()
    except Exception as error:  # noqa: BLE001  (the job must go on)
        log.warning(f"{what} failed, the job goes on: {type(error).__name__}: {error}")


def _checked_options(options: dict[str, Any]) -> dict[str, Any]:
    """Further arguments of torch.profiler.profile, of the installed torch."""
    if not options:
        return {}
    import inspect

    import torch

    unknown = set(options) - set(inspect.signature(torch.profiler.profile.__init__).parameters)
    if unknown:
        raise TypeError(f"profile() got an unexpected keyword argument '{min(unknown)}'")
    return options


def _when(given: Schedule | Callable[[int], Any] | None) -> Schedule | ScheduleFunction:
    if given is None:
        return _EVERYTHING
    if isinstance(given, Schedule):
        given.validate()
        return given
    if not callable(given):
        raise UsageError(
            f"schedule={given!r} is not a schedule",
            why="It is neither rankscope's nor a function from a step to a torch.profiler.ProfilerAction.",
            hint="Write rankscope.schedule(wait=1, warmup=1, active=3): the arguments are torch's.",
        )
    return ScheduleFunction(given)


def _handlers(
    given: Sequence[Handler] | None, on_trace_ready: Callable[[Any], object] | None, label: str
) -> list[Handler]:
    if on_trace_ready is None:
        return list(given) if given is not None else [ChromeTrace(label), Summary()]
    if not callable(on_trace_ready):
        raise UsageError(
            f"on_trace_ready={on_trace_ready!r} cannot be called",
            why="It is called with torch's profiler object after each recorded window.",
            hint="For example: on_trace_ready=torch.profiler.tensorboard_trace_handler('tb')",
        )
    return [*(given if given is not None else [Summary()]), TraceReady(on_trace_ready)]


def _flops_profile(model: Any, folder: Path, rank: int, handlers: Sequence[Handler]) -> Any:
    from rankscope.inapp.deepspeed_flops import FlopsProfile, is_deepspeed_engine

    if model is None or not is_deepspeed_engine(model):
        return None
    for handler in handlers:
        if isinstance(handler, Summary):
            handler.deepspeed = True
    return FlopsProfile(model, folder) if rank == 0 else None
