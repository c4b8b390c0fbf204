"""Arrays of whole numbers as text in JSON files: the bytes of the smallest type that has all values, in base64."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

import numpy as np
from numpy.typing import NDArray


def packed(values: NDArray[Any]) -> tuple[str, str]:
    """The type with the fewest bytes that has all values, and the bytes as text."""
    kinds = ("|b1",) if values.dtype == bool else ("<i1", "<i2", "<i4", "<i8")
    low, high = values.min(initial=0), values.max(initial=0)
    kind = next(kind for kind in kinds if kind == kinds[-1] or _fits(kind, int(low), int(high)))
    return kind, b64encode(values.astype(kind).tobytes()).decode("ascii")


def _fits(kind: str, low: int, high: int) -> bool:
    limits = np.iinfo(kind)
    return bool(limits.min <= low and high <= limits.max)


def unpacked(kind: str, text: str) -> NDArray[Any]:
    """The values that `packed` was given, as bool or int64."""
    values = np.frombuffer(b64decode(text), kind)
    return values.astype(bool if kind == "|b1" else np.int64)
