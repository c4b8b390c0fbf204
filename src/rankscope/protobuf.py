"""Protobuf's wire format: the fields of a message, read and written. Events are read in C (native/protobuf.h).

The protobuf package would be a dependency of every user for these few functions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

VARINT, FIXED64, BYTES, GROUP, GROUP_END, FIXED32 = range(6)
_LONGEST_VARINT = 10
_FIXED_BYTES = {FIXED64: 8, FIXED32: 4}
_MOST_GROUPS = 64
"""Groups inside one another; no format that is read here has any."""
_ALL_BITS = (1 << 64) - 1


class DamagedMessageError(ValueError):
    """The bytes at `position` are no field."""

    def __init__(self, position: int) -> None:
        super().__init__(f"no field at byte {position}")
        self.position = position


def _read_varint(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """The value and the position after it. Bits beyond 64 are dropped."""
    value = 0
    for position in range(at, min(at + _LONGEST_VARINT, end)):
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
        tag, at = _read_varint(message, at, size)
        field, wire = tag >> 3, tag & 7
        value: Any = b""
        if wire == VARINT:
            value, at = _read_varint(message, at, size)
        elif wire == BYTES:
            length, at = _read_varint(message, at, size)
            value, at = message[at : at + length], at + length
        elif wire in _FIXED_BYTES:
            value = int.from_bytes(message[at : at + _FIXED_BYTES[wire]], "little")
            at += _FIXED_BYTES[wire]
        elif wire in (GROUP, GROUP_END):
            groups += 1 if wire == GROUP else -1
        else:
            raise DamagedMessageError(begin)
        if at > size or field == 0 or tag >> 32 or not 0 <= groups <= _MOST_GROUPS:
            raise DamagedMessageError(begin)
        if not groups:  # what is inside a group is skipped; its end is a field without a value
            yield field, wire, value
    if groups:
        raise DamagedMessageError(at)


def number_in(wire: int, value: Any) -> int:
    """The value of a number; 0 if the field holds bytes."""
    return value if wire in (VARINT, FIXED64, FIXED32) else 0


def text_in(wire: int, value: Any) -> str:
    return bytes(value).decode("utf-8", "replace") if wire == BYTES else ""


def signed(value: int) -> int:
    """Of type int32 or int64."""
    return value - (1 << 64) if value >> 63 else value


def double_in(wire: int, value: Any) -> float:
    return float(struct.unpack("<d", value.to_bytes(8, "little"))[0]) if wire == FIXED64 else 0.0


_SMALL = [bytes((value,)) for value in range(128)]


def varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the top bit says that more follow. Negative: as 64 bits."""
    if 0 <= value < 0x4000:  # tags, lengths and most numbers
        return _SMALL[value] if value < 128 else bytes((value & 127 | 128, value >> 7))
    value &= _ALL_BITS
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """A varint field."""
    return varint(field << 3) + varint(value)


def blob(field: int, content: bytes) -> bytes:
    """A field of text, bytes or a message."""
    return varint(field << 3 | BYTES) + varint(len(content)) + content


def text(field: int, content: str) -> bytes:
    """A text field. Lone surrogates, which cannot be encoded, become '?'."""
    return blob(field, content.encode("utf-8", "replace"))


def fixed64(field: int, value: int) -> bytes:
    return varint(field << 3 | FIXED64) + struct.pack("<Q", value)


def double(field: int, value: float) -> bytes:
    return varint(field << 3 | FIXED64) + struct.pack("<d", value)
