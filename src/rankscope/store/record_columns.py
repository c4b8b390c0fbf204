"""Records as named columns and back, by the types of their fields: no code in a file can be run by reading it.

A record is a dataclass or a named tuple of numbers, texts, tuples, lists, dictionaries with texts as keys, arrays, None
and records. The values of a field in all records are one column, `name.field`:

| type | columns |
|---|---|
| int, float, bool | the values |
| str | their numbers in the table of texts, which holds every text once |
| array, tuple of any length, list, dict | `name#`: how many elements each record has; `name[]`: the elements of all |
| X or None | `name?`: which records have a value; `name`: these values |
| tuple of fixed length, record | the columns of its fields |

Whole numbers are written in the type with the fewest bytes that has all of them. Reading numbers needs no numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import accumulate, chain, pairwise, starmap
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

Column = Any
"""An array, or a memoryview of its bytes."""
_TEXTS = "texts"


class Columns:
    """The columns of a table, and its texts."""

    def __init__(self, columns: Mapping[str, Column] | None = None, *, narrow: bool = True) -> None:
        """`narrow`: numbers are written in the smallest type; not where arrays are to be used as they lie in a file."""
        self.columns: dict[str, Column] = dict(columns or {})
        self._narrow = narrow
        self._numbers: dict[str, int] = {}
        self.texts: list[str] = []
        if _TEXTS in self.columns:
            sizes, joined = self.columns[f"{_TEXTS}#"].tolist(), bytes(self.columns[_TEXTS])
            ends = accumulate(sizes, initial=0)
            self.texts = [joined[low:high].decode("utf-8", "surrogatepass") for low, high in pairwise(ends)]

    def add(self, name: str, values: Any, kind: str) -> None:
        """A column of numbers of this type."""
        import numpy as np

        array = np.ascontiguousarray(values, dtype=kind)
        if self._narrow and kind == "int64" and len(array):
            low, high = int(array.min()), int(array.max())
            limits = ((small, np.iinfo(small)) for small in ("int8", "int16", "int32"))
            array = array.astype(next((small for small, i in limits if i.min <= low and high <= i.max), kind))
        self.columns[name] = array

    def number(self, text: str) -> int:
        """Of a text."""
        return self._numbers.setdefault(text, len(self._numbers))

    def finished(self) -> dict[str, Column]:
        """All columns, with the texts."""
        encoded = [text.encode("utf-8", "surrogatepass") for text in self._numbers]
        if encoded:
            self.add(f"{_TEXTS}#", [len(text) for text in encoded], "int64")
            self.columns[_TEXTS] = memoryview(b"".join(encoded))
        return self.columns


class Codec(NamedTuple):
    """Two functions: from some values of a type to columns whose names begin with a name, and back."""

    encode: Callable[[Columns, str, Sequence[Any]], None]
    decode: Callable[[Columns, str], Sequence[Any]]


def codec_of(kind: Any) -> Codec:
    """Of a type, as it is written in a record."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in (int, float, bool):
        return _numbers({int: "int64", float: "float64", bool: "bool"}[kind])
    if kind is str or origin is Literal:
        return _texts
    if getattr(origin, "__module__", "").startswith("numpy"):
        (scalar,) = get_args(arguments[-1]) or arguments[-1:]
        return _arrays(scalar)
    if origin is UnionType:
        (other,) = (codec_of(part) for part in arguments if part is not NoneType)
        return _optional(other)
    if origin is dict:
        return _lists(_record(None, {"key": _texts, "value": codec_of(arguments[1])}), dict, dict.items)
    if origin is list or Ellipsis in arguments:
        return _lists(codec_of(arguments[0]), origin)
    if origin is tuple:
        return _record(None, {str(at): codec_of(part) for at, part in enumerate(arguments)})
    hints = get_type_hints(kind)
    names = kind._fields if hasattr(kind, "_fields") else [field.name for field in fields(kind)]
    return _record(kind, {name: codec_of(hints[name]) for name in names})


def _numbers(kind: str) -> Codec:
    return Codec(
        lambda columns, name, values: columns.add(name, values, kind),
        lambda columns, name: columns.columns[name].tolist(),
    )


_texts = Codec(
    lambda columns, name, values: columns.add(name, [columns.number(text) for text in values], "int64"),
    lambda columns, name: [columns.texts[number] for number in columns.columns[name].tolist()],
)


def _arrays(scalar: type) -> Codec:
    def encode(columns: Columns, name: str, values: Sequence[Any]) -> None:
        import numpy as np

        columns.add(f"{name}#", [len(array) for array in values], "int64")
        columns.add(f"{name}[]", np.concatenate(values) if values else (), np.dtype(scalar).name)

    def decode(columns: Columns, name: str) -> Sequence[Any]:
        import numpy as np

        elements: Any = np.asarray(columns.columns[f"{name}[]"]).astype(scalar, copy=False)
        return _cut(elements, columns.columns[f"{name}#"])

    return Codec(encode, decode)


def _cut(elements: Any, sizes: Column) -> list[Any]:
    """The elements of each record."""
    return [elements[low:high] for low, high in pairwise(accumulate(sizes.tolist(), initial=0))]


def _lists(each: Codec, make: Callable[[Any], Any], items: Callable[[Any], Iterable[Any]] = iter) -> Codec:
    def encode(columns: Columns, name: str, values: Sequence[Any]) -> None:
        columns.add(f"{name}#", [len(value) for value in values], "int64")
        each.encode(columns, f"{name}[]", list(chain.from_iterable(map(items, values))))

    def decode(columns: Columns, name: str) -> Sequence[Any]:
        return [make(part) for part in _cut(each.decode(columns, f"{name}[]"), columns.columns[f"{name}#"])]

    return Codec(encode, decode)


def _optional(other: Codec) -> Codec:
    def encode(columns: Columns, name: str, values: Sequence[Any]) -> None:
        columns.add(f"{name}?", [value is not None for value in values], "bool")
        other.encode(columns, name, [value for value in values if value is not None])

    def decode(columns: Columns, name: str) -> Sequence[Any]:
        values = iter(other.decode(columns, name))
        return [
            next(values, None) if has_value else None for has_value in columns.columns[f"{name}?"].tolist()
        ]

    return Codec(encode, decode)


def _record(kind: Any, parts: Mapping[str, Codec]) -> Codec:
    """`kind` is None for a plain tuple."""

    def encode(columns: Columns, name: str, values: Sequence[Any]) -> None:
        by_name = kind is not None and not hasattr(kind, "_fields")
        for at, (field, part) in enumerate(parts.items()):
            part.encode(
                columns,
                f"{name}.{field}",
                [getattr(value, field) if by_name else value[at] for value in values],
            )

    def decode(columns: Columns, name: str) -> Sequence[Any]:
        values = zip(*(part.decode(columns, f"{name}.{field}") for field, part in parts.items()), strict=True)
        return list(values if kind is None else starmap(kind, values))

    return Codec(encode, decode)
