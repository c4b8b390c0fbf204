"""Bytes of Parquet's encodings: in C where that could be built, otherwise the same bytes with numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.readers.columns import Texts


def plain_texts(texts: Texts, codes: NDArray[np.integer[Any]]) -> tuple[memoryview, NDArray[np.int64]]:
    """The texts of these codes as PLAIN, each its length in four bytes and its UTF-8; and where each begins."""
    starts = texts.offsets[codes]
    lengths = texts.offsets[codes + 1] - starts
    ends = np.cumsum(lengths + 4)
    offsets = ends - lengths - 4
    made = np.empty(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
    is_text = np.ones(len(made), dtype=np.bool_)
    lengths_at = (offsets[:, None] + np.arange(4)).reshape(-1)
    is_text[lengths_at] = False
    made[lengths_at] = lengths.astype("<u4").view(np.uint8)
    text_at = np.flatnonzero(is_text)
    made[text_at] = np.frombuffer(texts.data, dtype=np.uint8)[
        text_at + np.repeat(starts - offsets - 4, lengths)
    ]
    return made.data, offsets
