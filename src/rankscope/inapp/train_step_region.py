"""Forward and backward of a training step, found without a change to the training loop.

Forward begins with the first module that runs with gradients enabled; backward is the call that follows. With gradient
accumulation both come once per micro-batch. torch is hooked only between ``begin`` and ``end``, on one thread.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from rankscope.inapp.step_figures import leave_out_this_frame

DEFAULT_REGION = "train_step"


class ForwardBackward:
    """``begin`` and ``end`` are called with each step, on the training thread; subclasses do something in between."""

    def __init__(self) -> None:
        self._thread = 0
        self._depth = 0
        self._forward_hook: Any = None
        self._backward: Any = None
        self._watching: Any = None

    def begin(self) -> None:
        """A step begins: hook forward and backward."""
        import torch

        self._thread = threading.get_ident()
        self._depth = 0
        self._watch_forward()
        self._backward = torch.autograd.backward
        self._watching = torch.autograd.backward = self._watched(self._backward)

    def end(self) -> None:
        """The step has ended: remove the hooks."""
        import torch

        self._unwatch_forward()
        if self._backward is not None:
            if torch.autograd.backward is self._watching:  # else the script has wrapped it since
                torch.autograd.backward = self._backward
            self._backward = None

    def forward_begins(self, module: Any) -> None:
        """Not called again before the next backward has ended, unless ``_watch_forward`` asks for it."""

    def backward_begins(self) -> None: ...

    def backward_ended(self) -> None: ...

    def _watch_forward(self) -> None:
        from torch.nn.modules.module import register_module_forward_pre_hook

        if self._forward_hook is None:
            self._forward_hook = register_module_forward_pre_hook(self._before_forward)

    def _unwatch_forward(self) -> None:
        if self._forward_hook is not None:
            self._forward_hook.remove()
            self._forward_hook = None

    def _before_forward(self, module: Any, _inputs: Any) -> None:
        import torch

        if threading.get_ident() != self._thread or not torch.is_grad_enabled():
            return  # evaluation, or the model of another thread
        self._unwatch_forward()
        self.forward_begins(module)

    def _watched(self, backward: Any) -> Any:
        @functools.wraps(backward)
        def watched_backward(*args: Any, **kwargs: Any) -> Any:
            mine = threading.get_ident() == self._thread and self._backward is not None
            if mine and self._depth == 0:
                self.backward_begins()
            self._depth += mine  # activation checkpointing runs a backward inside the backward
            try:
                return backward(*args, **kwargs)
            except BaseException as error:
                leave_out_this_frame(error)
                raise
            finally:
                self._depth -= mine
                if mine and self._depth == 0:
                    self.backward_ended()
                    if self._backward is not None:
                        self._watch_forward()

        return watched_backward


class TrainStepRegion(ForwardBackward):
    """A range around forward and backward in each recorded step."""

    def __init__(self, name: str = DEFAULT_REGION) -> None:
        super().__init__()
        self.name = name
        self._range: Any = None

    def end(self) -> None:
        self.backward_ended()
        super().end()

    def forward_begins(self, _module: Any) -> None:
        import torch

        self._range = torch.autograd.profiler.record_function(self.name)
        self._range.__enter__()

    def backward_ended(self) -> None:
        if self._range is not None:
            opened, self._range = self._range, None
            opened.__exit__(None, None, None)


class MemoryMoments(ForwardBackward):
    """Reports the memory in use before and after forward and before and after backward."""

    def __init__(self, read: Callable[[], str], report: Callable[[str, str], None]) -> None:
        """``read`` returns the memory as text; ``report`` gets the moment and the text."""
        super().__init__()
        self._read = read
        self._report = report
        self._began = False
        self._after_forward: str | None = None
        self._module_hook: Any = None

    def begin(self) -> None:
        self._began, self._after_forward = False, None
        super().begin()

    def end(self) -> None:
        self._forward_is_over()
        self._remove_module_hook()
        super().end()

    def forward_begins(self, module: Any) -> None:
        """The hook at its end is on this module only: a global one would be traced by torch.compile."""
        if not self._began:
            self._began = True
            self._report("before forward", self._read())
        self._module_hook = module.register_forward_hook(self._module_ended)

    def backward_begins(self) -> None:
        self._forward_is_over()
        self._report("before backward", self._read())

    def backward_ended(self) -> None:
        self._report("after backward", self._read())

    def _module_ended(self, *_: Any) -> None:
        """Of several modules in a row, such as the model and the loss, the last one ends forward."""
        self._remove_module_hook()
        self._after_forward = self._read()
        self._watch_forward()

    def _forward_is_over(self) -> None:
        if self._after_forward is not None:
            self._report("after forward", self._after_forward)
        self._began, self._after_forward = False, None

    def _remove_module_hook(self) -> None:
        if self._module_hook is not None:
            self._module_hook.remove()
            self._module_hook = None
