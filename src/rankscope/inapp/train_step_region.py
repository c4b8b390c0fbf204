"""A range around forward and backward in each recorded step, without a change to the training loop.

It begins with the first module forward that runs with gradients enabled, and ends when the backward that follows
returns; with gradient accumulation there is one range per micro-batch. torch is hooked only while a step is recorded.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

DEFAULT_REGION = "train_step"


class TrainStepRegion:
    """``begin`` and ``end`` are called with each recorded step, on the training thread."""

    def __init__(self, name: str = DEFAULT_REGION) -> None:
        self.name = name
        self._range: Any = None
        self._thread = 0
        self._depth = 0
        self._forward_hook: Any = None
        self._backward: Any = None

    def begin(self) -> None:
        """A recorded step begins: hook forward and backward."""
        import torch

        self._thread = threading.get_ident()
        self._depth = 0
        self._watch_forward()
        self._backward = torch.autograd.backward
        torch.autograd.backward = self._watched(self._backward)

    def end(self) -> None:
        """The step has ended: close an open range and remove the hooks."""
        import torch

        self._close()
        self._unwatch_forward()
        if self._backward is not None:
            torch.autograd.backward = self._backward
            self._backward = None

    def _watch_forward(self) -> None:
        from torch.nn.modules.module import register_module_forward_pre_hook

        if self._forward_hook is None:
            self._forward_hook = register_module_forward_pre_hook(self._before_forward)

    def _unwatch_forward(self) -> None:
        if self._forward_hook is not None:
            self._forward_hook.remove()
            self._forward_hook = None

    def _before_forward(self, _module: Any, _inputs: Any) -> None:
        import torch

        if threading.get_ident() != self._thread or not torch.is_grad_enabled():
            return  # evaluation, or the model of another thread
        self._unwatch_forward()
        self._range = torch.autograd.profiler.record_function(self.name)
        self._range.__enter__()

    def _watched(self, backward: Any) -> Any:
        @functools.wraps(backward)
        def watched_backward(*args: Any, **kwargs: Any) -> Any:
            mine = threading.get_ident() == self._thread
            self._depth += mine  # activation checkpointing runs a backward inside the backward
            try:
                return backward(*args, **kwargs)
            finally:
                self._depth -= mine
                if mine and self._depth == 0:
                    self._close()
                    if self._backward is not None:
                        self._watch_forward()

        return watched_backward

    def _close(self) -> None:
        if self._range is not None:
            opened, self._range = self._range, None
            opened.__exit__(None, None, None)
