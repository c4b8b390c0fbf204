"""Thrift's compact protocol, as far as Parquet's headers and footer need it: values become bytes, nothing is read.

A value is its type and its bytes; a struct is made of values by field number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Value = tuple[int, bytes]

_BYTES = [bytes([number]) for number in range(256)]


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the top bit says that more follow."""
    if number < 0x80:
        return _BYTES[number]
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


def zigzag(number: int) -> bytes:
    """A signed varint: 0, -1, 1, -2, … become 0, 1, 2, 3, …"""
    if 0 <= number < 0x40:
        return _BYTES[number << 1]
    return varint(number << 1 if number >= 0 else (-number << 1) - 1)


def i32(number: int) -> Value:
    return 5, zigzag(number)


def i64(number: int) -> Value:
    return 6, zigzag(number)


def sized(data: bytes) -> bytes:
    return varint(len(data)) + data


def binary(data: bytes) -> Value:
    return 8, sized(data)


def text(value: str) -> Value:
    return binary(value.encode())


_HOLE = b"\xff a hole \xff"
I32_HOLE, I64_HOLE, BINARY_HOLE = (5, _HOLE), (6, _HOLE), (8, _HOLE)
"""Values of a form that are not known yet."""


def form(value: Value) -> bytes:
    """A value with holes: `form % (…)` puts bytes into them, five times as fast as making the whole value."""
    return value[1].replace(b"%", b"%%").replace(_HOLE, b"%b")


def items(values: Sequence[Value]) -> Value:
    """A list of values of one type; that of an empty list is a struct."""
    kind = values[0][0] if values else 12
    count = len(values)
    head = _BYTES[count << 4 | kind] if count < 15 else _BYTES[0xF0 | kind] + varint(count)
    return 9, head + b"".join([data for _, data in values])


def struct(fields: Mapping[int, Value | None]) -> Value:
    """`fields` by number, ascending; those that are None are left out."""
    pieces = []
    last = 0
    for number, value in fields.items():
        if value is not None:
            kind, data = value
            pieces.append(
                _BYTES[number - last << 4 | kind]
            )  # no two fields of Parquet's structs are over 15 apart
            pieces.append(data)
            last = number
    pieces.append(b"\0")
    return 12, b"".join(pieces)
