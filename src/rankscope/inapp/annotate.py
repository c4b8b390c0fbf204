"""``@trace`` and ``with trace("name")``: ranges in torch's traces, and NVTX ranges under nsys.

While no profiler runs, a call costs one check of torch's profiler state, a fraction of a microsecond.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar, overload

from rankscope.errors import UsageError
from rankscope.inapp.nvtx_ranges import find_nvtx

Function = TypeVar("Function", bound=Callable[..., Any])

# nsys sets this variable in the programs it starts.
_NSYS_VARIABLE = "NSYS_PROFILING_SESSION_ID"
_under_nsys = _NSYS_VARIABLE in os.environ


def _before_torch() -> bool:
    """The value of ``_recording`` until torch is imported; before that, nothing can be recorded."""
    global _recording
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "autograd"):  # not imported, or only in part
        return False
    enabled: Callable[[], bool] = torch.autograd._profiler_enabled
    _recording = (lambda: True) if _under_nsys and find_nvtx() is not None else enabled
    return _recording()


_recording: Callable[[], bool] = _before_torch


class Region:
    """A named range: ``with`` around some lines, or a decorator."""

    __slots__ = ("_open", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._open: list[Any] = []  # a stack: one object may be entered again while it is open

    def __enter__(self) -> Region:
        self._open.append(_begin(self.name) if _recording() else None)
        return self

    def __exit__(self, *_: object) -> None:
        opened = self._open.pop()
        if opened is not None:
            _end(opened)

    def __call__(self, function: Function) -> Function:
        decorated: Function = _decorate(function, self.name)
        return decorated


@overload
def trace(target: Function) -> Function: ...
@overload
def trace(target: str) -> Region: ...
@overload
def trace(target: None = None) -> Callable[[Function], Function]: ...
def trace(target: Any = None) -> Any:
    """Mark a function (``@trace``, ``@trace("name")``) or some lines (``with trace("name")``).

    Functions, methods, class and static methods keep their signatures; a coroutine stays a coroutine and a
    generator a generator; their range covers the time they run, not the time they are suspended. The default
    name is the qualified name.
    """
    if isinstance(target, str):
        return Region(target)
    if target is None:
        return lambda function: _decorate(function, None)
    if callable(target) or isinstance(target, (classmethod, staticmethod)):
        return _decorate(target, None)
    raise UsageError(
        f"rankscope.trace cannot mark a {type(target).__name__}",
        why="It marks functions and named blocks.",
        hint='Write @rankscope.trace above a function, or: with rankscope.trace("name"):',
    )


def _decorate(function: Any, name: str | None) -> Any:
    if isinstance(function, (classmethod, staticmethod)):
        return type(function)(_decorate(function.__func__, name))
    qualified: str = getattr(function, "__qualname__", type(function).__qualname__)
    label = name or qualified
    if inspect.iscoroutinefunction(function):
        return _coroutine(function, label)
    if inspect.isasyncgenfunction(function):
        return _async_generator(function, label)
    if inspect.isgeneratorfunction(function):
        return _generator(function, label)

    @functools.wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Any:
        if not _recording():
            return function(*args, **kwargs)
        opened = _begin(label)
        try:
            return function(*args, **kwargs)
        finally:
            _end(opened)

    return traced


def _coroutine(function: Callable[..., Coroutine[Any, Any, Any]], label: str) -> Any:
    @functools.wraps(function)
    async def traced(*args: Any, **kwargs: Any) -> Any:
        return await _RangePerTurn(function(*args, **kwargs), label)

    return traced


def _generator(function: Callable[..., Generator[Any, Any, Any]], label: str) -> Any:
    @functools.wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        return (yield from _range_per_turn(function(*args, **kwargs), label))

    return traced


def _async_generator(function: Callable[..., AsyncGenerator[Any, Any]], label: str) -> Any:
    @functools.wraps(function)
    async def traced(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        generator = function(*args, **kwargs)
        turn: Awaitable[Any] = generator.__anext__()
        try:
            while True:
                try:
                    value = await _RangePerTurn(turn, label)
                except StopAsyncIteration:
                    return
                try:
                    sent = yield value
                except GeneratorExit:
                    raise
                except BaseException as error:  # noqa: BLE001  (any exception thrown in goes to the generator)
                    turn = generator.athrow(error)
                else:
                    turn = generator.asend(sent)
        finally:
            await generator.aclose()

    return traced


class _RangePerTurn:
    """Awaits ``inner`` with the range open only while it runs: other tasks' work must not be inside."""

    def __init__(self, inner: Awaitable[Any], label: str) -> None:
        self._inner = inner
        self._label = label

    def __await__(self) -> Generator[Any, Any, Any]:
        return _range_per_turn(self._inner.__await__(), self._label)


def _range_per_turn(inner: Any, label: str) -> Generator[Any, Any, Any]:
    """Drive a generator (or the result of ``__await__``) with one range per resumption."""
    send: Callable[[Any], Any] = getattr(inner, "send", lambda _value: next(inner))
    turn: Callable[[], Any] = lambda: send(None)  # noqa: E731  (replaced in the loop)
    while True:
        opened = _begin(label) if _recording() else None
        try:
            value = turn()
        except StopIteration as end:
            return end.value
        finally:
            if opened is not None:
                _end(opened)
        try:
            sent = yield value
        except GeneratorExit:
            inner.close()
            raise
        except BaseException as error:  # noqa: BLE001  (any exception thrown in goes to the generator)
            turn = functools.partial(inner.throw, error)
        else:
            turn = functools.partial(send, sent)


def _begin(label: str) -> Any:
    import torch

    nvtx = find_nvtx() if _under_nsys else None
    if nvtx is not None:
        nvtx.push(label)
    record = torch.autograd.profiler.record_function(label)
    record.__enter__()
    return record, nvtx


def _end(opened: Any) -> None:
    record, nvtx = opened
    record.__exit__(None, None, None)
    if nvtx is not None:
        nvtx.pop()
