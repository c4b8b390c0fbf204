"""Records as JSON values and back, by the types of their fields: no code in a file can be run by reading it.

A record is a dataclass or a named tuple of numbers, texts, tuples, dictionaries with texts as keys, integer arrays,
and records. A record becomes the list of its values, an array its type and the text of its bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from rankscope.store.packed_arrays import packed, unpacked


class Codec(NamedTuple):
    """Two functions, from a record to JSON values and back."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


_PLAIN = Codec(_same, _same)
_TUPLE = Codec(list, tuple)
_ARRAY = Codec(packed, lambda value: unpacked(*value))


def codec_of(kind: Any) -> Codec:
    """Of a type, as it is written in a record."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in (int, float, str, bool, NoneType):
        return _PLAIN
    if origin in (np.ndarray, NDArray):  # the latter with numpy 2.5
        return _ARRAY
    if origin is UnionType:
        (other,) = (codec_of(one) for one in arguments if one is not NoneType)
        return _PLAIN if other is _PLAIN else _optional(other)
    if origin is dict:
        each = codec_of(arguments[1])
        return _PLAIN if each is _PLAIN else _mapping(each)
    if origin is tuple:
        parts = [codec_of(one) for one in arguments if one is not Ellipsis]
        if all(part is _PLAIN for part in parts):
            return _TUPLE
        return _sequence(parts[0]) if Ellipsis in arguments else _record(tuple, parts)
    hints = get_type_hints(kind)
    if hasattr(kind, "_make"):
        return _record(kind._make, [codec_of(hints[name]) for name in kind._fields])
    names = [f.name for f in fields(kind)]
    record = _record(lambda values: kind(*values), [codec_of(hints[name]) for name in names])
    return Codec(lambda value: record.encode([getattr(value, name) for name in names]), record.decode)


def _optional(other: Codec) -> Codec:
    return Codec(
        lambda value: None if value is None else other.encode(value),
        lambda value: None if value is None else other.decode(value),
    )


def _mapping(each: Codec) -> Codec:
    return Codec(
        lambda value: {key: each.encode(one) for key, one in value.items()},
        lambda value: {key: each.decode(one) for key, one in value.items()},
    )


def _sequence(each: Codec) -> Codec:
    return Codec(
        lambda value: [each.encode(one) for one in value],
        lambda value: tuple([each.decode(one) for one in value]),
    )


def _record(made: Callable[[Any], Any], parts: list[Codec]) -> Codec:
    if all(part is _PLAIN for part in parts):
        return Codec(list, made)
    return Codec(
        lambda value: [part.encode(one) for part, one in zip(parts, value, strict=True)],
        lambda value: made([part.decode(one) for part, one in zip(parts, value, strict=True)]),
    )
