"""Writes Parquet files from numpy columns and codes of texts.

`encode` makes the pages of one column of one row group: threads may do that side by side, as numpy and zstd
release the interpreter's lock. `ParquetFile.append` puts the columns of a row group behind each other in the file.

`packing` makes the pages; here they are compressed and get their headers (docs/adr/0137-parquet-written-here.md).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankscope.files import open_private
from rankscope.model import Field
from rankscope.protobuf import varint
from rankscope.readers.columns import Texts
from rankscope.records import dataclass
from rankscope.store import packing
from rankscope.store.packing import (
    ONE_PAGE,
    PLAIN,
    RLE,
    Integers,
    Mask,
    Pages,
    boolean_pages,
    code_pages,
    double_pages,
    list_pages,
    number_pages,
    text_pages,
)
from rankscope.zstd import ZstdCompressor

Value = tuple[int, bytes]


def zigzag(number: int) -> bytes:
    """A signed varint: 0, -1, 1, -2, … become 0, 1, 2, 3, …"""
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
    head = bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind]) + varint(count)
    return 9, head + b"".join([data for _, data in values])


def struct(fields: Mapping[int, Value | None]) -> Value:
    """`fields` by number, ascending; those that are None are left out."""
    pieces = []
    last = 0
    for number, value in fields.items():
        if value is not None:
            kind, data = value
            # No two fields of Parquet's structs are over 15 apart.
            pieces.append(bytes([number - last << 4 | kind]))
            pieces.append(data)
            last = number
    pieces.append(b"\0")
    return 12, b"".join(pieces)


_LEVEL = 1
"""zstd's. On arguments, level 3 takes half as long again and makes more; -1 is a tenth faster, a quarter larger."""

_MAGIC = b"PAR1"
_INT32, _INT64, _DOUBLE, _BYTE_ARRAY, _BOOLEAN = 1, 2, 5, 6, 0
_OPTIONAL, _REPEATED = 1, 2
_UNCOMPRESSED, _ZSTD = 0, 6

_WORTH_COMPRESSING, _LARGE = 1 << 10, 1 << 16
"""Sizes of pages in bytes."""


@dataclass(frozen=True)
class _Type:
    """How Parquet stores a SQL type, so that DuckDB reads it as that type."""

    physical: int
    dtype: str = ""
    """Of numbers, as they are in the file."""
    converted: int | None = None
    logical: int | None = None
    """The field of Parquet's LogicalType."""


_TYPES = {
    "BIGINT": _Type(_INT64, "<i8"),
    "INTEGER": _Type(_INT32, "<i4"),
    "DOUBLE": _Type(_DOUBLE, "<f8"),
    "BOOLEAN": _Type(_BOOLEAN, "?"),
    "VARCHAR": _Type(_BYTE_ARRAY, converted=0, logical=1),
    "JSON": _Type(_BYTE_ARRAY, converted=19, logical=12),
}
_LIST_CONVERTED, _LIST_LOGICAL = 3, 3


class Numbers(NamedTuple):
    """A column of numbers or booleans, one entry a row. A number that an INTEGER field cannot hold becomes null."""

    values: NDArray[Any]
    null: int | None = None
    """The value that stands for null; or"""
    valid: Mask | None = None
    """where the values are: the others are null."""


class Coded(NamedTuple):
    """A column of texts by code, one entry a row; a code below 0 is null."""

    codes: Integers
    texts: Texts


class PlainTexts(NamedTuple):
    """A column of texts that hardly repeat, in the form of EventColumns.args."""

    data: Any
    """A buffer with the texts in the order of the rows and nothing between them; each is its length in four bytes
    (little endian), then its UTF-8."""
    offsets: Integers
    """Where in `data` the text of each row begins, or NO_ARGS for null. May be a part of the rows of `data`."""


class Lists(NamedTuple):
    """A column of lists."""

    counts: Integers
    """Elements of each row's list; a list may be empty. Below 0: null."""
    elements: Numbers | Coded
    """The elements of all lists in the order of the rows."""

    @staticmethod
    def of_codes(codes: Integers, texts: Texts, valid: Mask | None = None) -> Lists:
        """Lists of equal length, given as the rows of a matrix; those that are not valid are null."""
        counts = np.full(len(codes), codes.shape[1], dtype=np.int32)
        if valid is not None:
            counts[~valid] = -1
            codes = codes[valid]
        return Lists(counts, Coded(codes.reshape(-1), texts))


Chunk = Numbers | Coded | PlainTexts | Lists


class EncodedColumn(NamedTuple):
    """One column of a row group as it is in the file: its pages, compressed or not."""

    pages: list[bytes]
    codec: int
    encoding: int
    entries: int
    """Rows; of lists, their elements, and one for each that is null or empty."""
    nulls: int
    dictionary_bytes: int
    """The pages begin with a dictionary of this size."""
    stored_bytes: int
    uncompressed_bytes: int
    limits: tuple[bytes, bytes] | None
    """The smallest and the largest value."""


class ParquetFile:
    """A new Parquet file, open for writing. Leaving its context writes the footer, unless there was an error."""

    def __init__(self, path: Path, fields: Sequence[Field]) -> None:
        self._fields = tuple(fields)
        self._file = open_private(path, "wb", buffering=1 << 17)
        self._file.write(_MAGIC)
        self._position = len(_MAGIC)
        self._groups: list[Value] = []
        self.rows = 0

    def write(self, chunks: Mapping[str, Chunk]) -> None:
        """Write a row group: a chunk for each field, all with the same number of rows."""
        first = chunks[self._fields[0].name]
        rows = len(first.offsets if isinstance(first, PlainTexts) else first[0])
        self.append([encode(field, chunks[field.name]) for field in self._fields] if rows else (), rows)

    def append(self, columns: Sequence[EncodedColumn], rows: int) -> None:
        """Write a row group of columns that are encoded, in the order of the fields. One without rows is left out."""
        if not rows:
            return
        chunks = []
        for field, column in zip(self._fields, columns, strict=True):
            chunks.append(_column_chunk(field, column, self._position))
            self._file.writelines(column.pages)
            self._position += column.stored_bytes
        size = sum(column.uncompressed_bytes for column in columns)
        self._groups.append(struct({1: items(chunks), 2: i64(size), 3: i64(rows)}))
        self.rows += rows

    def close(self) -> None:
        """Write the footer."""
        # Only number columns have a minimum and a maximum; their order is that of their type.
        by_type = struct({1: struct({})})
        footer = struct(
            {
                1: i32(1),
                2: _schema(self._fields),
                3: i64(self.rows),
                4: items(self._groups),
                6: text("rankscope"),
                7: items([by_type] * len(self._fields)),
            }
        )[1]
        self._file.write(footer + len(footer).to_bytes(4, "little") + _MAGIC)
        self._file.close()

    def __enter__(self) -> ParquetFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._file.close()


def _schema(fields: Sequence[Field]) -> Value:
    elements = [_schema_elements(field.name, field.type) for field in fields]
    return items([struct({4: text("rows"), 5: i32(len(fields))}), *chain(*elements)])


@lru_cache(maxsize=512)
def _schema_elements(name: str, type: str) -> list[Value]:
    kind = _TYPES[type.removesuffix("[]")]
    if not type.endswith("[]"):
        return [_leaf(name, kind)]
    logical = struct({_LIST_LOGICAL: struct({})})
    return [
        struct({3: i32(_OPTIONAL), 4: text(name), 5: i32(1), 6: i32(_LIST_CONVERTED), 10: logical}),
        struct({3: i32(_REPEATED), 4: text("list"), 5: i32(1)}),
        _leaf("element", kind),
    ]


def _leaf(name: str, kind: _Type) -> Value:
    converted = None if kind.converted is None else i32(kind.converted)
    logical = None if kind.logical is None else struct({kind.logical: struct({})})
    return struct({1: i32(kind.physical), 3: i32(_OPTIONAL), 4: text(name), 6: converted, 10: logical})


def _column_chunk(field: Field, column: EncodedColumn, position: int) -> Value:
    has_dictionary = column.dictionary_bytes > 0
    form = _chunk_form(
        field.name, field.type, column.codec, column.encoding, has_dictionary, column.limits is not None
    )
    numbers = (
        zigzag(column.entries),
        zigzag(column.uncompressed_bytes),
        zigzag(column.stored_bytes),
        zigzag(position + column.dictionary_bytes),
    )
    dictionary = (zigzag(position),) if has_dictionary else ()
    limits = (sized(column.limits[1]), sized(column.limits[0])) if column.limits else ()
    return 12, form % (*numbers, *dictionary, zigzag(column.nulls), *limits)


@lru_cache(maxsize=1024)
def _chunk_form(
    name: str, type: str, codec: int, encoding: int, has_dictionary: bool, has_limits: bool
) -> bytes:
    """Entries, bytes without and with compression, position of the first page and of the dictionary; nulls, the
    largest and the smallest value."""
    encodings = (PLAIN, RLE) if encoding == PLAIN else (PLAIN, RLE, encoding)
    path = (name, "list", "element") if type.endswith("[]") else (name,)
    limit = BINARY_HOLE if has_limits else None
    metadata = {
        1: i32(_TYPES[type.removesuffix("[]")].physical),
        2: items([i32(encoding) for encoding in encodings]),
        3: items([text(step) for step in path]),
        4: i32(codec),
        5: I64_HOLE,
        6: I64_HOLE,
        7: I64_HOLE,
        9: I64_HOLE,
        11: I64_HOLE if has_dictionary else None,
        12: struct({3: I64_HOLE, 5: limit, 6: limit}),
    }
    return form(struct({2: i64(0), 3: struct(metadata)}))


def encode(field: Field, chunk: Chunk) -> EncodedColumn:
    """The pages of one column of one row group."""
    kind = _TYPES[field.type.removesuffix("[]")]
    match chunk:
        case Lists(counts, elements):
            return _encoded(list_pages(counts, _pages(kind, elements, ONE_PAGE)))
        case PlainTexts(data, offsets):
            return _encoded(text_pages(data, offsets))
        case _:
            return _encoded(_pages(kind, chunk, packing.PAGE_ROWS))


def _pages(kind: _Type, chunk: Numbers | Coded, most: int) -> Pages:
    if isinstance(chunk, Coded):
        return code_pages(chunk.codes, chunk.texts, most)
    values, null, valid = chunk
    if kind.physical in (_INT32, _INT64):
        return number_pages(values, 4 if kind.physical == _INT32 else 8, null, valid, most)
    valid = np.ones(len(values), np.bool_) if valid is None else valid
    present = values[valid].astype(kind.dtype, copy=False)
    return boolean_pages(valid, present) if kind.physical == _BOOLEAN else double_pages(valid, present)


class _Compressor(threading.local):
    """A compressor serves one thread at a time, and costs more to make than a small page to compress."""

    def __init__(self) -> None:
        self._zstd = ZstdCompressor(level=_LEVEL)

    def __call__(self, parts: Sequence[Any]) -> bytes:
        """One frame, or one for each part of a large page: its values are not copied to put the levels before them."""
        if sum(map(len, parts)) < _LARGE:
            parts = (b"".join(parts),)
        return b"".join([self._zstd.compress(part, ZstdCompressor.FLUSH_FRAME) for part in parts])


_compress = _Compressor()


_PAGE = struct({1: I32_HOLE, 2: I32_HOLE, 3: i32(RLE), 4: i32(RLE)})
_DATA_PAGE = form(struct({1: i32(0), 2: I32_HOLE, 3: I32_HOLE, 5: _PAGE}))
"""A page header: bytes before and after compression, entries, encoding."""
_DICTIONARY_PAGE = form(
    struct({1: i32(2), 2: I32_HOLE, 3: I32_HOLE, 7: struct({1: I32_HOLE, 2: i32(PLAIN)})})
)
"""Bytes before and after compression, number of values."""


def _encoded(values: Pages) -> EncodedColumn:
    """Pages are compressed if that saves a tenth of the first, including the dictionary."""
    others = iter(values.pages)
    first = next(others)
    begin = ((values.dictionary,), first[1:]) if values.distinct else (first[1:],)
    size = len(values.dictionary) + len(first[1]) + len(first[2])
    bodies = [_compress(parts) for parts in begin] if size >= _WORTH_COMPRESSING else []
    pays = 0 < 10 * sum(map(len, bodies)) < 9 * size
    store = _compress if pays else b"".join
    if not pays:
        bodies = [store(parts) for parts in begin]

    written: list[bytes] = []
    saved = dictionary_bytes = 0
    if values.distinct:
        size, stored = len(values.dictionary), len(bodies[0])
        header = _DICTIONARY_PAGE % (zigzag(size), zigzag(stored), zigzag(values.distinct))
        written += header, bodies[0]
        saved, dictionary_bytes = size - stored, len(header) + stored
    encoding = zigzag(values.encoding)
    pages = chain([(*first, bodies[-1])], ((*page, store(page[1:])) for page in others))
    for entries, levels, data, body in pages:
        size, stored = len(levels) + len(data), len(body)
        written += _DATA_PAGE % (zigzag(size), zigzag(stored), zigzag(entries), encoding), body
        saved += size - stored
    stored = sum(map(len, written))
    entries = len(values.valid)
    return EncodedColumn(
        pages=written,
        codec=_ZSTD if pays else _UNCOMPRESSED,
        encoding=values.encoding,
        entries=entries,
        nulls=entries - values.present,
        dictionary_bytes=dictionary_bytes,
        stored_bytes=stored,
        uncompressed_bytes=stored + saved,
        limits=values.limits,
    )
