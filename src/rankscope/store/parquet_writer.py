"""Writes Parquet files from numpy columns and codes of texts.

`encode` makes the pages of one column of one row group: threads may do that side by side, as numpy and zstandard
release the interpreter's lock. `ParquetFile.append` puts the columns of a row group behind each other in the file.

Numbers are written as differences (DELTA_BINARY_PACKED), or as one byte each where they are close together; texts as a
dictionary and codes of one, two or four bytes. Whole bytes are quicker to make than the fewest bits, and as small once
they are compressed. docs/adr/0137-parquet-written-here.md compares the alternatives.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from rankscope.model import Field
from rankscope.private_files import open_private
from rankscope.readers.columns import NO_ARGS, Texts
from rankscope.records import dataclass
from rankscope.store.packing import pack_deltas, places_of_codes, plain_texts, split_numbers
from rankscope.store.thrift import Value, binary, i32, i64, items, struct, text, varint

Mask = NDArray[np.bool_]
Integers = NDArray[np.integer[Any]]
Int64 = NDArray[np.int64]
Levels = NDArray[np.uint8]

PAGE_ROWS = 1 << 17
PAGE_BYTES = 1 << 20
"""Of the texts in a page: smaller ones compress less, larger ones are no faster."""

_LEVEL = 1
"""zstd's. On arguments, level 3 takes half as long again and makes more; -1 is a tenth faster, a quarter larger."""

_MAGIC = b"PAR1"
_INT32, _INT64, _DOUBLE, _BYTE_ARRAY, _BOOLEAN = 1, 2, 5, 6, 0
_OPTIONAL, _REPEATED = 1, 2
_UNCOMPRESSED, _ZSTD = 0, 6
_PLAIN, _RLE, _DELTA_BINARY_PACKED, _RLE_DICTIONARY = 0, 3, 5, 8
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2

_FEW = 256
"""Fewer numbers than this are written as they are."""

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


@dataclass(frozen=True)
class Numbers:
    """A column of numbers or booleans, one entry a row. A number that an INTEGER field cannot hold becomes null."""

    values: NDArray[Any]
    null: int | None = None
    """The value that stands for null; or"""
    valid: Mask | None = None
    """where the values are: the others are null."""


@dataclass(frozen=True)
class Coded:
    """A column of texts by code, one entry a row; a code below 0 is null."""

    codes: Integers
    texts: Texts


@dataclass(frozen=True)
class PlainTexts:
    """A column of texts that hardly repeat, in the form of EventColumns.args."""

    data: Any
    """A buffer with the texts in the order of the rows and nothing between them; each is its length in four bytes
    (little endian), then its UTF-8."""
    offsets: Integers
    """Where in `data` the text of each row begins, or NO_ARGS for null. May be a part of the rows of `data`."""


@dataclass(frozen=True)
class Lists:
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


@dataclass(frozen=True)
class EncodedColumn:
    """One column of a row group as it is in the file: its pages, compressed or not."""

    pages: list[bytes]
    codec: int
    encodings: tuple[int, ...]
    entries: int
    """Rows; of lists, their elements, and one for each that is null or empty."""
    dictionary_bytes: int
    """The pages begin with a dictionary of this size."""
    bytes: int
    uncompressed_bytes: int
    statistics: Value


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
        rows = _rows(chunks[self._fields[0].name])
        self.append([encode(field, chunks[field.name]) for field in self._fields] if rows else (), rows)

    def append(self, columns: Sequence[EncodedColumn], rows: int) -> None:
        """Write a row group of columns that are encoded, in the order of the fields. One without rows is left out."""
        if not rows:
            return
        chunks = []
        for field, column in zip(self._fields, columns, strict=True):
            chunks.append(_column_chunk(field, column, self._position))
            self._file.writelines(column.pages)
            self._position += column.bytes
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


def _rows(chunk: Chunk) -> int:
    match chunk:
        case Numbers(values=values):
            return len(values)
        case Coded(codes=codes):
            return len(codes)
        case PlainTexts(offsets=offsets):
            return len(offsets)
        case Lists(counts=counts):
            return len(counts)


def _element_type(field: Field) -> _Type:
    return _TYPES[field.type.removesuffix("[]")]


@lru_cache(maxsize=64)
def _schema(fields: tuple[Field, ...]) -> Value:
    elements = [struct({4: text("rows"), 5: i32(len(fields))})]
    for field in fields:
        if field.type.endswith("[]"):
            logical = struct({_LIST_LOGICAL: struct({})})
            elements += (
                struct(
                    {3: i32(_OPTIONAL), 4: text(field.name), 5: i32(1), 6: i32(_LIST_CONVERTED), 10: logical}
                ),
                struct({3: i32(_REPEATED), 4: text("list"), 5: i32(1)}),
                _leaf("element", _element_type(field)),
            )
        else:
            elements.append(_leaf(field.name, _element_type(field)))
    return items(elements)


def _leaf(name: str, kind: _Type) -> Value:
    converted = None if kind.converted is None else i32(kind.converted)
    logical = None if kind.logical is None else struct({kind.logical: struct({})})
    return struct({1: i32(kind.physical), 3: i32(_OPTIONAL), 4: text(name), 6: converted, 10: logical})


def _column_chunk(field: Field, column: EncodedColumn, position: int) -> Value:
    metadata = {
        1: i32(_element_type(field).physical),
        2: _encodings(column.encodings),
        3: _path(field.name, field.type.endswith("[]")),
        4: i32(column.codec),
        5: i64(column.entries),
        6: i64(column.uncompressed_bytes),
        7: i64(column.bytes),
        9: i64(position + column.dictionary_bytes),
        11: i64(position) if column.dictionary_bytes else None,
        12: column.statistics,
    }
    return struct({2: i64(0), 3: struct(metadata)})


@lru_cache
def _encodings(encodings: tuple[int, ...]) -> Value:
    return items([i32(encoding) for encoding in encodings])


@lru_cache(maxsize=512)
def _path(name: str, is_list: bool) -> Value:
    return items([text(step) for step in ((name, "list", "element") if is_list else (name,))])


@dataclass(frozen=True)
class _Values:
    """The values of a column that are not null."""

    count: int
    encoding: int
    page: Callable[[int, int], Any]
    """Some of the values, from one to another, in that encoding: a buffer whose length is that of its bytes."""
    page_ends: Sequence[int] = ()
    """The values that begin a new page."""
    dictionary: bytes = b""
    """The distinct values, PLAIN, if the encoding is RLE_DICTIONARY; and their number."""
    distinct: int = 0
    limits: tuple[bytes, bytes] | None = None
    """The smallest and the largest."""


_NO_VALUES = _Values(0, _PLAIN, lambda begin, end: b"")


def encode(field: Field, chunk: Chunk) -> EncodedColumn:
    """The pages of one column of one row group."""
    kind = _element_type(field)
    if isinstance(chunk, Lists):
        valid, values = _values(kind, chunk.elements)
        repetition, definition = _list_levels(chunk.counts, valid)
        parts = (_levels(repetition, 1), _levels(definition, 2), values.page(0, values.count))
        return _column(values, iter([(len(definition), parts)]), len(definition))
    valid, values = _values(kind, chunk)
    return _column(values, _flat_pages(valid, values), len(valid))


def _values(kind: _Type, chunk: Numbers | Coded | PlainTexts) -> tuple[Mask, _Values]:
    """Which entries are not null, and their values."""
    match chunk:
        case Coded(codes=codes, texts=texts):
            valid, used, places = places_of_codes(np.ascontiguousarray(codes, np.int32), len(texts))
            if 2 * len(used) > len(places) > 1:
                return valid, _text_values(*plain_texts(texts, codes[valid]))
            dictionary, _ = plain_texts(texts, used)
            return valid, _dictionary_values(bytes(dictionary), len(used), places)
        case PlainTexts(data=data, offsets=offsets):
            valid = offsets != NO_ARGS
            return valid, _text_values(memoryview(data), offsets if valid.all() else offsets[valid])
        case Numbers() if kind.physical in (_INT32, _INT64):
            valid, integers = _integers(kind, chunk)
            return valid, _integer_values(kind, integers)
        case Numbers(values=numbers, valid=mask):
            valid = np.ones(len(numbers), np.bool_) if mask is None else mask
            kept = numbers[valid].astype(kind.dtype, copy=False)
            return valid, _boolean_values(kept) if kind.physical == _BOOLEAN else _double_values(kept)


def _integers(kind: _Type, chunk: Numbers) -> tuple[Mask, Int64]:
    """Which entries are not null and fit the type, and those."""
    values = np.ascontiguousarray(chunk.values, np.int64)
    if chunk.valid is not None:
        values = values[chunk.valid]
    if chunk.null is None and kind.physical == _INT64:
        return np.ones(len(values), np.bool_) if chunk.valid is None else chunk.valid, values
    limits = np.iinfo(kind.dtype)
    null = limits.max + 1 if chunk.null is None else chunk.null
    fits, values = split_numbers(values, null, int(limits.min), int(limits.max))
    if chunk.valid is None:
        return fits, values
    valid = chunk.valid.copy()
    valid[valid] = fits
    return valid, values


def _integer_values(kind: _Type, values: Int64) -> _Values:
    if not len(values):
        return _NO_VALUES
    low, high = int(values.min()), int(values.max())
    size = np.dtype(kind.dtype).itemsize
    limits = low.to_bytes(size, "little", signed=True), high.to_bytes(size, "little", signed=True)
    if low == high or (high - low < 256 and len(values) >= _FEW):
        dictionary = (np.arange(high - low + 1) + low).astype(kind.dtype)
        codes = (values - low).astype(np.uint8)
        return _dictionary_values(dictionary.tobytes(), len(dictionary), codes, limits)
    # Differences must fit the type: readers do not agree on what follows from an overflow.
    if len(values) < _FEW or high - low >= 1 << size * 8 - 2:
        return _plain_numbers(values.astype(kind.dtype, copy=False), limits)
    return _Values(
        len(values),
        _DELTA_BINARY_PACKED,
        lambda begin, end: memoryview(pack_deltas(values[begin:end])),
        range(PAGE_ROWS, len(values), PAGE_ROWS),
        limits=limits,
    )


def _double_values(values: NDArray[np.float64]) -> _Values:
    if not len(values):
        return _NO_VALUES
    # NaN has no place in the order of numbers; the limits must include zeros of both signs.
    low, high = values.min() or np.float64(-0.0), values.max() or np.float64(0.0)
    return _plain_numbers(values, None if np.isnan(low) else (low.tobytes(), high.tobytes()))


def _plain_numbers(values: NDArray[Any], limits: tuple[bytes, bytes] | None) -> _Values:
    page_ends = range(PAGE_ROWS, len(values), PAGE_ROWS)
    return _Values(
        len(values), _PLAIN, lambda begin, end: values[begin:end].view(np.uint8), page_ends, limits=limits
    )


def _boolean_values(values: Mask) -> _Values:
    page_ends = range(PAGE_ROWS, len(values), PAGE_ROWS)
    return _Values(
        len(values), _PLAIN, lambda begin, end: np.packbits(values[begin:end], bitorder="little"), page_ends
    )


def _dictionary_values(
    dictionary: bytes, distinct: int, codes: Integers, limits: tuple[bytes, bytes] | None = None
) -> _Values:
    """`codes` are unsigned; their bytes become Parquet's bit-packed numbers as they are."""
    if not distinct:
        return _NO_VALUES

    def page(begin: int, end: int) -> bytes:
        if distinct == 1:
            return b"\1" + varint(end - begin << 1) + b"\0"
        groups = -(-(end - begin) // 8)
        head = bytes([codes.itemsize * 8]) + varint(groups << 1 | 1)
        return b"".join((head, codes[begin:end].data, bytes((groups * 8 - (end - begin)) * codes.itemsize)))

    page_ends = range(PAGE_ROWS, len(codes), PAGE_ROWS)
    return _Values(len(codes), _RLE_DICTIONARY, page, page_ends, dictionary, distinct, limits)


def _text_values(data: memoryview, offsets: Integers) -> _Values:
    """`offsets`: where each text begins; there is nothing between them."""
    if not len(offsets):
        return _NO_VALUES
    begin_of_last = int(offsets[-1])
    end_of_data = begin_of_last + 4 + int.from_bytes(data[begin_of_last : begin_of_last + 4], "little")

    def page(begin: int, end: int) -> memoryview:
        return data[int(offsets[begin]) : int(offsets[end]) if end < len(offsets) else end_of_data]

    targets = np.arange(int(offsets[0]) + PAGE_BYTES, begin_of_last, PAGE_BYTES)
    page_ends = np.unique(np.searchsorted(offsets, targets)) if len(targets) else targets
    return _Values(len(offsets), _PLAIN, page, page_ends.tolist())


def _flat_pages(valid: Mask, values: _Values) -> Iterator[tuple[int, Sequence[Any]]]:
    """The number of entries of each page, and the parts of the page: definition levels, values."""
    rows = np.flatnonzero(valid)[list(values.page_ends)].tolist() if values.page_ends else []
    row = value = 0
    for end_row, end_value in zip((*rows, len(valid)), (*values.page_ends, values.count), strict=True):
        entries, present = end_row - row, end_value - value
        if 0 < present < entries:
            levels = _levels(valid[row:end_row], 1)
        else:  # one run of equal levels
            levels = _sized(varint(entries << 1) + (b"\1" if present else b"\0"))
        yield entries, (levels, values.page(value, end_value))
        row, value = end_row, end_value


_NULL_LIST, _EMPTY_LIST, _NULL_ELEMENT, _LIST_ELEMENT = 0, 1, 2, 3
"""Definition levels of a list's entries."""


def _list_levels(counts: Integers, valid: Mask) -> tuple[Levels, Levels]:
    """Repetition levels: 0 begins a list. Definition levels: what each entry is."""
    begins = np.cumsum(np.maximum(counts, 1)) - np.maximum(counts, 1)
    repetition = np.ones(int(np.maximum(counts, 1).sum()), dtype=np.uint8)
    repetition[begins] = 0
    definition = np.empty(len(repetition), dtype=np.uint8)
    has_elements = np.repeat(counts, np.maximum(counts, 1)) > 0
    definition[has_elements] = np.where(valid, _LIST_ELEMENT, _NULL_ELEMENT)
    definition[begins[counts == 0]] = _EMPTY_LIST
    definition[begins[counts < 0]] = _NULL_LIST
    return repetition, definition


def _levels(levels: NDArray[Any], width: int) -> bytes:
    """Bit-packed levels, of a width of 1 or 2."""
    groups = -(-len(levels) // 8)
    bits = levels if width == 1 else np.unpackbits(levels[:, None], axis=1, count=2, bitorder="little")
    packed = np.packbits(bits, bitorder="little")
    return _sized(b"".join((varint(groups << 1 | 1), packed.data, bytes(groups * width - len(packed)))))


def _sized(levels: bytes) -> bytes:
    return len(levels).to_bytes(4, "little") + levels


class _Compressor(threading.local):
    """A compressor serves one thread at a time, and costs more to make than a small page to compress."""

    def __init__(self) -> None:
        self._compress = zstandard.ZstdCompressor(level=_LEVEL).compress

    def __call__(self, parts: Sequence[Any]) -> bytes:
        """One frame, or one for each part of a large page: its values are not copied to put the levels before them."""
        if sum(map(len, parts)) < _LARGE:
            parts = (b"".join(parts),)
        return b"".join([self._compress(part) for part in parts])


_compress = _Compressor()


@dataclass(frozen=True)
class _Page:
    header: dict[int, Value]
    """What Parquet's PageHeader has besides the sizes."""
    type: int
    parts: Sequence[Any]
    """Buffers of bytes: levels, values."""
    size: int


def _data_page(values: _Values, entries: int, parts: Sequence[Any]) -> _Page:
    header = struct({1: i32(entries), 2: i32(values.encoding), 3: i32(_RLE), 4: i32(_RLE)})
    return _Page({5: header}, _DATA_PAGE, parts, sum(map(len, parts)))


def _dictionary_page(values: _Values) -> _Page:
    header = struct({1: i32(values.distinct), 2: i32(_PLAIN)})
    return _Page({7: header}, _DICTIONARY_PAGE, (values.dictionary,), len(values.dictionary))


def _column(values: _Values, pages: Iterator[tuple[int, Sequence[Any]]], entries: int) -> EncodedColumn:
    """`pages`: the entries and the parts of each. They are compressed if that saves a tenth of the first."""
    first = [_data_page(values, *next(pages))]
    if values.distinct:
        first.insert(0, _dictionary_page(values))
    size = sum(page.size for page in first)
    bodies = [_compress(page.parts) for page in first] if size >= _WORTH_COMPRESSING else []
    pays = 0 < 10 * sum(map(len, bodies)) < 9 * size
    store = _compress if pays else b"".join
    if not pays:
        bodies = [store(page.parts) for page in first]

    written: list[bytes] = []
    saved = 0
    others = (_data_page(values, *page) for page in pages)
    for page, body in chain(zip(first, bodies, strict=True), ((page, store(page.parts)) for page in others)):
        written.append(struct({1: i32(page.type), 2: i32(page.size), 3: i32(len(body)), **page.header})[1])
        written.append(body)
        saved += page.size - len(body)
    stored = sum(map(len, written))
    smallest, largest = map(binary, values.limits) if values.limits else (None, None)
    return EncodedColumn(
        pages=written,
        codec=_ZSTD if pays else _UNCOMPRESSED,
        encodings=(_PLAIN, _RLE) if values.encoding == _PLAIN else (_PLAIN, _RLE, values.encoding),
        entries=entries,
        dictionary_bytes=len(written[0]) + len(written[1]) if values.distinct else 0,
        bytes=stored,
        uncompressed_bytes=stored + saved,
        statistics=struct({3: i64(entries - values.count), 5: largest, 6: smallest}),
    )
