"""What a file beside a trace is: an execution trace, a capture of a CUDA graph, a log of torch.compile."""

from __future__ import annotations

from pathlib import Path

from rankscope.readers import find_reader, one_file
from rankscope.readers.byte_stream import read_head
from rankscope.readers.execution_trace import is_execution_trace
from rankscope.readers.torch_trace import is_torch_trace

_HEAD_BYTES = 1 << 16


def kind_of(path: Path) -> str:
    """By content; '' for files that are none of these."""
    with one_file(path):
        head, _ = read_head(path, _HEAD_BYTES)
        if is_execution_trace(head):
            return "execution trace"
        if is_torch_trace(head):
            return "torch.compile log"
        if path.parent.name == "capture_traces" and b'"traceEvents"' in head:
            return "graph capture" if find_reader(path).name == "kineto" else ""
    return ""
