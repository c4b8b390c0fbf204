"""Bytes of Parquet's encodings: made in C where that could be built, otherwise the same bytes with numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope import native
from rankscope.readers.columns import NULL, Texts, joined_texts
from rankscope.store.thrift import varint, zigzag

Int64 = NDArray[np.int64]
Mask = NDArray[np.bool_]

_BLOCK = 128


def split_numbers(values: Int64, null: int, lowest: int, highest: int) -> tuple[Mask, Int64]:
    """Which numbers are not null and within the limits, and those."""
    if native.functions is not None:
        valid, kept = native.functions.split_numbers(values, null, lowest, highest)
        return np.frombuffer(valid, np.bool_), np.frombuffer(kept, np.int64)
    valid = (values != null) & (values >= lowest) & (values <= highest)
    return valid, values[valid]


def places_of_codes(codes: NDArray[np.int32], texts: int) -> tuple[Mask, Int64, NDArray[Any]]:
    """Which codes are not null (below 0), the codes that occur, ascending, and the place of each code among those.

    The places are unsigned numbers of one, two or four bytes, as many as needed. `texts` is the number of texts.
    """
    if native.functions is not None:
        valid, used, places = native.functions.places_of_codes(codes, texts)
        codes_used = np.frombuffer(used, np.int64)
        return np.frombuffer(valid, np.bool_), codes_used, np.frombuffer(places, _place_type(len(codes_used)))
    valid = codes >= 0
    kept = codes[valid]
    is_used = np.zeros(texts, dtype=np.bool_)
    is_used[kept] = True
    codes_used = np.flatnonzero(is_used)
    place = np.empty(texts, dtype=_place_type(len(codes_used)))
    place[codes_used] = np.arange(len(codes_used))
    return valid, codes_used, place[kept]


def _place_type(places: int) -> np.dtype[Any]:
    return np.min_scalar_type(max(places - 1, 0))


def plain_texts(texts: Texts, codes: NDArray[np.integer[Any]]) -> tuple[memoryview, Int64]:
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


def pack_deltas(values: Int64) -> Any:
    """At least one number as DELTA_BINARY_PACKED, in a buffer. Blocks of one miniblock, whose width is whole bytes."""
    if native.functions is not None:
        return native.functions.pack_deltas(values)
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
