"""Thrift's compact protocol, as far as Parquet's headers and footer need it: values become bytes, nothing is read.

A value is its type and its bytes; a struct is made of values by field number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Value(NamedTuple):
    type: int
    data: bytes


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the top bit says that more follow."""
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def zigzag(number: int) -> bytes:
    """A signed varint: 0, -1, 1, -2, … become 0, 1, 2, 3, …"""
    return varint(number << 1 if number >= 0 else (-number << 1) - 1)


def i32(number: int) -> Value:
    return Value(5, zigzag(number))


def i64(number: int) -> Value:
    return Value(6, zigzag(number))


def binary(data: bytes) -> Value:
    return Value(8, varint(len(data)) + data)


def text(value: str) -> Value:
    return binary(value.encode())


def items(values: Sequence[Value]) -> Value:
    """A list; not empty, as its values give it its type."""
    count = len(values)
    head = (
        bytes([count << 4 | values[0].type]) if count < 15 else bytes([0xF0 | values[0].type]) + varint(count)
    )
    return Value(9, head + b"".join(value.data for value in values))


def struct(fields: Mapping[int, Value | None]) -> Value:
    """`fields` by number, ascending; those that are None are left out."""
    pieces: list[bytes] = []
    last = 0
    for number, value in fields.items():
        if value is not None:
            step = number - last  # at most 15 in Parquet's structs
            pieces += bytes([step << 4 | value.type]), value.data
            last = number
    return Value(12, b"".join((*pieces, b"\0")))
