"""Protobuf's wire format in Python; native/protobuf.h is the same in C."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

VARINT, FIXED64, BYTES, GROUP, GROUP_END, FIXED32 = range(6)
_LONGEST_VARINT = 10
_MOST_GROUPS = 64
_ALL_BITS = (1 << 64) - 1


class WireError(ValueError):
    """Bytes that are no field."""


def read_varint(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """The value and the place after it. Bits beyond 64 are dropped."""
    value = 0
    for count in range(_LONGEST_VARINT):
        if at >= end:
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << 7 * count
        if byte < 128:
            return value & _ALL_BITS, at
    raise WireError("a number without end")


def fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Number, wire type and value of each field of a message: a number as its 64 bits, or bytes."""
    at, end, groups = 0, len(data), 0
    while at < end:
        tag, at = read_varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        value: int | bytes = b""
        if number == 0 or tag >> 32:
            raise WireError("no field has this number")
        if wire == VARINT:
            value, at = read_varint(data, at, end)
        elif wire == BYTES:
            length, at = read_varint(data, at, end)
            if length > end - at:
                raise WireError("a field is longer than its message")
            value = data[at : at + length]
            at += length
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
            if end - at < size:
                raise WireError("a field is longer than its message")
            value = int.from_bytes(data[at : at + size], "little")
            at += size
        elif wire == GROUP:
            groups += 1
        elif wire == GROUP_END:
            groups -= 1
        else:
            raise WireError("no such type of field")
        if not 0 <= groups <= _MOST_GROUPS:
            raise WireError("groups do not match")
        if not groups:  # what is inside a group is skipped; its end is a field without a value
            yield number, wire, value
    if groups:
        raise WireError("a group without end")


def number_in(wire: int, value: Any) -> int:
    """The value of a number; 0 if the field holds bytes."""
    return value if wire in (VARINT, FIXED64, FIXED32) else 0


def bytes_in(wire: int, value: Any) -> bytes:
    """The value of text, bytes or a message; empty if the field holds a number."""
    return value if wire == BYTES else b""


def signed(value: int) -> int:
    """Of type int32 or int64."""
    return value - (1 << 64) if value >> 63 else value


def double_in(wire: int, value: Any) -> float:
    return float(struct.unpack("<d", value.to_bytes(8, "little"))[0]) if wire == FIXED64 else 0.0
