"""Stack frames as torch records them, and the line and op in them that a report shows."""

from __future__ import annotations

import re
from typing import Any

from rankscope.readers.safe_pickle import Budget, integer, text

_LIBRARY = re.compile(
    r"site-packages/|dist-packages/|/lib/python3|<frozen|<string>|^torch/|importlib/|/rankscope/"
)
"""Files that are not user code."""
_OP = re.compile(r"\bat::_ops::(\w+?)(?:::(?:call|redispatch))")
_BACKWARD = re.compile(r"autograd::generated::(?:details::)?(\w+Backward\d*)")


def own_line(frames: Any, budget: Budget) -> str | None:
    """The innermost Python line in user code, else in any code, as Kineto writes it: 'gpt.py(30): forward'."""
    lines = python_lines(frames, budget)
    own = next((line for line in lines if not _LIBRARY.search(line[0])), lines[0] if lines else None)
    return f"{own[0].rpartition('/')[2]}({own[1]}): {own[2]}" if own else None


def python_lines(frames: Any, budget: Budget) -> list[tuple[str, int, str]]:
    """File, line and function of the Python frames, innermost first."""
    found = []
    for frame in budget.dicts(frames):
        file, line = text(frame.get("filename")), integer(frame.get("line"))
        if file and line and file.endswith(".py"):
            found.append((file, line, text(frame.get("name")) or "?"))
    return found


def op_name(frames: Any, budget: Budget) -> str | None:
    """The outermost operator in the C++ frames (aten::linear, not the aten::empty inside it), or the autograd node."""
    found = None
    for frame in budget.dicts(frames):
        name = text(frame.get("name")) or ""
        node = _BACKWARD.search(name)
        if node:
            return node[1]
        op = _OP.search(name)
        if op:
            found = f"aten::{op[1]}"
        elif found and text(frame.get("filename")) and str(frame.get("filename")).endswith(".py"):
            break  # Python called this op; frames farther out belong to another call
    return found
