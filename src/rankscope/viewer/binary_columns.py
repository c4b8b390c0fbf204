"""Columns as bytes: a line of JSON that names them, then each as little-endian numbers, ready for typed arrays."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

TYPE = "application/vnd.rankscope.columns"
_ALIGNMENT = 8


def pack(facts: dict[str, Any], columns: dict[str, NDArray[Any]]) -> bytes:
    """`facts` and the layout of the columns as one JSON line, padded to 8 bytes, then the columns, padded likewise."""
    layout = [
        {"name": name, "type": str(array.dtype), "length": len(array)} for name, array in columns.items()
    ]
    head = json.dumps({**facts, "columns": layout}).encode()
    pieces = [head, b" " * (-(len(head) + 1) % _ALIGNMENT), b"\n"]
    for array in columns.values():
        content = np.ascontiguousarray(array).tobytes()
        pieces += [content, b"\0" * (-len(content) % _ALIGNMENT)]
    return b"".join(pieces)


def as_json(facts: dict[str, Any], columns: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """The same for people and scripts."""
    return {**facts, "columns": {name: array.tolist() for name, array in columns.items()}}
