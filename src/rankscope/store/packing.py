"""Bytes of Parquet's encodings: made in C where that could be built, otherwise the same bytes with numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope import native
from rankscope.readers.columns import Texts
from rankscope.store.thrift import varint, zigzag

Int64 = NDArray[np.int64]

_BLOCK, _MINIBLOCK = 128, 32


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
    """At least one number as DELTA_BINARY_PACKED, in a buffer. The widths are whole bytes."""
    if native.functions is not None:
        return native.functions.pack_deltas(values)
    steps = np.diff(values)
    blocks = -(-len(steps) // _BLOCK)
    padded = np.pad(steps, (0, blocks * _BLOCK - len(steps)), mode="edge").reshape(blocks, _BLOCK)
    smallest = padded.min(axis=1)
    excess = (padded - smallest[:, None]).view(np.uint64)
    excess.reshape(-1)[len(steps) :] = 0
    miniblocks = excess.reshape(blocks, -1, _MINIBLOCK)
    widths = sum((miniblocks.max(axis=2) >> np.uint64(8 * i) > 0).astype(np.uint8) for i in range(8))
    single_bytes = miniblocks.view(np.uint8).reshape(*miniblocks.shape, 8)
    pieces = [varint(_BLOCK), varint(_BLOCK // _MINIBLOCK), varint(len(values)), zigzag(int(values[0]))]
    for block, low in enumerate(smallest.tolist()):
        pieces += zigzag(low), (widths[block] * 8).tobytes()
        pieces += (single_bytes[block, i, :, :width].tobytes() for i, width in enumerate(widths[block]))
    return b"".join(pieces)
