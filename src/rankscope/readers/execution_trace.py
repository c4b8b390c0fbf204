"""PyTorch execution traces and Chakra traces: the ops of a process with their tensors, without times.

They are no timelines. What is taken from one is added to the Kineto trace of the same rank, whose ops have the same
record function ids (timeline/sidecar_files.py).
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from rankscope import native
from rankscope.readers.base import ReadReport
from rankscope.readers.byte_stream import ByteStream, open_stream
from rankscope.readers.protobuf import (
    BYTES,
    LONGEST_VARINT,
    VARINT,
    DamagedMessageError,
    bytes_in,
    fields,
    read_varint,
    text_in,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rankscope.readers.columns import Codes, Numbers

_SCHEMA = re.compile(rb'"schema"\s*:\s*"(\d+\.\d+[^"]{0,40})"')
_NODES = re.compile(rb'"nodes"\s*:\s*\[')
_NODE_BEGINS = re.compile(r'\{\s*(?:"name"\s*:\s*"(?:[^"\\]|\\.)*"\s*,\s*)?"id"\s*:')
_NO_NUMBER = re.compile(rb"(?<=[\[, :])-?(?:inf|nan)(?=[\],}])")
"""Infinite values as C++ prints them, which is not JSON. torch 2.13 writes them as text."""
_PIECE = 4 << 20
_NODES_AT_ONCE = 10_000
_LARGEST_NODE = 16 << 20
"""Bytes. The largest nodes of real files list the parameters of a model: some 100 kB."""
_LARGEST_METADATA = 1 << 16
_GROUPS_NODE = "## process_group:init ##"
_TENSOR = re.compile(r"^Tensor\((.*)\)$")
_KINETO_TYPES = {"Int": "Scalar", "Double": "Scalar", "Bool": "Scalar"}
"""What Kineto calls inputs that are no tensors; the others have no name there."""
_ENCODE = json.JSONEncoder(allow_nan=False, check_circular=False, separators=(",", ":")).encode


_INPUTS = {1: "values", 2: "shapes", 3: "types"}
"""Fields of Chakra's IOInfo."""


class _Chakra:
    """Field numbers of Chakra's et_def.proto, by message."""

    VERSION, ATTRIBUTE = 1, 2
    NODE_ID, NODE_NAME, NODE_INPUTS, NODE_ATTRIBUTE = 1, 2, 8, 10
    ATTRIBUTE_NAME, ATTRIBUTE_VALUE = 1, 3
    """A value has one of the fields from ATTRIBUTE_VALUE on, by its type."""


InputTexts = tuple[str | None, str | None, str | None]
"""The inputs of an op as JSON: Kineto's Input Dims, Input type and Concrete Inputs."""


@dataclass(frozen=True)
class ExecutedOps:
    """Some ops: nodes that have a record function id."""

    record: Numbers
    node: Numbers
    name: Codes
    names: list[str]
    """By code."""
    inputs: Codes
    input_texts: list[InputTexts]
    """By code."""
    values: Any
    """The values of their inputs as JSON, in the form of EventColumns.args."""
    values_offset: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.record)


@lru_cache(4096)
def _input_kind(kind: str) -> tuple[str, bool, bool]:
    """Kineto's name of a type; whether it is of tensors; whether it is a list of other values."""
    if tensor := _TENSOR.match(kind):
        return tensor[1], True, False
    if kind.startswith("GenericList[Tensor("):
        return "TensorList", True, False
    is_list = kind.startswith("GenericList[")
    return _KINETO_TYPES.get(kind, "ScalarList" if is_list else ""), False, is_list


def _encoded(value: list[Any]) -> str | None:
    """As JSON; None for what has none, such as infinite numbers."""
    try:
        return _ENCODE(value)
    except (ValueError, RecursionError):
        return None


def _input_texts(shapes: list[Any], types: list[Any], values: list[Any]) -> InputTexts:
    """The inputs of an op as Kineto records them with record_shapes=True."""
    shapes = list(shapes)
    names: list[str] = []
    concrete: list[str] = []
    for index, (kind, value) in enumerate(zip(map(str, types), values, strict=False)):
        name, has_tensors, is_plain_list = _input_kind(kind)
        if is_plain_list and index < len(shapes):
            shapes[index] = []  # Kineto counts a list of numbers as one value
        names.append(name)
        concrete.append("" if has_tensors or isinstance(value, str) else str(value))
    return _encoded(shapes), _encoded(names), _encoded(concrete)


class ExecutionTrace:
    """One pass over one file: `ops` yields its nodes; the rest is complete after the last of them."""

    def __init__(self, path: Path) -> None:
        self.report = ReadReport()
        self.schema = ""
        self.nodes = 0
        self.groups = 0
        """Process groups that it lists."""
        self._path = path

    def batches(self) -> Iterator[ExecutedOps]:
        with closing(open_stream(self._path)) as stream:
            head = stream.read(_PIECE)
            if head.lstrip()[:1] == b"{":
                yield from self._json_batches(head, stream)
            else:
                nodes = self._chakra_nodes(head, stream)
                while some := list(islice(nodes, _NODES_AT_ONCE)):
                    yield self._ops(some)
            self.report.damage = self.report.damage or stream.damage

    def _ops(self, nodes: list[dict[str, Any]]) -> ExecutedOps:
        """The ops among nodes that were decoded in Python. Threads, tensors and kernels have no record id."""
        # Late: numpy is not needed to find and identify files.
        import numpy as np

        from rankscope.readers.columns import joined_texts

        self.nodes += len(nodes)
        numbers: list[tuple[int, int]] = []
        names: list[str] = []
        inputs: list[InputTexts] = []
        values: list[bytes] = []
        for node in nodes:
            record, number, name = node.get("rf_id"), node.get("id"), node.get("name")
            if name == _GROUPS_NODE:
                self.groups += _groups_in(node)
            if not _is_id(record) or not record or not isinstance(name, str):
                continue
            numbers.append((record, number if _is_id(number) else -1))
            names.append(name)
            shapes, types, listed = map(_listed, _inputs_of(node))
            text = _encoded(listed)
            inputs.append((None, None, None) if text is None else _input_texts(shapes, types, listed))
            values.append((text or "").encode())
        record_ids, node_ids = np.array(numbers, dtype=np.int64).reshape(-1, 2).T
        codes = np.arange(len(names), dtype=np.int32)
        return ExecutedOps(record_ids, node_ids, codes, names, codes, inputs, *joined_texts(values))

    def _json_batches(self, head: bytes, stream: ByteStream) -> Iterator[ExecutedOps]:
        """The nodes of torch's JSON, piece by piece: the file is never in memory as a whole.

        The part in C reads as far as it is sure to read as Python does.
        """
        schema, begin = _SCHEMA.search(head), _NODES.search(head)
        if schema:
            self.schema = schema[1].decode("ascii", "replace")
        if not begin:
            self.report.damage = "the list of nodes is missing"
            return
        data, is_last, is_closed = head[begin.end() :], False, False
        while True:
            is_closed = data.rstrip().endswith(b"}") if data.strip() else is_closed
            cut = data.rfind(b"}") + 1
            whole, rest = data[:cut], data[cut:]
            for _ in range(2):
                if native.functions is not None:
                    columns, nodes, end = native.functions.scan_nodes(whole)
                    self.nodes += nodes
                    whole = whole[end:]
                    yield _scanned(columns)
                before, whole = whole, _plain(whole)
                if whole == before:
                    break
            decoded, left = self._decode(whole.decode("utf-8", "replace"), is_last)
            if decoded:
                yield self._ops(decoded)
            data = left.encode() + rest
            if is_last:
                if not is_closed:
                    self.report.damage = "the file ends in the middle of its nodes"
                return
            if len(data) > _LARGEST_NODE + _PIECE:
                self.report.damage = f"no node begins within {_LARGEST_NODE >> 20} MB"
                return
            more = stream.read(_PIECE)
            is_last = not more
            data += more

    def _decode(self, text: str, is_last: bool) -> tuple[list[dict[str, Any]], str]:
        """The nodes of a text, and what is left: a node that is not complete, unless it is the last text."""
        decoder = json.JSONDecoder()
        nodes: list[dict[str, Any]] = []
        at = 0
        while match := _NODE_BEGINS.search(text, at):
            begin = match.start()
            try:
                node, at = decoder.raw_decode(text, begin)
                nodes.append(_flat(node))
                continue
            except RecursionError:
                pass
            except ValueError:
                if not is_last and len(text) - begin <= _LARGEST_NODE:
                    return nodes, text[begin:]
            # Damaged: the next node may be whole.
            self.report.lose(f"a node that is not JSON: {text[begin : begin + 60]!r}")
            at = begin + 1
        return nodes, "" if is_last else text[max(at, text.rfind("{")) :]

    def _chakra_nodes(self, head: bytes, stream: ByteStream) -> Iterator[dict[str, Any]]:
        """The messages of a Chakra file, each after its length: first the metadata, then the nodes."""
        content, at, is_first = head, 0, True
        while True:
            try:
                size, begin = read_varint(content, at, len(content))
                is_whole = begin + size <= len(content)
            except DamagedMessageError:
                if len(content) - at >= LONGEST_VARINT:
                    self.report.damage = "what follows is not a node"
                    return
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
            except ValueError as error:  # damaged, or a name that is not UTF-8
                self.report.lose(f"a node that is not Chakra's: {error}")
            is_first = False


def is_execution_trace(head: bytes) -> bool:
    """By the first bytes, decompressed: torch's JSON, or a Chakra protobuf file."""
    if head.lstrip()[:1] == b"{":
        return bool(_SCHEMA.search(head) and _NODES.search(head)) and b'"traceEvents"' not in head
    try:
        size, begin = read_varint(head, 0, len(head))
        if not 0 < size <= _LARGEST_METADATA or begin + size > len(head):
            return False
        metadata = list(fields(head[begin : begin + size]))
        return bool(metadata) and all(
            wire == BYTES
            and (number == _Chakra.VERSION or (number == _Chakra.ATTRIBUTE and bool(_attribute(value)[0])))
            for number, wire, value in metadata
        )
    except ValueError:  # damaged, or a name that is not UTF-8
        return False


def _is_id(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _plain(text: bytes) -> bytes:
    return _NO_NUMBER.sub(b"null", text) if b"inf" in text or b"nan" in text else text


def _scanned(columns: tuple[Any, ...]) -> ExecutedOps:
    """The ops that native/nodes.c has read. The same inputs mostly occur often."""
    import numpy as np

    from rankscope.readers.columns import Texts, distinct_rows

    kinds = ("int64", "int64", "int32", "int32", "int32", "int32", "uint8", "uint32", "int64")
    *numbers, values, values_offset, offsets = map(np.frombuffer, columns[:-1], kinds)
    record, node, name, *inputs = numbers
    texts = list(Texts(offsets, columns[-1]))
    codes, firsts = distinct_rows([column.astype(np.int64) for column in inputs])
    different = zip(*(column[firsts].tolist() for column in inputs), strict=True)
    input_texts = [_input_texts(*(_json_list(texts[code]) for code in row)) for row in different]
    return ExecutedOps(record, node, name, texts, codes, input_texts, values, values_offset)


def _json_list(text: str) -> list[Any]:
    try:
        value = json.loads(text)
    except ValueError:  # a number with thousands of digits
        return []
    return list(value)


def _inputs_of(node: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Shapes, types and values: lists, or the text of Python lists (Chakra)."""
    inputs = node.get("inputs")
    if isinstance(inputs, dict):
        return inputs.get("shapes"), inputs.get("types"), inputs.get("values")
    return node.get("input_shapes"), node.get("input_types"), inputs  # schema 1.0.1


def _flat(node: Any) -> dict[str, Any]:
    """A JSON node with its record id; files before 1.0.3 have attributes as fields of the node."""
    if not isinstance(node, dict):
        return {}
    attributes = node.get("attrs")
    record_id: dict[str, Any] = {}
    for attribute in attributes if isinstance(attributes, list) else ():
        if isinstance(attribute, dict) and attribute.get("name") == "rf_id":
            record_id["rf_id"] = attribute.get("value")
    return {**node, **record_id}


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


def _attribute(message: bytes) -> tuple[str, int | bytes]:
    """The name and value of an AttributeProto; '' for what is none."""
    name = ""
    content: int | bytes = b""
    for number, wire, value in fields(message):
        if number == _Chakra.ATTRIBUTE_NAME and wire == BYTES:
            name = value.decode()
        elif number >= _Chakra.ATTRIBUTE_VALUE and wire in (VARINT, BYTES):
            content = value
    return name, content


def _chakra_schema(message: bytes) -> str:
    for number, wire, value in fields(message):
        if number == _Chakra.VERSION and wire == BYTES:
            return text_in(wire, value)[:40]
        name, content = _attribute(bytes_in(wire, value)) if number == _Chakra.ATTRIBUTE else ("", b"")
        if name == "schema" and isinstance(content, bytes):
            return content.decode("utf-8", "replace")[:40]
    return ""


def _chakra_node(message: bytes) -> dict[str, Any]:
    node: dict[str, Any] = {"id": 0}
    for number, wire, value in fields(message):
        if number == _Chakra.NODE_ID and wire == VARINT:
            node["id"] = value
        elif number == _Chakra.NODE_NAME and wire == BYTES:
            node["name"] = text_in(wire, value)
        elif number == _Chakra.NODE_INPUTS and wire == BYTES:
            # Values, shapes and types, which Chakra keeps as the text of Python lists.
            node["inputs"] = {
                _INPUTS[inner]: bytes_in(kind, content)
                for inner, kind, content in fields(value)
                if inner in _INPUTS
            }
        elif number == _Chakra.NODE_ATTRIBUTE:
            name, content = _attribute(bytes_in(wire, value))
            if name == "rf_id" and isinstance(content, int):
                node["rf_id"] = content
    return node
