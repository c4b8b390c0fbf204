"""What the training thread does in each step, from hooks that cost some microseconds per step.

torch's optimizer, backward, DataLoader and waits for collectives are hooked, and Python's garbage collector. On a GPU
two spans of each step are marked with CUDA events, which another thread reads later: nothing here synchronises.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import get_ident
from time import perf_counter_ns, process_time_ns
from typing import Any, NamedTuple

from rankscope.capture.telemetry_ring import NONE, PHASES
from rankscope.host import resident_bytes
from rankscope.inapp.import_hooks import after_import
from rankscope.inapp.job_log import joined_distributed

TRAINING, DATA, BACKWARD, OPTIMIZER, COLLECTIVE = map(
    PHASES.index, ("training", "data loading", "backward", "optimizer", "collective")
)
# Steps that wait to be written; more are forgotten, the oldest first.
MOST_STEPS = 4096
# Steps in which the hooks measure themselves. The first ones import, compile and allocate.
FIRST_MEASURED, MEASURED_EVERY = 5, 8
# Reading the memory in use takes longer than the rest of a step's end.
MEMORY_EVERY_NS = 250_000_000
# The places of a step's CUDA events.
BEGIN, FORWARD_END, OPTIMIZER_BEGIN, OPTIMIZER_END = range(4)
_TRACE_RULES, _LOADER = "torch._dynamo.trace_rules", "torch.utils.data.dataloader"
# Modules with code that runs in each step.
_IN_EACH_STEP = ("step_figures", "step_counter", "engine", "windows", "collective_calls")
_COMPILED_BACKWARD = "torch._dynamo.compiled_autograd"


class StepFigures(NamedTuple):
    """One step as the training thread saw it. Times in ns; ``began`` and ``ended`` on the clock of perf_counter_ns."""

    number: int
    began: int
    ended: int
    wait_ns: int
    first_wait: int
    """When the first wait for a collective began; 0 where there was none."""
    data_ns: int
    optimizer_ns: int
    forward_ns: int
    cpu_ns: int
    run_delay_ns: int
    gc_ns: int
    hook_ns: int
    """What the hooks of the telemetry took; NONE in steps in which they do not measure themselves."""
    memory_bytes: int
    marks: Sequence[Any]
    """CUDA events at BEGIN, FORWARD_END (where backward begins), OPTIMIZER_BEGIN and OPTIMIZER_END; None without."""
    profiled: bool


class StepClock:
    """Hooks torch from its making until ``off``. Everything but ``done`` belongs to the training thread."""

    def __init__(self) -> None:
        import torch

        self.done: deque[StepFigures] = deque(maxlen=MOST_STEPS)
        """Steps that have ended; another thread takes them from the left."""
        self.phase = (PHASES.index("starting"), perf_counter_ns())
        """What the training thread does, and since when."""
        self.free_marks: deque[Any] = deque()
        """CUDA events that have been read."""
        self.measures = False
        """Whether the hooks of this step measure themselves: one in MEASURED_EVERY steps, as that costs as well."""
        self._hook_ns = 0
        self._entry_ns = _entry_ns()
        self._memory, self._memory_due = NONE, 0
        self._is_distributed = False
        self._in_backward = False
        self._waited = False
        self._computed = 0
        self._autograd = torch.autograd
        self._collecting = perf_counter_ns()
        self._optimizer_began = 0
        self._cuda: Any = None
        self._c: Any = torch._C
        self._stream: tuple[Any, Any] = None, None
        self._may_use_cuda = bool(torch.backends.cuda.is_built())
        self._marks: list[Any] = [None] * 4
        self._began = perf_counter_ns()
        self._cpu = process_time_ns()
        self._schedstat = -1
        """A descriptor."""
        self._delay = NONE
        self._reset()
        self._undo: list[Callable[[], object]] = []
        after_import(_TRACE_RULES, _leave_us_untraced)
        self.on()

    def step_ended(self, number: int, profiled: bool) -> None:
        """The step of this number ends now, on this thread."""
        now, cpu, delay = perf_counter_ns(), process_time_ns(), self._run_delay()
        if now >= self._memory_due:
            self._memory, self._memory_due = _memory_in_use(), now + MEMORY_EVERY_NS
        self.done.append(
            StepFigures(
                number,
                self._began,
                now,
                self._wait_ns,
                self._first_wait,
                self._data_ns,
                self._optimizer_ns,
                self._forward_ns,
                cpu - self._cpu,
                NONE if NONE in (delay, self._delay) else delay - self._delay,
                self._gc_ns,
                self._hook_ns if self.measures else NONE,
                self._memory,
                self._marks,
                profiled,
            )
        )
        if get_ident() != self._thread:
            delay = self._follow_this_thread()
        self._began, self._cpu, self._delay = now, cpu, delay
        self.phase = (TRAINING, now)
        self.measures = (number + 1) % MEASURED_EVERY == FIRST_MEASURED
        self._reset()

    def off(self) -> None:
        """Leave torch as it was found."""
        for undo in self._undo:
            undo()
        self._undo.clear()

    def _follow_this_thread(self) -> int:
        """It is the training thread; how long it has waited for a core until now."""
        self._thread = get_ident()
        self._forget_thread()
        with suppress(OSError):
            self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
            self._opened = os.fstat(self._schedstat)
        return self._run_delay()

    def _forget_thread(self) -> None:
        with suppress(OSError):
            # A job that closes all descriptors may have a file of its own there now.
            if os.path.samestat(os.fstat(self._schedstat), self._opened):
                os.close(self._schedstat)
        self._schedstat = -1

    def _run_delay(self) -> int:
        """Since the thread began; NONE where Linux does not say."""
        try:
            cpu_ns, delay_ns, _ = os.pread(self._schedstat, 64, 0).split()
        except (OSError, ValueError):
            return NONE
        return int(delay_ns) if cpu_ns != b"0" else NONE

    def _reset(self) -> None:
        self._wait_ns = self._first_wait = self._data_ns = self._optimizer_ns = self._gc_ns = (
            self._hook_ns
        ) = 0
        self._forward_ns = NONE
        self._is_distributed = self._is_distributed or joined_distributed() is not None
        if self._cuda is None and self._may_use_cuda:
            self._cuda = _initialized_cuda()
        if self._cuda is not None:
            self._marks = [None] * 4
            self._mark(BEGIN)

    def spent(self, began: int) -> None:
        """A hook that began then ends now. What it takes to enter it is added."""
        self._hook_ns += perf_counter_ns() - began + self._entry_ns

    # -- the GPU

    def _mark(self, moment: int) -> None:
        """Record a CUDA event; a second one at the same moment replaces the first."""
        cuda = self._cuda
        if len(self.done) == MOST_STEPS or cuda.is_current_stream_capturing():
            return
        mark = self._marks[moment] or (
            self.free_marks.popleft() if self.free_marks else cuda.Event(enable_timing=True)
        )
        mark.record(self._current_stream())
        self._marks[moment] = mark

    def _current_stream(self) -> Any:
        """torch.cuda.current_stream(), which makes an object each time: 26 µs in a step of an H200, 8 to record."""
        device = self._c._cuda_getDevice()
        current = device, self._c._cuda_getCurrentRawStream(device)
        if current != self._stream[0]:
            self._stream = current, self._cuda.current_stream()
        return self._stream[1]

    # -- hooks

    def on(self) -> None:
        """Hook torch, until ``off``."""
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        self._delay = self._follow_this_thread()
        self._undo.append(self._forget_thread)
        before, after = self._optimizer_hooks()
        self._undo.append(register_optimizer_step_pre_hook(before).remove)
        self._undo.append(register_optimizer_step_post_hook(after).remove)
        gc.callbacks.append(self._collected)
        self._undo.append(lambda: gc.callbacks.remove(self._collected))
        import torch

        self._replace(torch.autograd, "backward", self._timed_backward)
        after_import(
            _LOADER,
            lambda: self._replace(sys.modules[_LOADER]._BaseDataLoaderIter, "__next__", self._timed_next),
        )
        if torch.distributed.is_available():
            # Not torch.distributed's functions: torch.compile recognises them by identity.
            self._replace(torch._C._distributed_c10d.Work, "wait", self._timed_wait)

    def _replace(self, owner: Any, name: str, timed: Callable[[Any], Any]) -> None:
        self._undo.append(replace_function(owner, name, timed))

    def _optimizer_hooks(self) -> tuple[Any, Any]:
        def before(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if get_ident() == self._thread:
                now = self._optimizer_began = perf_counter_ns()
                self.phase = (OPTIMIZER, now)
                if self._cuda is not None and self._marks[OPTIMIZER_BEGIN] is None:
                    self._mark(OPTIMIZER_BEGIN)
                if self.measures:
                    self.spent(now)

        def after(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if self._optimizer_began and get_ident() == self._thread:
                now = perf_counter_ns()
                self._optimizer_ns += now - self._optimizer_began
                self._optimizer_began = 0
                self.phase = (TRAINING, now)
                if self._cuda is not None:
                    self._mark(OPTIMIZER_END)
                if self.measures:
                    self.spent(now)

        return _not_traced(before), _not_traced(after)

    def _collected(self, phase: str, _info: dict[str, int]) -> None:
        """Garbage is collected: on any thread, and all of them stand still."""
        now = perf_counter_ns()
        if phase == "start":
            self._collecting = now
        else:
            self._gc_ns += now - self._collecting
        if self.measures:
            self.spent(now)

    def _timed_backward(self, backward: Any) -> Any:
        def timed_backward(*args: Any, **kwargs: Any) -> Any:
            # Activation checkpointing runs a backward inside the backward.
            if self._in_backward or get_ident() != self._thread:
                return backward(*args, **kwargs)
            began = perf_counter_ns()
            if self._forward_ns == NONE:
                self._forward_ns = began - self._began
                if self._cuda is not None:
                    self._mark(FORWARD_END)
            self.phase = (BACKWARD, began)
            self._in_backward, self._waited, self._computed = True, False, 0
            hook = None
            if self._is_distributed and self._cuda is None:
                hook = self._note_end_of_computing(args[0] if args else kwargs.get("tensors"))
            if self.measures:
                self.spent(began)
            try:
                return backward(*args, **kwargs)
            except BaseException as error:
                leave_out_this_frame(error)
                raise
            finally:
                now = perf_counter_ns()
                self._in_backward = False
                if hook is not None:  # the script may keep the graph
                    hook.remove()
                if self._computed and not self._waited:
                    self._wait_ns += now - self._computed
                    self._first_wait = self._first_wait or self._computed
                self.phase = (TRAINING, now)
                if self.measures:
                    self.spent(now)

        return timed_backward

    def _note_end_of_computing(self, tensors: Any) -> Any:
        """The hook that does so, None without one.

        Backward runs callbacks at its end, in the order in which they were queued. Ours is queued first; that of
        DistributedDataParallel, queued with its last bucket, waits in C++ for the collectives of all buckets."""
        if getattr(sys.modules.get(_COMPILED_BACKWARD), "compiled_autograd_enabled", False):
            return None
        root = tensors[0] if isinstance(tensors, Sequence) and tensors else tensors
        node = getattr(root, "grad_fn", None)
        return None if node is None else node.register_prehook(self._queue_note)

    def _queue_note(self, _gradients: Any) -> None:
        self._autograd.Variable._execution_engine.queue_callback(self._computing_ended)

    def _computing_ended(self) -> None:
        self._computed = perf_counter_ns()

    def _timed_wait(self, wait: Any) -> Any:
        def timed_wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            # In backward, autograd's own threads run the hooks, and the training thread waits for them.
            if not self._in_backward and get_ident() != self._thread:
                return wait(work, *args, **kwargs)
            began = perf_counter_ns()
            before, self.phase = self.phase, (COLLECTIVE, began)
            self._first_wait = self._first_wait or began
            self._waited = True
            if self.measures:
                self.spent(began)
            try:
                return wait(work, *args, **kwargs)
            except BaseException as error:
                leave_out_this_frame(error)
                raise
            finally:
                now = perf_counter_ns()
                self._wait_ns += now - began
                self.phase = before
                if self.measures:
                    self.spent(now)

        return timed_wait

    def _timed_next(self, following: Any) -> Any:
        def timed_next(loader: Any) -> Any:
            if get_ident() != self._thread:
                return following(loader)
            began = perf_counter_ns()
            self.phase = (DATA, began)
            if self.measures:
                self.spent(began)
            try:
                return following(loader)
            except BaseException as error:
                leave_out_this_frame(error)
                raise
            finally:
                now = perf_counter_ns()
                self._data_ns += now - began
                self.phase = (TRAINING, now)
                if self.measures:
                    self.spent(now)

        return timed_next


def replace_function(owner: Any, name: str, around: Callable[[Any], Any]) -> Callable[[], None]:
    """Replace a function of a class or module by ``around`` it; what is returned undoes that."""
    attribute = vars(owner)[name]  # of pybind's classes, what getattr returns would not be a method again
    original = getattr(owner, name)
    ours = _not_traced(functools.wraps(original)(around(original)))
    setattr(owner, name, ours)

    def undo() -> None:
        if vars(owner)[name] is ours:  # not wrapped again since
            setattr(owner, name, attribute)

    return undo


def leave_out_this_frame(error: BaseException) -> None:
    """Called by a hook that lets this exception pass: the job's traceback is as without us, from Python 3.11 on."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def _entry_ns() -> int:
    """What a hook takes outside the times that it reads itself: the call, and the clock."""

    def hook(*_args: Any, **_kwargs: Any) -> int:
        return perf_counter_ns()

    rounds = []
    for _ in range(20):
        began = perf_counter_ns()
        for _ in range(20):
            hook(None)
        rounds.append((perf_counter_ns() - began) // 20)
    return min(rounds)


def _not_traced(function: Any) -> Any:
    """As torch.compiler.disable, which would import dynamo: torch.compile must call it, not trace it."""
    function._torchdynamo_disable = True
    return function


def _leave_us_untraced() -> None:
    """A hook that is called where torch.compile has broken its graph would be compiled on its own, with warnings."""
    add = getattr(sys.modules[_TRACE_RULES], "add", None)
    if add is not None:
        for module in _IN_EACH_STEP:
            add(f"rankscope.inapp.{module}")


def _initialized_cuda() -> Any:
    """torch.cuda, once the script has used it in this process."""
    cuda = sys.modules.get("torch.cuda")
    return cuda if cuda is not None and cuda.is_initialized() else None


def _memory_in_use() -> int:
    """Bytes: allocated on the GPU, else resident on the host."""
    cuda = _initialized_cuda()
    size = resident_bytes() if cuda is None else int(cuda.memory_allocated())
    return NONE if size is None else size
