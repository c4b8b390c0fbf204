"""Protobuf's wire format in Python: the fields of a message. The C parts have the same in native/protobuf.h."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_GROUPS = {3: 1, 4: -1}
"""Wire types of the start and the end of a group; no format that is read here has any."""
_MOST_GROUPS = 64
_LONGEST_VARINT = 10
_MASK = (1 << 64) - 1


class DamagedMessageError(ValueError):
    """The bytes at `position` are no field."""

    def __init__(self, position: int) -> None:
        super().__init__(f"no field at byte {position}")
        self.position = position


def fields(message: memoryview) -> Iterator[tuple[int, int, Any, int]]:
    """Number, wire type and value (int or memoryview) of each field, and where the field ends."""
    at, size, groups = 0, len(message), 0
    while at < size:
        begin = at
        tag, at = _varint(message, at, begin)
        number, wire = tag >> 3, tag & 7
        value: Any
        if wire == VARINT:
            value, at = _varint(message, at, begin)
        elif wire == BYTES:
            length, at = _varint(message, at, begin)
            value, at = message[at : at + length], at + length
        elif wire in (FIXED64, FIXED32):
            length = 8 if wire == FIXED64 else 4
            value, at = int.from_bytes(message[at : at + length], "little"), at + length
        else:
            value, groups = 0, groups + _GROUPS.get(wire, _MOST_GROUPS + 1)
        if at > size or number == 0 or tag >> 32 or not 0 <= groups <= _MOST_GROUPS:
            raise DamagedMessageError(begin)
        if not groups:  # what is inside a group is skipped; its end is a field without a value
            yield number, wire, value, at
    if groups:
        raise DamagedMessageError(at)


def _varint(message: memoryview, at: int, begin: int) -> tuple[int, int]:
    value = 0
    for count in range(_LONGEST_VARINT):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value & _MASK, at
    raise DamagedMessageError(begin)


def signed(value: int) -> int:
    """An int64 of the wire, where negative numbers are written as unsigned ones."""
    return value - (1 << 64) if value >> 63 else value


def double(value: int) -> float:
    """A double of the wire, from its bits."""
    number: float = struct.unpack("<d", value.to_bytes(8, "little"))[0]
    return number


def text(value: Any) -> str:
    """A text of the wire; '' for a field of another type. NUL, which DuckDB's JSON does not take, is replaced."""
    if not isinstance(value, memoryview):
        return ""
    return bytes(value).decode("utf-8", "replace").replace("\0", "\ufffd")
