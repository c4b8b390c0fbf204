"""A minimal protobuf encoder: varints and fields of three wire types.

The protobuf package would be a dependency of every user for these few functions. The tests decode the output with
Perfetto's own classes.
"""

from __future__ import annotations

import struct


def varint(value: int) -> bytes:
    """Seven bits per byte, lowest first; the top bit marks continuation. Negative: as 64-bit two's complement."""
    if 0 <= value < len(_SMALL):
        return _SMALL[value]
    value &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


# Tags, lengths and most numbers have one or two bytes. A lookup is faster, and exports spend most time in varint().
_SMALL = [bytes((value,)) for value in range(128)]
_SMALL += [bytes((value & 127 | 128, value >> 7)) for value in range(128, 1 << 14)]


def number(field: int, value: int) -> bytes:
    """A varint field (wire type 0)."""
    return varint(field << 3) + varint(value)


def blob(field: int, content: bytes) -> bytes:
    """A length-delimited field (wire type 2): text, bytes or a message."""
    return varint(field << 3 | 2) + varint(len(content)) + content


def text(field: int, content: str) -> bytes:
    """A text field. Lone surrogates, which cannot be encoded, become '?'."""
    return blob(field, content.encode("utf-8", "replace"))


def fixed64(field: int, value: int) -> bytes:
    """A 64-bit field (wire type 1)."""
    return varint(field << 3 | 1) + struct.pack("<Q", value)


def double(field: int, value: float) -> bytes:
    return varint(field << 3 | 1) + struct.pack("<d", value)
