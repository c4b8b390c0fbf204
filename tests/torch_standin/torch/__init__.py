"""A stand-in for torch in tests of processes: it is imported in milliseconds, where torch takes seconds of CPU time.

It has what capture hooks (optimizer steps, the profiler, a process group that never forms) and what train.py calls. Its
profiler records the ranges of `record_function` and of optimizers, and writes them as a small Kineto trace. Tests of
what torch itself does use torch.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

__version__ = "2.13.0+standin"


def _module(name: str, **content: Any) -> Any:
    """A submodule, `import torch.NAME` included."""
    module: Any = ModuleType(f"{__name__}.{name}")
    module.__dict__.update(content, __path__=[])
    sys.modules[module.__name__] = module
    parent, _, last = module.__name__.rpartition(".")
    setattr(sys.modules[parent], last, module)
    return module


# -- the profiler

_recording: _Profile | None = None


def _now_us() -> float:
    return time.time_ns() / 1000


class record_function:  # noqa: N801  (torch's name)
    def __init__(self, name: str, category: str = "user_annotation") -> None:
        self._name, self._category, self._began = name, category, 0.0

    def __enter__(self) -> record_function:
        self._began = _now_us()
        return self

    def __exit__(self, *_: object) -> None:
        if _recording is not None:
            _recording.add(self._name, self._category, self._began, _now_us())


class _Profile:
    """torch.autograd.profiler.profile; also its `kineto_results`."""

    def __init__(self, *, with_stack: bool = False) -> None:
        self.events: list[dict[str, Any]] = []
        self.metadata: dict[str, str] = {}
        self._with_stack = with_stack
        self.kineto_results = self

    def _prepare_trace(self) -> None:
        pass

    def _start_trace(self) -> None:
        global _recording
        _recording = self

    def __enter__(self) -> _Profile:
        self._prepare_trace()
        self._start_trace()
        return self

    def __exit__(self, *_: object) -> None:
        global _recording
        _recording = None

    def add(self, name: str, category: str, began: float, ended: float) -> None:
        pid, thread = os.getpid(), threading.get_native_id()
        event = {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": pid,
            "tid": thread,
            "ts": began,
            "dur": ended - began,
        }
        self.events.append(event)
        if self._with_stack:  # names that do not compress
            frames = [f"{os.urandom(16).hex()}.py(1): f" for _ in range(500)]
            self.events += [{**event, "cat": "python_function", "name": frame} for frame in frames]

    def save(self, path: str) -> None:
        header = {
            "schemaVersion": 1,
            "distributedInfo": {},
            **{key: json.loads(text) for key, text in self.metadata.items()},
        }
        with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(f'{json.dumps(header)[:-1]}, "traceEvents": [\n')
            file.write(",\n".join(json.dumps(event) for event in self.events))
            file.write('\n], "traceName": "standin"}\n')


class _KinetoProfile:
    def __init__(self, *, with_stack: bool = False, **_: object) -> None:
        self.profiler = _Profile(with_stack=with_stack)

    def prepare_trace(self) -> None:
        self.profiler._prepare_trace()

    def start_trace(self) -> None:
        self.profiler._start_trace()

    def stop_trace(self) -> None:
        self.profiler.__exit__(None, None, None)

    def add_metadata_json(self, key: str, text: str) -> None:
        self.profiler.metadata[key] = text


class _ScheduledProfile(_KinetoProfile):
    def start(self) -> None: ...

    def stop(self) -> None: ...


class _Activity(Enum):
    CPU = 0
    CUDA = 1


# -- optimizers, and what a training loop calls

_after_step: list[Any] = []
_before_step: list[Any] = []


class _Handle:
    def __init__(self, hooks: list[Any], hook: Any) -> None:
        self._hooks, self._hook = hooks, hook
        hooks.append(hook)

    def remove(self) -> None:
        if self._hook in self._hooks:
            self._hooks.remove(self._hook)


class Optimizer:
    def __init__(self, parameters: Any, **_: object) -> None:
        self.param_groups = [{"params": list(parameters)}]

    def step(self) -> None:
        for hook in _before_step:
            hook(self, (), {})
        with record_function(f"Optimizer.step#{type(self).__name__}.step"):
            pass
        for hook in _after_step:
            hook(self, (), {})

    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self) -> None:
        pass


class SGD(Optimizer):
    pass


class Adam(Optimizer):
    pass


class _Tensor:
    """Has no values."""

    def __init__(self, length: int = 1) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def sum(self) -> _Tensor:
        return self

    def backward(self) -> None:
        with record_function("autograd::backward", "cpu_op"):
            pass


class _Module:
    def __init__(self, *_: object) -> None:
        pass

    def parameters(self) -> list[_Tensor]:
        return [_Tensor()]

    def __call__(self, _: _Tensor) -> _Tensor:
        with record_function("aten::linear", "cpu_op"):
            return _Tensor()


class _Loader:
    def __init__(self, data: list[_Tensor], batch_size: int, **_: object) -> None:
        self._batches = len(data[0]) // batch_size

    def __iter__(self) -> Any:
        return iter([(_Tensor(), _Tensor())] * self._batches)


def randn(length: int, *_: int) -> _Tensor:
    return _Tensor(length)


ones = randn


def manual_seed(_: int) -> None:
    pass


def no_grad() -> AbstractContextManager[None]:
    return nullcontext()


_module(
    "autograd", backward=lambda tensor: tensor.backward(), _profiler_enabled=lambda: _recording is not None
)
autograd = sys.modules["torch.autograd"]
autograd.__dict__.update(_disable_profiler=lambda: None, _enable_record_function=lambda _: None)
_module("autograd.profiler", profile=_Profile, record_function=record_function)
_module(
    "profiler",
    _KinetoProfile=_KinetoProfile,
    profile=_ScheduledProfile,
    ProfilerActivity=_Activity,
    record_function=record_function,
)
_module("optim", Optimizer=Optimizer, SGD=SGD, Adam=Adam)
_module(
    "optim.optimizer",
    register_optimizer_step_post_hook=lambda hook: _Handle(_after_step, hook),
    register_optimizer_step_pre_hook=lambda hook: _Handle(_before_step, hook),
)
_module("nn", Module=_Module, Linear=_Module, ReLU=_Module, Sequential=_Module)
_module("nn.functional", mse_loss=lambda result, _: result)
_module("utils")
_module("utils.data", TensorDataset=lambda *tensors: tensors, DataLoader=_Loader)
_module("distributed", is_available=lambda: False, is_initialized=lambda: False)
_module("cuda", is_available=lambda: False, is_initialized=lambda: False)
# As many operations in each step as between two calls.
_module("_C", _autograd=SimpleNamespace(_get_sequence_nr=itertools.count(0, 50).__next__))
backends = SimpleNamespace(cuda=SimpleNamespace(is_built=lambda: False))
