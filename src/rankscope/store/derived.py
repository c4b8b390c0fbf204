"""What is computed from the tables of a run and kept in its store, in the folder `derived`. All of it may be deleted.

| file | holds | rows | made and asked for by |
|---|---|---|---|
| rollups | results about single ranks, a table for each kind | ranks | analysis.core.rollups |
| clocks | offset and drift of every rank's clock | one | timeline.clocks.alignment |
| collectives | the matched collectives of a run with many | one | timeline.collectives.loading |
| map-R | the activity over time of up to 32 ranks, from rank R on | ranks | viewer.session |
| slices-R-S | the slices of a segment in drawing order | one | viewer.lanes |

One rule decides whether a row is used (docs/adr/0163-one-derived-cache.md): the code that made it and what it was made
from are those of now. A table has a fingerprint of the code: the version of rankscope, the schema, and the sources of
the modules that compute it. A row has a key: the build ids of its segments (a file that is read again has a new one),
their distances in time where these matter, and the parameters. Whatever does not fit is made again and replaced.

One format holds them all: a line of JSON (tables, columns), the columns as little-endian numbers, and a checksum. A
file is written as a whole; one that is damaged or foreign is as good as none. A store that cannot be written to is used
as it is. Reading needs no DuckDB.

Records become columns by the types of their fields: no code in a file can be run by reading it. A record is a dataclass
or a named tuple of numbers, texts, tuples, lists, dictionaries with texts as keys, arrays, None and records. The values
of a field in all records are one column, `name.field`:

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

import json
import mmap
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cache
from itertools import accumulate, chain, pairwise, starmap
from pathlib import Path
from struct import calcsize
from types import NoneType, UnionType
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from isal.isal_zlib import crc32

from rankscope.files import make_private_folder, temporary_path, write_bytes
from rankscope.version import __version__

FOLDER = "derived"
LEAST_RANKS_WITH_ROLLUPS = 8
"""Runs of fewer ranks get their rollups with the first report that needs them."""
ROLLUPS, CLOCKS, COLLECTIVES = "rollups", "clocks", "collectives"
_ENDING = ".columns"
_EARLIER = ("rollups", "clocks.json", "collectives.json", "rank=*/map.npy", "rank=*/segment=*/*/lod")
"""Where earlier versions kept them."""
_SOURCES = Path(__file__).parents[2]
_IMPORT = re.compile(rb"from (rankscope\.[\w.]+) import")
_EVERYWHERE = ("rankscope.model", "rankscope.store.derived")
_ALIGNMENT = 8
_CHECKSUM_BYTES = 8
_PIECE = 1 << 20
_FORMATS = {
    "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I", "bool": "?",
    "float64": "d",
}  # fmt: skip
"""By the name of a column's type, that of memoryview.cast."""

T = TypeVar("T")
Column = Any
"""An array, or a memoryview of its bytes."""
_TEXTS = "texts"


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
def code_fingerprint(*modules: str) -> str:
    """Of the version, the schema, and the sources of modules and of those of their package that they import."""
    used: dict[str, str] = {}
    waiting = [*modules, *_EVERYWHERE]
    within = tuple(f"{'.'.join(module.split('.')[:2])}." for module in modules)
    while waiting:
        module = waiting.pop()
        if module not in used:
            used[module], imported = _source(module)
            waiting += [name for name in imported if name.startswith(within)]
    return _digest(repr((__version__, sorted(used.items()))).encode())


@cache
def _source(module: str) -> tuple[str, tuple[str, ...]]:
    """A digest of the text of a module, and the modules that it imports, at its start or later."""
    path = _SOURCES.joinpath(*module.split("."))
    source = b""
    with suppress(OSError):  # installed without sources
        source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_bytes()
    return _digest(source), tuple(map(bytes.decode, _IMPORT.findall(source)))


class RawTable(NamedTuple):
    """A table as it is in a file."""

    fingerprint: str
    columns: Mapping[str, Column]
    """`rank` and `key` of every row, and those of the records."""


class Table(Generic[T]):
    """A kind of result: records of one type that some modules make."""

    def __init__(self, name: str, record: Any, *modules: str, mapped: bool = False) -> None:
        """`mapped`: arrays are used where they lie in the file; it may be larger than the memory."""
        self.name, self._record, self._modules, self.mapped = name, record, modules, mapped

    @property
    def fingerprint(self) -> str:
        return code_fingerprint(*self._modules)

    def encode(self, rows: Mapping[int, tuple[int, T]]) -> RawTable:
        """From rank to key and record; of a result about the whole run, the rank is 0."""
        columns = Columns(narrow=not self.mapped)
        columns.add("rank", list(rows), "int64")
        columns.add("key", [key for key, _ in rows.values()], "int64")
        encode(columns, "record", self._record, [record for _, record in rows.values()])
        columns.add_texts()
        return RawTable(self.fingerprint, columns)

    def decode(self, table: RawTable, keys: Mapping[int, int]) -> dict[int, T]:
        """The records of the rows that have these keys, by rank; none if other code has made them."""
        if table.fingerprint != self.fingerprint:
            return {}
        rows = zip(table.columns["rank"].tolist(), table.columns["key"].tolist(), strict=True)
        usable = [keys.get(rank) == key for rank, key in rows]
        if not any(usable):
            return {}
        records = decode(Columns(table.columns), "record", self._record)
        ranks = table.columns["rank"].tolist()
        return {rank: record for rank, record, use in zip(ranks, records, usable, strict=True) if use}

    def load(self, store: Path, cache_key: object) -> T | None:
        """The result about the whole run that is in the file of this name."""
        return File(path_of(store, self.name), mapped=self.mapped).rows(self, {0: key_of(cache_key)}).get(0)

    def save(self, store: Path, cache_key: object, record: T) -> None:
        """Write or replace that file."""
        write(path_of(store, self.name), {self.name: self.encode({0: (key_of(cache_key), record)})})


def path_of(store: Path, name: str) -> Path:
    return store / FOLDER / f"{name}{_ENDING}"


def path_of_part(store: Path, name: str) -> Path:
    """A new path for a part of a file, which its maker hands to whoever writes the whole; abandoned, it is removed."""
    return temporary_path(path_of(store, name))


class File:
    """The tables of a file; none where it is missing, damaged or foreign."""

    def __init__(self, path: Path, *, mapped: bool = False) -> None:
        self.tables: dict[str, RawTable] = {}
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self.tables = _read(path, mapped)

    def rows(self, table: Table[T], keys: Mapping[int, int]) -> dict[int, T]:
        """The records that this code made from this, by rank."""
        with suppress(ValueError, KeyError, TypeError, AttributeError, IndexError):
            if raw := self.tables.get(table.name):
                return table.decode(raw, keys)
        return {}


def _read(path: Path, mapped: bool) -> dict[str, RawTable]:
    with path.open("rb") as file:
        line = file.readline()
        file.seek(0)
        content: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if mapped else file.read()
        end = len(content) - _CHECKSUM_BYTES
        # Of a mapped file, pages that are read to be checked do not stay in the memory of this process.
        read = iter(lambda: file.read(min(_PIECE, end - file.tell())), b"")
        if _checksum(read if mapped else [memoryview(content)[:end]]) != content[end:]:
            raise ValueError(f"{path.name} is not what was written")
    header, at = json.loads(line), len(line)
    view: Any = memoryview(content)
    tables = {name: RawTable(fingerprint, {}) for name, fingerprint in header["tables"].items()}
    for column in header["columns"]:
        table, _, name = column["name"].partition("/")
        kind = _FORMATS[column["type"]]
        size = column["length"] * calcsize(kind)
        columns: Any = tables[table].columns
        columns[name] = view[at : at + size].cast(kind)
        at += size + -size % _ALIGNMENT
    if at != end:
        raise ValueError(f"{path.name} has another length")
    return tables


def _checksum(pieces: Iterable[Any]) -> bytes:
    value = 0
    for piece in pieces:
        value = crc32(piece, value)
    return b"%08x" % value


def write(path: Path, tables: Mapping[str, RawTable]) -> None:
    """Write or replace a file, unless that cannot be done: what is kept nowhere is made again."""
    columns = {
        f"{name}/{key}": column for name, table in tables.items() for key, column in table.columns.items()
    }
    fingerprints = {name: table.fingerprint for name, table in tables.items()}
    pieces = pack({"tables": fingerprints}, columns)
    if not path.parent.is_symlink():
        with suppress(OSError):
            make_private_folder(path.parent)
            write_bytes(path, [*pieces, _checksum(pieces)])


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
    """Files of segments that are not in the store, foreign and unfinished ones, and those of earlier versions."""
    names = [ROLLUPS, CLOCKS, COLLECTIVES]
    for rank, segment in segments:
        names += [map_file(rank), slices_file(rank, segment)]
    used = {f"{name}{_ENDING}" for name in names}
    return [
        *(path for path in (store / FOLDER).glob("*") if path.name not in used),
        *(path for pattern in _EARLIER for path in store.glob(pattern)),
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
            limits = ((small, np.iinfo(small)) for small in ("int8", "int16", "int32"))
            array = array.astype(next((small for small, i in limits if i.min <= low and high <= i.max), kind))
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
        columns.add(name, [columns.number(text) for text in values], "int64")
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
        return [columns.texts[number] for number in columns[name].tolist()]
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
