"""Logs of torch.compile (TORCH_TRACE=DIR, the input of tlparse): which lines of Python compiled kernels are made from.

A log is lines of JSON, some followed by a payload of lines that begin with a tab: the graph that Dynamo captured, with
the line of each node, and the code that Inductor generated, with the nodes that each kernel is made from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rankscope.readers.base import ReadReport
from rankscope.readers.byte_stream import line_blocks, open_stream
from rankscope.readers.checked_values import json_object

_RECORD = re.compile(rb"^V\d{4} [^\]\n]{5,300}\] (\{.*)$", re.MULTILINE)
_KEYS = (b'"artifact"', b'"dynamo_start"', b'"chromium_event"', b'"str"', b'"compilation_metrics"')
_PIECE = 1 << 20
_LONGEST_LINE = 16 << 20
_LARGEST_PAYLOAD = 64 << 20
_GRAPHS = ("dynamo_output_graph", "aot_joint_graph", "aot_backward_graph", "inductor_post_grad_graph")
"""Payloads with the lines of nodes. The names of the first are those that generated code refers to."""
_CODE = "inductor_output_code"
_KEY = re.compile(r"^fx_graph_cache_(?:miss|hit|bypass)$")
_FILE = re.compile(r"^\s*# File: (.+):(\d+) in ([^,]+), code:")
_NODE = re.compile(r"^\s*(\w+)(?::[^=]*)? = ")
_PATH = re.compile(r"^# kernel path: (\S+)")
_SOURCES = re.compile(r"^\s*# (?:Topologically Sorted|Unsorted) Source Nodes: \[(.*?)\]")
_KERNEL = re.compile(r"^(\w+) = async_compile\.\w+\(")
_MOST_LINES = 3
"""Of the lines that one kernel is made from."""


@dataclass
class CompiledCode:
    """What the logs of a rank tell."""

    functions: dict[str, str] = field(default_factory=dict)
    """Compile id, such as 0/0 -> the function that was compiled, as Kineto names lines of Python."""
    graphs: dict[str, str] = field(default_factory=dict)
    """Key of an FX graph, which Kineto's ranges name -> compile id."""
    lines: dict[str, str] = field(default_factory=dict)
    """File of a kernel, which Kineto's ops name, and name of the kernel -> lines of Python."""


class TorchTrace:
    """One pass over one log."""

    def __init__(self, path: Path) -> None:
        self.report = ReadReport()
        self._path = path
        self._nodes: dict[str, dict[str, str]] = {}
        """Compile id -> node -> line."""
        self._kernels: list[tuple[str, str, str, list[str]]] = []
        """Compile id, file and name of each kernel, and the nodes that it is made from."""

    def read(self) -> CompiledCode:
        code = CompiledCode()
        for record, payload in self._records():
            compile_id = f"{record.get('frame_id')}/{record.get('frame_compile_id')}"
            artifact = record.get("artifact")
            name = artifact.get("name") if isinstance(artifact, dict) else None
            kind = next((key for key in (*_GRAPHS, _CODE) if key in record or key == name), "")
            if kind == _CODE:
                self._kernels += [(compile_id, *kernel) for kernel in _kernels(payload)]
            elif kind:
                self._add_nodes(compile_id, payload)
            elif isinstance(name, str) and _KEY.match(name):
                key = json_object("\n".join(payload)).get("key")
                if isinstance(key, str):
                    code.graphs[key] = compile_id
            elif isinstance(metrics := record.get("compilation_metrics"), dict):
                names = [
                    metrics.get(key) for key in ("compile_id", "co_filename", "co_firstlineno", "co_name")
                ]
                if isinstance(names[0], str) and all(name is not None for name in names):
                    code.functions[names[0]] = f"{names[1]}({names[2]}): {names[3]}"
        self._add_lines(code)
        return code

    def _add_nodes(self, compile_id: str, graph: Iterable[str]) -> None:
        """The nodes of a printed graph, each with the line of Python in the comment before it."""
        nodes, line = self._nodes.setdefault(compile_id, {}), ""
        for text in graph:
            if match := _FILE.match(text):
                line = f"{match[1]}({match[2]}): {match[3]}"
            elif line and (node := _NODE.match(text)):
                nodes.setdefault(node[1], line)

    def _add_lines(self, code: CompiledCode) -> None:
        """A kernel's file is its own; its name may be that of other kernels too, and then tells nothing."""
        by_name: dict[str, set[str]] = {}
        for compile_id, path, name, sources in self._kernels:
            nodes = self._nodes.get(compile_id, {})
            lines = list(dict.fromkeys(nodes[node] for node in sources if node in nodes))
            text = " + ".join(lines[:_MOST_LINES]) + (" + …" if len(lines) > _MOST_LINES else "")
            if text:
                if path:
                    code.lines[path] = text
                by_name.setdefault(name, set()).add(text)
        code.lines |= {name: texts.pop() for name, texts in by_name.items() if len(texts) == 1}

    def _records(self) -> Iterator[tuple[dict[str, Any], list[str]]]:
        """Each record with the lines of its payload, where it is one that is used."""
        record: dict[str, Any] = {}
        payload: list[str] = []
        size = 0
        for line in self._lines():
            if line.startswith(b"\t"):
                size += len(line)
                if record and size < _LARGEST_PAYLOAD:
                    payload.append(line[1:].decode("utf-8", "replace"))
                continue
            if record:
                yield record, payload
            record, payload, size = {}, [], 0
            if match := _RECORD.match(line):
                if any(
                    key.encode() in match[1]
                    for key in (*_GRAPHS, _CODE, "fx_graph_cache_", "compilation_metrics")
                ):
                    record = json_object(match[1].decode("utf-8", "replace"))
                    if not record:
                        self.report.lose("a record that is not JSON")
            elif line.strip():
                self.report.lose(f"a line that is no record: {line[:60]!r}")
        if record:
            yield record, payload

    def _lines(self) -> Iterator[bytes]:
        with closing(open_stream(self._path, lines=True)) as stream:
            too_long = partial(self.report.lose, f"a line of more than {_LONGEST_LINE >> 20} MB")
            for block in line_blocks(stream, _PIECE, _LONGEST_LINE, too_long):
                yield from block.removesuffix(b"\n").split(b"\n")
            self.report.damage = stream.damage


def is_torch_trace(head: bytes) -> bool:
    """By the first bytes: a line of the structured log, with one of its keys."""
    match = _RECORD.match(head)
    return match is not None and any(key in match[1] for key in _KEYS)


def _kernels(code: Iterable[str]) -> Iterator[tuple[str, str, list[str]]]:
    """File, name and source nodes of the kernels in generated code; the comments stand before the definition."""
    path, sources = "", list[str]()
    for text in code:
        if match := _PATH.match(text):
            path, sources = match[1], []
        elif match := _SOURCES.match(text):
            sources = [name.strip() for name in match[1].split(",")]
        elif match := _KERNEL.match(text):
            yield path, match[1], sources
            path, sources = "", []
