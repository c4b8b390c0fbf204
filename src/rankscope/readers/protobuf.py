"""Protobuf's wire format: the fields of a message. For the parts of a file that are read in Python: descriptions and
names. Events are read in C (native/protobuf.h)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

VARINT, FIXED64, BYTES, GROUP, GROUP_END, FIXED32 = range(6)
LONGEST_VARINT = 10
_FIXED_BYTES = {FIXED64: 8, FIXED32: 4}
_MOST_GROUPS = 64
"""Groups inside one another; no format that is read here has any."""
_ALL_BITS = (1 << 64) - 1


class DamagedMessageError(ValueError):
    """The bytes at `position` are no field."""

    def __init__(self, position: int) -> None:
        super().__init__(f"no field at byte {position}")
        self.position = position


def read_varint(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """The value and the position after it. Bits beyond 64 are dropped."""
    value = 0
    for position in range(at, min(at + LONGEST_VARINT, end)):
        byte = data[position]
        value |= (byte & 127) << 7 * (position - at)
        if byte < 128:
            return value & _ALL_BITS, position + 1
    raise DamagedMessageError(at)


def fields(message: bytes | memoryview) -> Iterator[tuple[int, int, Any]]:
    """Number, wire type and value of each field: a number as its 64 bits, or a piece of the message."""
    at, size, groups = 0, len(message), 0
    while at < size:
        begin = at
        tag, at = read_varint(message, at, size)
        number, wire = tag >> 3, tag & 7
        value: Any = b""
        if wire == VARINT:
            value, at = read_varint(message, at, size)
        elif wire == BYTES:
            length, at = read_varint(message, at, size)
            value, at = message[at : at + length], at + length
        elif wire in _FIXED_BYTES:
            value = int.from_bytes(message[at : at + _FIXED_BYTES[wire]], "little")
            at += _FIXED_BYTES[wire]
        elif wire in (GROUP, GROUP_END):
            groups += 1 if wire == GROUP else -1
        else:
            raise DamagedMessageError(begin)
        if at > size or number == 0 or tag >> 32 or not 0 <= groups <= _MOST_GROUPS:
            raise DamagedMessageError(begin)
        if not groups:  # what is inside a group is skipped; its end is a field without a value
            yield number, wire, value
    if groups:
        raise DamagedMessageError(at)


def number_in(wire: int, value: Any) -> int:
    """The value of a number; 0 if the field holds bytes."""
    return value if wire in (VARINT, FIXED64, FIXED32) else 0


def bytes_in(wire: int, value: Any) -> Any:
    """The value of text, bytes or a message; empty if the field holds a number."""
    return value if wire == BYTES else b""


def text_in(wire: int, value: Any) -> str:
    return bytes(bytes_in(wire, value)).decode("utf-8", "replace")


def signed(value: int) -> int:
    """Of type int32 or int64."""
    return value - (1 << 64) if value >> 63 else value


def double_in(wire: int, value: Any) -> float:
    return float(struct.unpack("<d", value.to_bytes(8, "little"))[0]) if wire == FIXED64 else 0.0
