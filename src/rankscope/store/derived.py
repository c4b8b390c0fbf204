"""Tables that are computed from those of a run and kept in the folder `derived` of its store. All may be deleted.

| table | a row is about | made and asked for by |
|---|---|---|
| one for each `kept_per_rank` | a rank | analysis.core.rollups |
| clocks: offset and drift of every rank's clock | the run | timeline.clocks.alignment |
| collectives: the matched collectives | the run | timeline.collectives.loading |
| answers: what `stats` and the viewer show of the whole run | the run | analysis.core.kept_answers |
| map-R: the activity over time of up to 32 ranks, from rank R on | a rank | viewer.session |
| slices-R-S: the slices of a segment in drawing order | the segment | viewer.lanes |

A table is a file. One rule decides whether a row is used (docs/adr/0163-one-derived-cache.md): the code that made it
and what it was made from are those of now. A table has a fingerprint of the code. A row has a key: the build ids of its
segments (a file that is read again has a new one), their distances in time where these matter, and the parameters.
Whatever does not fit is made again and replaced.

One format holds them all: a line of JSON, the columns as little-endian numbers, and a checksum. A file is written as a
whole; one that is damaged or foreign is as good as none. A store that cannot be written to is used as it is. Reading
needs no DuckDB.

Records become columns by the types of their fields: no code in a file can be run by reading it. A record is a dataclass
or a named tuple of numbers, texts, tuples, lists, dictionaries with texts as keys, arrays, None and records. The values
of a field in all records are one column, `name.field`:

| type | columns |
|---|---|
| int, float, bool | the values |
| str | `name$`: their numbers in the table of texts, which holds every text once |
| array, tuple of any length, list, dict | `name#`: how many elements each record has; `name[]`: the elements of all |
| X or None | `name?`: which records have a value; `name`: these values |
| tuple of fixed length, record | the columns of its fields |

Whole numbers are written in the type with the fewest bytes that has all of them. Reading numbers needs no numpy.
"""

from __future__ import annotations

import json
import mmap
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cache
from itertools import accumulate, chain, pairwise, starmap
from pathlib import Path
from struct import calcsize
from types import NoneType, UnionType
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

from isal.isal_zlib import crc32

from rankscope.files import make_private_folder, write_bytes
from rankscope.version import __version__

FOLDER = "derived"
CLOCKS, COLLECTIVES, ANSWERS = "clocks", "collectives", "answers"
_ENDING = ".table"
_SOURCES = Path(__file__).parents[1]
_MAKERS = ("analysis", "timeline", "store", "readers", "viewer")
"""The packages whose code decides what is in a table."""
_OF_SEGMENTS = re.compile(r"(map|slices)-[\d-]+")
_ALIGNMENT = 8
_CHECKSUM_BYTES = 8
_PIECE = 1 << 20
_FORMATS = {
    "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I", "bool": "?",
    "float64": "d",
}  # fmt: skip
"""By the name of a column's type, that of memoryview.cast."""
_WIDTHS = ((8, "int8"), (16, "int16"), (32, "int32"), (64, "int64"))

T = TypeVar("T")
Column = Any
"""An array, or a memoryview of its bytes."""
_TEXTS = "texts"
_TEXT = "$"


def map_file(rank: int) -> str:
    """The name of the file with the activity of a rank and those that follow it."""
    return f"map-{rank:05d}"


def slices_file(rank: int, segment: int) -> str:
    """The name of the file with the slices of a segment."""
    return f"slices-{rank:05d}-{segment}"


def key_of(*cache_key: object) -> int:
    """The key of a row: of JSON values and tuples of them."""
    return int(_digest(json.dumps(cache_key).encode())[:14], 16)


def _digest(content: bytes) -> str:
    from hashlib import blake2b  # late: takes milliseconds, and the run of one rank has no such results

    return blake2b(content, digest_size=16).hexdigest()


@cache
def code_fingerprint() -> str:
    """Of the version, and of the size and time of every source that decides what is in a table: none is read."""
    sources, folders = [], [str(_SOURCES / package) for package in _MAKERS]
    for folder in folders:
        for entry in os.scandir(folder):
            if entry.is_dir():
                folders.append(entry.path)
            elif entry.name.endswith(".py"):
                sources.append((entry.name, entry.stat().st_size, entry.stat().st_mtime_ns))
    return _digest(json.dumps([__version__, sorted(sources)]).encode())


class Table(Generic[T]):
    """Records of one type, in a file of the store: a row for each rank, or one about the whole run."""

    def __init__(self, name: str, record: Any, *, mapped: bool = False) -> None:
        """`mapped`: arrays are used where they lie in the file; it may be larger than the memory."""
        self.name, self._record, self._mapped = name, record, mapped

    def rows(self, store: Path) -> dict[int, tuple[int, T]]:
        """By rank the key and the record; none where the file is missing, damaged or of other code."""
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            columns = _read(path_of(store, self.name), self._mapped)
            records = decode(Columns(columns), "record", self._record)
            rows = zip(columns["key"].tolist(), records, strict=True)
            return dict(zip(columns["rank"].tolist(), rows, strict=True))
        return {}

    def write(self, store: Path, rows: Mapping[int, tuple[int, T]]) -> None:
        """Write or replace the file, unless that cannot be done: what is kept nowhere is made again."""
        columns = Columns(narrow=not self._mapped)
        columns.add("rank", list(rows), "int64")
        columns.add("key", [key for key, _ in rows.values()], "int64")
        try:
            encode(columns, "record", self._record, [record for _, record in rows.values()])
        except OverflowError:  # a number of more than 64 bits
            return
        columns.add_texts()
        pieces = pack({"code": code_fingerprint()}, columns)
        path = path_of(store, self.name)
        if not path.parent.is_symlink():
            with suppress(OSError):
                make_private_folder(path.parent)
                write_bytes(path, [*pieces, _checksum(pieces)])

    def load(self, store: Path, cache_key: object) -> T | None:
        """The record about the whole run that was made from this."""
        key, record = self.rows(store).get(0, (None, None))
        return record if key == key_of(cache_key) else None

    def save(self, store: Path, cache_key: object, record: T) -> None:
        """Write or replace it."""
        self.write(store, {0: (key_of(cache_key), record)})


def path_of(store: Path, name: str) -> Path:
    return store / FOLDER / f"{name}{_ENDING}"


def _read(path: Path, mapped: bool) -> dict[str, Column]:
    """The columns of a file. Raises an error of many types where it is not what this code has written."""
    with path.open("rb") as file:
        line = file.readline()
        header, at = json.loads(line), len(line)
        if header["code"] != code_fingerprint():
            raise ValueError(f"{path.name} is of other code")
        file.seek(0)
        content: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if mapped else file.read()
        end = len(content) - _CHECKSUM_BYTES
        # Of a mapped file, pages that are read to be checked do not stay in the memory of this process.
        read = iter(lambda: file.read(min(_PIECE, end - file.tell())), b"")
        if _checksum(read if mapped else [memoryview(content)[:end]]) != content[end:]:
            raise ValueError(f"{path.name} is not what was written")
    view: Any = memoryview(content)
    columns = {}
    for column in header["columns"]:
        kind = _FORMATS[column["type"]]
        size = column["length"] * calcsize(kind)
        columns[column["name"]] = view[at : at + size].cast(kind)
        at += size + -size % _ALIGNMENT
    if at != end:
        raise ValueError(f"{path.name} has another length")
    return columns


def _checksum(pieces: Iterable[Any]) -> bytes:
    value = 0
    for piece in pieces:
        value = crc32(piece, value)
    return b"%08x" % value


def pack(
    header: Mapping[str, Any],
    columns: Mapping[str, Column],
    to_json: Callable[[Any], bytes] = lambda value: json.dumps(value, separators=(",", ":")).encode(),
) -> list[Any]:
    """The header and the layout of columns as one JSON line, then the columns; each padded to 8 bytes."""
    formats = {code: name for name, code in _FORMATS.items()} | {"l": "int64"}
    pieces: list[Any] = []
    layout = []
    for name, column in columns.items():
        view = memoryview(column)
        layout.append({"name": name, "type": formats[view.format], "length": len(view)})
        pieces += [column, b"\0" * (-view.nbytes % _ALIGNMENT)]
    line = to_json({**header, "columns": layout})
    return [line, b" " * (-(len(line) + 1) % _ALIGNMENT), b"\n", *pieces]


def unused(store: Path, segments: Collection[tuple[int, int]]) -> list[Path]:
    """Tables about segments that are not in the store, and foreign and unfinished files."""
    used = {name for rank, segment in segments for name in (map_file(rank), slices_file(rank, segment))}
    return [
        path
        for path in (store / FOLDER).glob("*")
        if path.suffix != _ENDING or (_OF_SEGMENTS.fullmatch(path.stem) and path.stem not in used)
    ]


class Columns(dict[str, Column]):
    """The columns of a table by name, and its texts."""

    def __init__(self, columns: Mapping[str, Column] | None = None, *, narrow: bool = True) -> None:
        """`narrow`: numbers are written in the smallest type; not where arrays are to be used as they lie in a file."""
        super().__init__(columns or {})
        self._narrow = narrow
        self._numbers: dict[str, int] = {}
        self.texts: list[str] = []
        if _TEXTS in self:
            ends, joined = accumulate(self[f"{_TEXTS}#"].tolist(), initial=0), bytes(self[_TEXTS])
            self.texts = [joined[low:high].decode("utf-8", "surrogatepass") for low, high in pairwise(ends)]

    def add(self, name: str, values: Any, kind: str) -> None:
        """A column of numbers of this type."""
        import numpy as np

        array = np.ascontiguousarray(values, dtype=kind)
        if self._narrow and kind == "int64" and len(array):
            low, high = int(array.min()), int(array.max())
            bits = max(low, ~low, high, ~high).bit_length() + 1
            array = array.astype(next(small for most, small in _WIDTHS if bits <= most), copy=False)
        self[name] = array

    def number(self, text: str) -> int:
        """Of a text."""
        return self._numbers.setdefault(text, len(self._numbers))

    def add_texts(self) -> None:
        """Those that have a number."""
        encoded = [text.encode("utf-8", "surrogatepass") for text in self._numbers]
        if encoded:
            self.add(f"{_TEXTS}#", [len(text) for text in encoded], "int64")
            self[_TEXTS] = memoryview(b"".join(encoded))


@cache
def _shape(kind: Any) -> tuple[str, Any]:
    """What a type is, as it is written in a record, and what it is made of."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in (int, float, bool):
        return "number", {int: "int64", float: "float64", bool: "bool"}[kind]
    if kind is str or origin is Literal:
        return "text", None
    if getattr(origin, "__module__", "").startswith("numpy"):
        (scalar,) = get_args(arguments[-1]) or arguments[-1:]
        return "array", scalar
    if origin is UnionType:
        (other,) = (part for part in arguments if part is not NoneType)
        return "optional", other
    if origin is dict:
        return "list", (dict, tuple[arguments])  # type: ignore[valid-type]
    if origin is list or Ellipsis in arguments:
        return "list", (origin, arguments[0])
    if origin is tuple:
        return "record", (None, {str(at): part for at, part in enumerate(arguments)})
    hints = get_type_hints(kind)
    names = kind._fields if hasattr(kind, "_fields") else [field.name for field in fields(kind)]
    return "record", (kind, {name: hints[name] for name in names})


def encode(columns: Columns, name: str, kind: Any, values: Sequence[Any]) -> None:
    """Add the columns of some values of a type; their names begin with a name."""
    shape, of = _shape(kind)
    if shape in ("array", "list"):
        columns.add(f"{name}#", [len(value) for value in values], "int64")
    if shape == "number":
        columns.add(name, values, of)
    elif shape == "text":
        columns.add(f"{name}{_TEXT}", [columns.number(text) for text in values], "int64")
    elif shape == "array":
        import numpy as np

        columns.add(f"{name}[]", np.concatenate(values) if values else (), np.dtype(of).name)
    elif shape == "list":
        lists = (value.items() if of[0] is dict else value for value in values)
        encode(columns, f"{name}[]", of[1], [*chain.from_iterable(lists)])
    elif shape == "optional":
        columns.add(f"{name}?", [value is not None for value in values], "bool")
        encode(columns, name, of, [value for value in values if value is not None])
    else:
        record, parts = of
        by_name = record is not None and not hasattr(record, "_fields")
        for at, (field, part) in enumerate(parts.items()):
            part_values = [getattr(value, field) if by_name else value[at] for value in values]
            encode(columns, f"{name}.{field}", part, part_values)


def decode(columns: Columns, name: str, kind: Any) -> list[Any]:
    """The values whose columns begin with a name."""
    shape, of = _shape(kind)
    if shape == "number":
        return list(columns[name].tolist())
    if shape == "text":
        return [columns.texts[number] for number in columns[f"{name}{_TEXT}"].tolist()]
    if shape == "optional":
        values = iter(decode(columns, name, of))
        return [next(values, None) if has_value else None for has_value in columns[f"{name}?"].tolist()]
    if shape == "record":
        record, parts = of
        rows = zip(*(decode(columns, f"{name}.{field}", part) for field, part in parts.items()), strict=True)
        return list(rows if record is None else starmap(record, rows))
    make: Any = None
    elements: Any
    if shape == "array":
        import numpy as np

        elements = np.asarray(columns[f"{name}[]"]).astype(of, copy=False)
    else:
        make, each = of
        elements = decode(columns, f"{name}[]", each)
    ends = accumulate(columns[f"{name}#"].tolist(), initial=0)
    parts_of = (elements[low:high] for low, high in pairwise(ends))
    return list(map(make, parts_of) if make else parts_of)
