"""The pages of Parquet's columns before they are compressed: made in C where that could be built, or by numpy.

Both make the same bytes.

Numbers are written as differences (DELTA_BINARY_PACKED), or as one byte each where they are close together; texts as a
dictionary and codes of one, two or four bytes. Whole bytes are quicker to make than the fewest bits, and as small once
they are compressed. docs/adr/0137-parquet-written-here.md compares the alternatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankscope import native
from rankscope.readers.columns import NO_ARGS, NULL, Texts, joined_texts
from rankscope.store.thrift import varint, zigzag

Int64 = NDArray[np.int64]
Integers = NDArray[np.integer[Any]]
Levels = NDArray[np.uint8]
Mask = NDArray[np.bool_]

PLAIN, RLE, DELTA_BINARY_PACKED, RLE_DICTIONARY = 0, 3, 5, 8

PAGE_ROWS = 1 << 17
PAGE_BYTES = 1 << 20
"""Of the texts in a page: smaller ones compress less, larger ones are no faster."""
ONE_PAGE = 1 << 62
"""As the number of values in a page: all of them."""

_FEW = 256
"""Fewer numbers than this are written as they are."""
_BLOCK = 128

Page = tuple[int, Any, Any]
"""The number of entries, their levels, and the values: buffers whose length is that of their bytes."""


class Pages(NamedTuple):
    """The values of a column that are not null, in pages."""

    valid: Any
    """A buffer with a byte for each entry: 1 if it is not null."""
    present: int
    """The number of values."""
    encoding: int
    pages: Iterable[Page]
    dictionary: bytes = b""
    """The distinct values, PLAIN, if the encoding is RLE_DICTIONARY; and their number."""
    distinct: int = 0
    limits: tuple[bytes, bytes] | None = None
    """The smallest and the largest."""


def number_pages(values: Integers, size: int, null: int | None, valid: Mask | None, most: int) -> Pages:
    """Integers of `size` bytes in the file, at most `most` in a page; those that do not fit are null."""
    if native.functions is None:
        return _number_pages(values, size, null, valid, most)
    if values.dtype not in (np.int32, np.int64) or not values.flags.c_contiguous:
        values = np.ascontiguousarray(values, np.int64)
    return Pages._make(native.functions.number_pages(values, values.itemsize, valid, null, size, most))


def _number_pages(values: Integers, size: int, null: int | None, valid: Mask | None, most: int) -> Pages:
    """The same with numpy."""
    limits = np.iinfo(f"<i{size}")
    fits = (values >= limits.min) & (values <= limits.max)
    if null is not None:
        fits &= values != null
    if valid is not None:
        fits &= valid
    kept = values[fits].astype(np.int64)
    if not len(kept):
        return _pages(fits, 0, PLAIN, _no_values)
    low, high = int(kept.min()), int(kept.max())
    ends = low.to_bytes(size, "little", signed=True), high.to_bytes(size, "little", signed=True)
    page_ends = range(most, len(kept), most)
    if low == high or (high - low < 256 and len(kept) >= _FEW):
        dictionary = (np.arange(high - low + 1) + low).astype(f"<i{size}")
        codes = (kept - low).astype(np.uint8)
        return _dictionary_pages(fits, codes, page_ends, dictionary.tobytes(), len(dictionary), ends)
    # Differences must fit the type: readers do not agree on what follows from an overflow.
    if len(kept) < _FEW or high - low >= 1 << size * 8 - 2:
        return _plain_pages(fits, kept.astype(f"<i{size}"), page_ends, ends)
    return _pages(
        fits,
        len(kept),
        DELTA_BINARY_PACKED,
        lambda begin, end: _deltas(kept[begin:end]),
        page_ends,
        limits=ends,
    )


def code_pages(codes: Integers, texts: Texts, most: int) -> Pages:
    """Texts by code; a code below 0 is null. Texts that mostly occur once are written without a dictionary."""
    codes = np.ascontiguousarray(codes, np.int32)
    if native.functions is None:
        found = _code_pages(codes, texts, most)
    else:
        made = native.functions.code_pages(codes, texts.data, texts.offsets, most)
        found = None if made is None else Pages._make(made)
    if found is not None:
        return found
    valid = codes >= 0
    return _text_pages(valid, *_plain_texts(texts, codes[valid]))


def _code_pages(codes: Integers, texts: Texts, most: int) -> Pages | None:
    """The same with numpy. None where most texts occur once."""
    valid = codes >= 0
    kept = codes[valid]
    is_used = np.zeros(len(texts), dtype=np.bool_)
    is_used[kept] = True
    used = np.flatnonzero(is_used)
    if 2 * len(used) > len(kept) > 1:
        return None
    if not len(used):
        return _pages(valid, 0, PLAIN, _no_values)
    place = np.empty(len(texts), dtype=np.min_scalar_type(len(used) - 1))
    place[used] = np.arange(len(used))
    dictionary = bytes(_plain_texts(texts, used)[0])
    return _dictionary_pages(valid, place[kept], range(most, len(kept), most), dictionary, len(used))


def text_pages(data: Any, offsets: Integers) -> Pages:
    """Texts that are PLAIN already: where each begins in a buffer, or NO_ARGS for null."""
    valid = offsets != NO_ARGS
    return _text_pages(valid, memoryview(data), offsets if valid.all() else offsets[valid])


def _text_pages(valid: Mask, data: memoryview, offsets: Integers) -> Pages:
    """`offsets`: where each text begins; there is nothing between them."""
    if not len(offsets):
        return _pages(valid, 0, PLAIN, _no_values)
    begin_of_last = int(offsets[-1])
    end_of_data = begin_of_last + 4 + int.from_bytes(data[begin_of_last : begin_of_last + 4], "little")

    def page(begin: int, end: int) -> memoryview:
        return data[int(offsets[begin]) : int(offsets[end]) if end < len(offsets) else end_of_data]

    targets = np.arange(int(offsets[0]) + PAGE_BYTES, begin_of_last, PAGE_BYTES)
    page_ends = np.unique(np.searchsorted(offsets, targets)).tolist() if len(targets) else ()
    return _pages(valid, len(offsets), PLAIN, page, page_ends)


def _plain_pages(
    valid: Mask, values: NDArray[Any], page_ends: Sequence[int], limits: tuple[bytes, bytes] | None
) -> Pages:
    """Numbers as they are."""
    return _pages(
        valid,
        len(values),
        PLAIN,
        lambda begin, end: values[begin:end].view(np.uint8),
        page_ends,
        limits=limits,
    )


def double_pages(valid: Mask, values: NDArray[np.float64]) -> Pages:
    if not len(values):
        return _pages(valid, 0, PLAIN, _no_values)
    # NaN has no place in the order of numbers; the limits must include zeros of both signs.
    low, high = values.min() or np.float64(-0.0), values.max() or np.float64(0.0)
    limits = None if np.isnan(low) else (low.tobytes(), high.tobytes())
    return _plain_pages(valid, values, range(PAGE_ROWS, len(values), PAGE_ROWS), limits)


def boolean_pages(valid: Mask, values: Mask) -> Pages:
    page_ends = range(PAGE_ROWS, len(values), PAGE_ROWS)
    return _pages(
        valid,
        len(values),
        PLAIN,
        lambda begin, end: np.packbits(values[begin:end], bitorder="little"),
        page_ends,
    )


_NULL_LIST, _EMPTY_LIST, _NULL_ELEMENT, _LIST_ELEMENT = 0, 1, 2, 3
"""Definition levels of a list's entries."""


def list_pages(counts: Integers, elements: Pages) -> Pages:
    """Lists, in one page. `counts`: the elements of each; below 0: null. `elements`: of all lists, in one page."""
    valid = np.frombuffer(elements.valid, np.bool_)
    # Repetition levels: 0 begins a list. Definition levels: what each entry is.
    entries = np.maximum(counts, 1)
    begins = np.cumsum(entries) - entries
    repetition = np.ones(int(entries.sum()), dtype=np.uint8)
    repetition[begins] = 0
    definition = np.empty(len(repetition), dtype=np.uint8)
    definition[np.repeat(counts, entries) > 0] = np.where(valid, _LIST_ELEMENT, _NULL_ELEMENT)
    definition[begins[counts == 0]] = _EMPTY_LIST
    definition[begins[counts < 0]] = _NULL_LIST
    levels = _levels(repetition, 1) + _levels(definition, 2)
    values = b"".join(values for _, _, values in elements.pages)
    return elements._replace(valid=repetition, pages=[(len(repetition), levels, values)])


def _no_values(begin: int, end: int) -> bytes:
    return b""


def _dictionary_pages(
    valid: Mask,
    codes: Integers,
    page_ends: Sequence[int],
    dictionary: bytes,
    distinct: int,
    limits: tuple[bytes, bytes] | None = None,
) -> Pages:
    """`codes` are unsigned; their bytes become Parquet's bit-packed numbers as they are."""

    def page(begin: int, end: int) -> bytes:
        if distinct == 1:
            return b"\1" + varint(end - begin << 1) + b"\0"
        groups = -(-(end - begin) // 8)
        head = bytes([codes.itemsize * 8]) + varint(groups << 1 | 1)
        return b"".join((head, codes[begin:end].data, bytes((groups * 8 - (end - begin)) * codes.itemsize)))

    return _pages(valid, len(codes), RLE_DICTIONARY, page, page_ends, dictionary, distinct, limits)


def _pages(
    valid: Mask,
    count: int,
    encoding: int,
    page: Callable[[int, int], Any],
    page_ends: Sequence[int] = (),
    dictionary: bytes = b"",
    distinct: int = 0,
    limits: tuple[bytes, bytes] | None = None,
) -> Pages:
    """`page` makes the values from one to another; `page_ends` are the values that begin a new page."""
    return Pages(
        valid, count, encoding, _flat_pages(valid, count, page, page_ends), dictionary, distinct, limits
    )


def _flat_pages(
    valid: Mask, count: int, page: Callable[[int, int], Any], page_ends: Sequence[int]
) -> Iterator[Page]:
    rows = np.flatnonzero(valid)[list(page_ends)].tolist() if page_ends else []
    row = value = 0
    for end_row, end_value in zip((*rows, len(valid)), (*page_ends, count), strict=True):
        entries, present = end_row - row, end_value - value
        if 0 < present < entries:
            levels = _levels(valid[row:end_row], 1)
        else:  # one run of equal levels
            levels = _sized(varint(entries << 1) + (b"\1" if present else b"\0"))
        yield entries, levels, page(value, end_value)
        row, value = end_row, end_value


def _levels(levels: NDArray[Any], width: int) -> bytes:
    """Bit-packed levels, of a width of 1 or 2."""
    groups = -(-len(levels) // 8)
    bits = levels if width == 1 else np.unpackbits(levels[:, None], axis=1, count=2, bitorder="little")
    packed = np.packbits(bits, bitorder="little")
    return _sized(b"".join((varint(groups << 1 | 1), packed.data, bytes(groups * width - len(packed)))))


def _sized(levels: bytes) -> bytes:
    return len(levels).to_bytes(4, "little") + levels


def _plain_texts(texts: Texts, codes: Integers) -> tuple[memoryview, Int64]:
    """The texts of these codes as PLAIN, each its length in four bytes and its UTF-8; and where each begins."""
    codes = codes.astype(np.int64, copy=False)
    begins = texts.offsets[codes]
    lengths = texts.offsets[codes + 1] - begins
    ends = np.cumsum(lengths + 4)
    offsets = ends - lengths - 4
    if native.functions is not None:
        return memoryview(native.functions.plain_texts(texts.data, texts.offsets, codes)), offsets
    made = np.empty(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
    is_text = np.ones(len(made), dtype=np.bool_)
    lengths_at = (offsets[:, None] + np.arange(4)).reshape(-1)
    is_text[lengths_at] = False
    made[lengths_at] = lengths.astype("<u4").view(np.uint8)
    text_at = np.flatnonzero(is_text)
    made[text_at] = np.frombuffer(texts.data, dtype=np.uint8)[
        text_at + np.repeat(begins - offsets - 4, lengths)
    ]
    return made.data, offsets


def _deltas(values: Int64) -> bytes:
    """At least one number as DELTA_BINARY_PACKED. Blocks of one miniblock, whose width is whole bytes."""
    steps = np.diff(values)
    blocks = -(-len(steps) // _BLOCK)
    padded = np.pad(steps, (0, blocks * _BLOCK - len(steps)), mode="edge").reshape(blocks, _BLOCK)
    smallest = padded.min(axis=1)
    excess = (padded - smallest[:, None]).view(np.uint64)
    excess.reshape(-1)[len(steps) :] = 0
    largest = excess.max(axis=1)
    widths = sum((largest >> np.uint64(8 * byte) > 0).astype(np.uint8) for byte in range(8))
    single_bytes = excess.view(np.uint8).reshape(blocks, _BLOCK, 8)
    pieces = [varint(_BLOCK), varint(1), varint(len(values)), zigzag(int(values[0]))]
    for block, (low, width) in enumerate(zip(smallest.tolist(), widths.tolist(), strict=True)):
        pieces += zigzag(low), varint(width * 8), single_bytes[block, :, :width].tobytes()
    return b"".join(pieces)


def number_texts(numbers: NDArray[np.int64]) -> tuple[Any, NDArray[np.uint32]]:
    """Whole numbers, none below 0, as PLAIN texts, and where each begins; NULL has no text, and NO_ARGS."""
    if native.functions is not None:
        data, offsets = native.functions.number_texts(np.ascontiguousarray(numbers))
        return data, np.frombuffer(offsets, dtype=np.uint32)
    return joined_texts(None if number == NULL else b"%d" % number for number in numbers.tolist())
