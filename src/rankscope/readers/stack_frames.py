"""Stack frames as torch records them, and the line and op in them that a report shows."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rankscope.readers.checked_values import integer, text
from rankscope.readers.safe_pickle import Budget

_LIBRARY = re.compile(
    r"site-packages/|dist-packages/|/lib/python3|<frozen|<string>|^torch/|importlib/|/rankscope/"
)
"""Files that are not user code."""
_OP = re.compile(r"\bat::_ops::(\w+?)(?:::(?:call|redispatch))")
_BACKWARD = re.compile(r"autograd::generated::(?:details::)?(\w+Backward\d*)")


@dataclass(frozen=True)
class Frame:
    """One frame; what is worked out of it is kept, since many stacks share it."""

    file: str
    line: int
    name: str

    @cached_property
    def python_line(self) -> str | None:
        """The line of Python, with the path of its file."""
        return f"{self.file}({self.line}): {self.name or '?'}" if self._is_line else None

    @cached_property
    def own_line(self) -> str | None:
        """As Kineto writes it: 'gpt.py(30): forward'."""
        return self._short_line if self._is_line and not _LIBRARY.search(self.file) else None

    @cached_property
    def any_line(self) -> str | None:
        """The same, also in libraries."""
        return self._short_line if self._is_line else None

    @property
    def is_python(self) -> bool:
        return self.file.endswith(".py")

    @property
    def _is_line(self) -> bool:
        return self.is_python and self.line != 0

    @property
    def _short_line(self) -> str:
        return f"{self.file.rpartition('/')[2]}({self.line}): {self.name or '?'}"

    @cached_property
    def backward_node(self) -> str | None:
        match = _BACKWARD.search(self.name)
        return match[1] if match else None

    @cached_property
    def op(self) -> str | None:
        match = _OP.search(self.name)
        return f"aten::{match[1]}" if match else None


def frame_of(file: Any, line: Any, name: Any) -> Frame:
    """From the values in a file, which may be anything."""
    return Frame(text(file) or "", integer(line) or 0, text(name) or "")


def frames_in(stack: Any, budget: Budget) -> list[Frame]:
    """The frames of a list of dictionaries."""
    return [
        frame_of(*(frame.get(key) for key in ("filename", "line", "name"))) for frame in budget.dicts(stack)
    ]


def own_line(frames: Iterable[Frame]) -> str | None:
    """The innermost Python line in user code, else in any code."""
    first = None
    for frame in frames:
        if frame.own_line:
            return frame.own_line
        first = first or frame.any_line
    return first


def python_lines(frames: Iterable[Frame]) -> tuple[str, ...]:
    """The Python lines, innermost first."""
    return tuple(frame.python_line for frame in frames if frame.python_line)


def op_name(frames: Iterable[Frame]) -> str | None:
    """The outermost operator in the C++ frames (aten::linear, not the aten::empty inside it), or the autograd node."""
    outermost = None
    for frame in frames:
        if frame.backward_node:
            return frame.backward_node
        if frame.op:
            outermost = frame.op
        elif outermost and frame.is_python:
            break  # Python called this op; frames farther out belong to another call
    return outermost
