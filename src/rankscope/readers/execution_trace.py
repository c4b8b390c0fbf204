"""PyTorch execution traces and Chakra traces: the ops of a process with their tensors, without times.

They are no timelines. What is taken from one is added to the Kineto trace of the same rank, whose ops have the same
record function ids (store/executed_ops.py).
"""

from __future__ import annotations

import ast
import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from rankscope.readers.base import ReadReport
from rankscope.readers.byte_stream import ByteStream, open_stream

_SCHEMA = re.compile(rb'"schema"\s*:\s*"(\d+\.\d+[^"]{0,40})"')
_NODES = re.compile(rb'"nodes"\s*:\s*\[')
_NODE_BEGINS = re.compile(r'\{\s*(?:"name"\s*:\s*"(?:[^"\\]|\\.)*"\s*,\s*)?"id"\s*:')
_NO_NUMBER = re.compile(r"(?<=[\[, :])-?(?:inf|nan)(?=[\],}])")
"""Infinite values as C++ prints them, which is not JSON. torch 2.13 writes them as text."""
_PIECE = 1 << 20
_LARGEST_NODE = 16 << 20
"""Bytes. The largest nodes of real files list the parameters of a model: some 100 kB."""
_LARGEST_METADATA = 1 << 16
_GROUPS_NODE = "## process_group:init ##"
_TENSOR = re.compile(r"^Tensor\((.*)\)$")
_KINETO_TYPES = {"Int": "Scalar", "Double": "Scalar", "Bool": "Scalar"}
"""What Kineto calls inputs that are no tensors; the others have no name there."""


class Inputs(NamedTuple):
    """The inputs of an op: Kineto's Input Dims, Input type and Concrete Inputs, and the execution trace's values."""

    shapes: list[Any]
    types: list[str]
    concrete: list[str]
    values: list[Any]


@dataclass(frozen=True)
class ExecutedOp:
    """One node that has a record function id."""

    record: int
    node: int
    name: str
    shapes: Any
    types: Any
    values: Any
    """Of the inputs: lists, or the text of Python lists (Chakra)."""

    def inputs(self) -> Inputs:
        """Its inputs as Kineto records them with record_shapes=True."""
        shapes, types, values = map(_listed, (self.shapes, self.types, self.values))
        names: list[str] = []
        concrete: list[str] = []
        for place, (kind, value) in enumerate(zip(map(str, types), values, strict=False)):
            tensor = _TENSOR.match(kind)
            is_list = kind.startswith("GenericList[")
            of_tensors = kind.startswith("GenericList[Tensor(")
            if is_list and not of_tensors and place < len(shapes):
                shapes[place] = []  # Kineto counts a list of numbers as one value
            names.append(
                tensor[1]
                if tensor
                else "TensorList"
                if of_tensors
                else _KINETO_TYPES.get(kind, "ScalarList" if is_list else "")
            )
            concrete.append("" if tensor or of_tensors or isinstance(value, str) else str(value))
        return Inputs(shapes, names, concrete, values)


class ExecutionTrace:
    """One pass over one file: `ops` yields its nodes; the rest is complete after the last of them."""

    def __init__(self, path: Path) -> None:
        self.report = ReadReport()
        self.schema = ""
        self.nodes = 0
        self.groups = 0
        """Process groups that it lists."""
        self._path = path

    def ops(self) -> Iterator[ExecutedOp]:
        stream = open_stream(self._path)
        try:
            head = stream.read(_PIECE)
            nodes = (
                self._json_nodes(head, stream)
                if head.lstrip()[:1] == b"{"
                else self._chakra_nodes(head, stream)
            )
            for node in nodes:
                self.nodes += 1
                op = self._op(node)
                if op is not None:
                    yield op
            self.report.damage = self.report.damage or stream.damage
        finally:
            stream.close()

    def _op(self, node: dict[str, Any]) -> ExecutedOp | None:
        """None for nodes without a record id: threads, tensors of other frameworks, kernels."""
        record = node.get("rf_id")
        name = node.get("name")
        if name == _GROUPS_NODE:
            self.groups += _groups_in(node)
        if not _is_id(record) or not record or not isinstance(name, str):
            return None
        number = node.get("id")
        inputs = node.get("inputs")
        if not isinstance(inputs, dict):  # schema 1.0.1
            inputs = {
                "values": inputs,
                "shapes": node.get("input_shapes"),
                "types": node.get("input_types"),
            }
        return ExecutedOp(
            record,
            number if _is_id(number) else -1,
            name,
            *(inputs.get(key) for key in ("shapes", "types", "values")),
        )

    def _json_nodes(self, head: bytes, stream: ByteStream) -> Iterator[dict[str, Any]]:
        """The nodes of torch's JSON, decoded one by one: the file is never in memory as a whole."""
        schema, begin = _SCHEMA.search(head), _NODES.search(head)
        if schema:
            self.schema = schema[1].decode("ascii", "replace")
        if not begin:
            self.report.damage = "the list of nodes is missing"
            return
        decoder = json.JSONDecoder()
        characters = codecs.getincrementaldecoder("utf-8")("replace")
        text, at = _plain(characters.decode(head[begin.end() :])), 0
        while True:
            found = _NODE_BEGINS.search(text, at)
            node: Any = None
            is_too_deep = False
            if found:
                try:
                    node, at = decoder.raw_decode(text, found.start())
                except RecursionError:
                    is_too_deep = True
                except ValueError:
                    pass
            if node is not None:
                yield _flat(node)
                continue
            rest = found.start() if found else max(at, text.rfind("{"))
            more = b"" if is_too_deep or len(text) - rest > _LARGEST_NODE else stream.read(_PIECE)
            if more:
                text, at = text[rest:] + _plain(characters.decode(more)), 0
            elif found:  # damaged: the next node may be whole
                self.report.lose(f"a node that is not JSON: {text[rest : rest + 60]!r}")
                at = rest + 1
            elif len(text) - rest > _LARGEST_NODE:
                self.report.damage = f"no node begins within {_LARGEST_NODE >> 20} MB"
                return
            else:
                if not text.rstrip().endswith("}"):
                    self.report.damage = "the file ends in the middle of its nodes"
                return

    def _chakra_nodes(self, head: bytes, stream: ByteStream) -> Iterator[dict[str, Any]]:
        """The messages of a Chakra file, each after its length: first the metadata, then the nodes."""
        content, at, is_first = head, 0, True
        while True:
            try:
                size, begin = _varint(content, at)
                is_whole = begin + size <= len(content)
            except IndexError:
                size, begin, is_whole = 0, at, False
            if size > _LARGEST_NODE:
                self.report.damage = f"a message of {size:,} bytes cannot be a node"
                return
            if not is_whole:
                more = stream.read(_PIECE)
                if not more:
                    if at < len(content):
                        self.report.damage = "the file ends in the middle of a node"
                    return
                content, at = content[at:] + more, 0
                continue
            message, at = content[begin : begin + size], begin + size
            try:
                if is_first:
                    self.schema = _chakra_schema(message)
                else:
                    yield _chakra_node(message)
            except (IndexError, ValueError, UnicodeDecodeError) as error:
                self.report.lose(f"a node that is not Chakra's: {error}")
            is_first = False


def is_execution_trace(head: bytes) -> bool:
    """By the first bytes, decompressed: torch's JSON, or a Chakra protobuf file."""
    if head.lstrip()[:1] == b"{":
        return bool(_SCHEMA.search(head) and _NODES.search(head)) and b'"traceEvents"' not in head
    try:
        size, begin = _varint(head, 0)
        if not 0 < size <= _LARGEST_METADATA or begin + size > len(head):
            return False
        fields = list(_fields(head[begin : begin + size]))
        return bool(fields) and all(
            (number == 1 and isinstance(value, bytes)) or (number == 2 and _attribute(value))
            for number, value in fields
        )
    except (IndexError, ValueError, UnicodeDecodeError):
        return False


def _is_id(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _plain(text: str) -> str:
    return _NO_NUMBER.sub("null", text) if "inf" in text or "nan" in text else text


def _flat(node: Any) -> dict[str, Any]:
    """A JSON node with its record id; files before 1.0.3 have attributes as fields of the node."""
    if not isinstance(node, dict):
        return {}
    attributes = node.get("attrs")
    found: dict[str, Any] = {}
    for one in attributes if isinstance(attributes, list) else ():
        if isinstance(one, dict) and one.get("name") == "rf_id":
            found["rf_id"] = one.get("value")
    return {**node, **found}


def _groups_in(node: dict[str, Any]) -> int:
    """How many process groups a node about them lists: its one input is a JSON list."""
    try:
        listed = json.loads(node["inputs"]["values"][0])
        return len(listed) if isinstance(listed, list) else 0
    except (KeyError, IndexError, TypeError, ValueError, RecursionError):
        return 0


def _listed(value: Any) -> list[Any]:
    """A list, or the one that a text holds."""
    if isinstance(value, bytes) and len(value) <= _LARGEST_METADATA:
        try:
            value = ast.literal_eval(value.decode("utf-8", "replace"))
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return []
    return list(value) if isinstance(value, list) else []


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """A number of protobuf, and where the next field begins. Raises IndexError at the end of the content."""
    value = shift = 0
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message: numbers as integers, texts and messages as bytes."""
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == 2:
            size, at = _varint(message, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of wire type {kind}")
        if not number or at + size > end:
            raise ValueError("a field that is longer than its message")
        yield number, message[at : at + size]
        at += size


def _attribute(message: int | bytes) -> tuple[str, int | bytes] | None:
    """The name and value of an AttributeProto; None for what is none."""
    if isinstance(message, int):
        return None
    name, value = "", b""
    content: int | bytes = value
    for number, field in _fields(message):
        if number == 1 and isinstance(field, bytes):
            name = field.decode()
        elif number > 2:
            content = field
    return (name, content) if name else None


def _chakra_schema(message: bytes) -> str:
    for number, value in _fields(message):
        if number == 1 and isinstance(value, bytes):
            return value.decode("utf-8", "replace")[:40]
        found = _attribute(value) if number == 2 else None
        if found and found[0] == "schema" and isinstance(found[1], bytes):
            return found[1].decode("utf-8", "replace")[:40]
    return ""


def _chakra_node(message: bytes) -> dict[str, Any]:
    node: dict[str, Any] = {"id": 0}
    for number, value in _fields(message):
        if number == 1 and isinstance(value, int):
            node["id"] = value
        elif number == 2 and isinstance(value, bytes):
            node["name"] = value.decode("utf-8", "replace")
        elif number == 8 and isinstance(value, bytes):
            node["inputs"] = _chakra_inputs(value)
        elif number == 10:
            found = _attribute(value)
            if found and found[0] == "rf_id" and isinstance(found[1], int):
                node["rf_id"] = found[1]
    return node


def _chakra_inputs(message: bytes) -> dict[str, Any]:
    """Values, shapes and types, which Chakra keeps as the text of Python lists."""
    return {
        key: value
        for number, value in _fields(message)
        if (key := {1: "values", 2: "shapes", 3: "types"}.get(number, ""))
    }
