"""The pages of Parquet's columns before they are compressed: made in C where that could be built, or by numpy.

C writes numbers as differences (DELTA_BINARY_PACKED), or as one byte each where they are close together; numpy writes
them as they are, which takes a seventh more space. Texts are a dictionary and codes of one, two or four bytes. Whole
bytes are quicker to make than the fewest bits, and as small once they are compressed.
docs/adr/0137-parquet-written-here.md compares the alternatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankscope import native
from rankscope.protobuf import varint
from rankscope.readers.columns import NO_ARGS, NULL, Texts, joined_texts

Int64 = NDArray[np.int64]
Integers = NDArray[np.integer[Any]]
Mask = NDArray[np.bool_]

PLAIN, RLE, RLE_DICTIONARY = 0, 3, 8

PAGE_ROWS = 1 << 17
PAGE_BYTES = 1 << 20
"""Of the texts in a page: smaller ones compress less, larger ones are no faster."""
ONE_PAGE = 1 << 62
"""As the number of values in a page: all of them."""

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
    """The same numbers with numpy."""
    limits = np.iinfo(f"<i{size}")
    fits = (values >= limits.min) & (values <= limits.max)
    if null is not None:
        fits &= values != null
    if valid is not None:
        fits &= valid
    numbers = values[fits].astype(f"<i{size}")
    if not len(numbers):
        return _pages(fits, 0, PLAIN, _no_values)
    ends = numbers.min().tobytes(), numbers.max().tobytes()
    return _plain_pages(fits, numbers, range(most, len(numbers), most), ends)


def code_pages(codes: Integers, texts: Texts, most: int) -> Pages:
    """Texts by code; a code below 0 is null. Texts that mostly occur once are written without a dictionary."""
    codes = np.ascontiguousarray(codes, np.int32)
    if native.functions is not None:
        pages = native.functions.code_pages(codes, texts.data, texts.offsets, most)
        if pages is not None:
            return Pages._make(pages)
    valid = codes >= 0
    present = codes[valid]
    if native.functions is None:
        is_used = np.zeros(len(texts), dtype=np.bool_)
        is_used[present] = True
        used = np.flatnonzero(is_used)
        if 0 < 2 * len(used) <= len(present) or len(present) == 1:
            new_codes = np.empty(len(texts), dtype=np.min_scalar_type(len(used) - 1))
            new_codes[used] = np.arange(len(used))
            return _dictionary_pages(valid, new_codes[present], most, texts, used)
    return _text_pages(valid, *_plain_texts(texts, present))


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
    page_ends = sorted({*np.searchsorted(offsets, targets).tolist()})  # np.unique imports numpy.ma, 20 ms
    return _pages(valid, len(offsets), PLAIN, page, page_ends)


def _plain_pages(
    valid: Mask, values: NDArray[Any], page_ends: Sequence[int], limits: tuple[bytes, bytes] | None
) -> Pages:
    """Numbers as they are."""
    return _pages(
        valid, len(values), PLAIN, lambda begin, end: values[begin:end].view(np.uint8), page_ends, limits
    )


def double_pages(valid: Mask, values: NDArray[np.float64]) -> Pages:
    if not len(values):
        return _pages(valid, 0, PLAIN, _no_values)
    # NaN has no place in the order of numbers; the limits must include zeros of both signs.
    low, high = values.min() or np.float64(-0.0), values.max() or np.float64(0.0)
    limits = None if np.isnan(low) else (low.tobytes(), high.tobytes())
    return _plain_pages(valid, values, range(PAGE_ROWS, len(values), PAGE_ROWS), limits)


def boolean_pages(valid: Mask, values: Mask) -> Pages:
    def page(begin: int, end: int) -> Any:
        return np.packbits(values[begin:end], bitorder="little")

    return _pages(valid, len(values), PLAIN, page, range(PAGE_ROWS, len(values), PAGE_ROWS))


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


def _dictionary_pages(valid: Mask, codes: Integers, most: int, texts: Texts, used: Int64) -> Pages:
    """`codes` are unsigned; their bytes become Parquet's bit-packed numbers as they are."""

    def page(begin: int, end: int) -> bytes:
        if len(used) == 1:
            return b"\1" + varint(end - begin << 1) + b"\0"
        groups = -(-(end - begin) // 8)
        head = bytes([codes.itemsize * 8]) + varint(groups << 1 | 1)
        return b"".join((head, codes[begin:end].data, bytes((groups * 8 - (end - begin)) * codes.itemsize)))

    dictionary = bytes(_plain_texts(texts, used)[0])
    pages = _pages(valid, len(codes), RLE_DICTIONARY, page, range(most, len(codes), most))
    return pages._replace(dictionary=dictionary, distinct=len(used))


def _pages(
    valid: Mask,
    count: int,
    encoding: int,
    page: Callable[[int, int], Any],
    page_ends: Sequence[int] = (),
    limits: tuple[bytes, bytes] | None = None,
) -> Pages:
    """`page` makes the values from one to another; `page_ends` are the values that begin a new page."""
    pages = _flat_pages(valid, count, page, page_ends)
    return Pages(valid, count, encoding, pages, limits=limits)


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
    plain = np.empty(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
    is_text = np.ones(len(plain), dtype=np.bool_)
    lengths_at = (offsets[:, None] + np.arange(4)).reshape(-1)
    is_text[lengths_at] = False
    plain[lengths_at] = lengths.astype("<u4").view(np.uint8)
    text_at = np.flatnonzero(is_text)
    plain[text_at] = np.frombuffer(texts.data, dtype=np.uint8)[
        text_at + np.repeat(begins - offsets - 4, lengths)
    ]
    return plain.data, offsets


def number_texts(numbers: NDArray[np.int64]) -> tuple[Any, NDArray[np.uint32]]:
    """Whole numbers, none below 0, as PLAIN texts, and where each begins; NULL has no text, and NO_ARGS."""
    if native.functions is not None:
        data, offsets = native.functions.number_texts(np.ascontiguousarray(numbers))
        return data, np.frombuffer(offsets, dtype=np.uint32)
    return joined_texts(None if number == NULL else b"%d" % number for number in numbers.tolist())
