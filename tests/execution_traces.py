"""Writes execution traces to the published schemas: PyTorch's JSON and Chakra's protobuf."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Node:
    """One op: its inputs are tensors of these shapes."""

    record: int
    name: str
    shapes: list[list[int]] = field(default_factory=list)
    dtype: str = "float"

    def inputs(self) -> dict[str, list[Any]]:
        return {
            "values": [[7, 8, 0, 64, 4, "cuda:0"] for _ in self.shapes],
            "shapes": self.shapes,
            "types": [f"Tensor({self.dtype})" for _ in self.shapes],
        }


def json_text(nodes: list[Node], schema: str = "1.1.1-chakra.0.0.4") -> str:
    """As ExecutionTraceObserver writes it."""
    listed = [
        {
            "id": 100 + number,
            "name": node.name,
            "ctrl_deps": 1,
            "inputs": node.inputs(),
            "outputs": {"values": [], "shapes": [], "types": []},
            "attrs": [{"name": "rf_id", "type": "uint64", "value": node.record}],
        }
        for number, node in enumerate(nodes)
    ]
    body = ",\n    ".join(json.dumps(one) for one in listed)
    return (
        f'{{\n  "schema": "{schema}", "pid": 1, "time": "2026-01-01 00:00:00", "start_ts": 1,\n  "nodes": [\n    '
        f'{body}\n  ],\n  "finish_ts": 2\n}}\n'
    )


def old_json_text(nodes: list[Node]) -> str:
    """Schema 1.0.1: the record id and the inputs are fields of the node, which begins with its name."""
    listed = [
        {
            "name": node.name,
            "id": 100 + number,
            "rf_id": node.record,
            "parent": 1,
            "inputs": node.inputs()["values"],
            "input_shapes": node.shapes,
            "input_types": node.inputs()["types"],
        }
        for number, node in enumerate(nodes)
    ]
    return '{"schema": "1.0.1", "pid": 1, "nodes": [' + ", ".join(map(json.dumps, listed)) + "]}"


def chakra_bytes(nodes: list[Node]) -> bytes:
    """A Chakra file: the metadata and the nodes, each after its length."""
    metadata = _text(2, _text(1, b"schema") + _text(29, b"1.1.1")) + _text(
        2, _text(1, b"pid") + _number(13, 1)
    )
    messages = [metadata]
    for number, node in enumerate(nodes):
        inputs = node.inputs()
        values = b"".join(
            _text(i, str(inputs[key]).encode()) for i, key in ((1, "values"), (2, "shapes"), (3, "types"))
        )
        record = _text(10, _text(1, b"rf_id") + _number(13, node.record))
        weight = _text(10, _text(1, b"load") + bytes([5 << 3 | 5]) + struct.pack("<f", 0.5))
        messages.append(
            _number(1, 100 + number)
            + _text(2, f"{node.name}({number})".encode())
            + _number(3, 4)
            + _number(7, 5)
            + _text(8, values)
            + weight
            + record
        )
    return b"".join(_varint(len(message)) + message for message in messages)


def write_both(folder: Path, nodes: list[Node]) -> None:
    """One file of each encoding."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "et_rank0.json").write_text(json_text(nodes))
    (folder / "chakra_rank1.et").write_bytes(chakra_bytes(nodes))


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value
