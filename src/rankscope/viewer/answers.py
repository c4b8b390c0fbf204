"""What a route returns, and its two encodings: JSON, and columns of numbers as bytes.

The byte format is one JSON line that names the columns, then each column as little-endian numbers, aligned so that
the browser can use them as typed arrays. static/js/api.js decodes it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from rankscope.errors import RankscopeError
from rankscope.text.json_values import plain
from rankscope.text.names import COLOURED

if TYPE_CHECKING:
    from numpy.typing import NDArray

Answer = dict[str, Any] | list[Any] | tuple[dict[str, Any], dict[str, Any]] | str
"""A JSON document, or a header (JSON) with columns (arrays), or an HTML page."""
Route = Callable[[dict[str, str]], Answer]
"""From the query parameters to the answer."""


class NotReadyError(RankscopeError):
    """The answer is not known yet: ask again."""


client_left: ContextVar[threading.Event] = ContextVar("client_left")
"""Set when the client of the request that is being answered has gone."""

_CLASSES = ("compute", "comm", "copy", "op", "annotation", "runtime", "sync", "python", "other")
KINDS = (*_CLASSES, *COLOURED, *(f"{family}-host" for family in COLOURED))
"""Colour classes of slices; columns hold the index. The classes, then the families of kernels, then those of ops."""
TILE_WIDTH = 1024
"""Pixels of a tile. Tile (level, index) has pixels of 2**level ns and starts at pixel index * TILE_WIDTH."""

COLUMNS_TYPE = "application/vnd.rankscope.columns"
_LARGEST = 2**62
_MOST_COLUMNS = 4096


def integer(text: str) -> int:
    """A parameter that is a whole number; times are 64 bits wide, and sums of two must be, too."""
    number = int(text)
    if abs(number) > _LARGEST:
        raise ValueError(f"{text[:40]} is too large")
    return number


def integers(query: dict[str, str], *names: str) -> tuple[int, ...]:
    """Several such parameters."""
    return tuple(integer(query[name]) for name in names)


def window_of(query: dict[str, str]) -> tuple[int, int]:
    """The parameters `begin` and `end`."""
    begin, end = integers(query, "begin", "end")
    if end <= begin:
        raise ValueError("the window is empty")
    return begin, end


def columns_of(query: dict[str, str]) -> int:
    """The parameter `width`: columns of pixels, not more than any screen has."""
    width = min(integer(query.get("width", "1000")), _MOST_COLUMNS)
    if width < 1:
        raise ValueError("the window is empty")
    return width


def pack(header: dict[str, Any], columns: dict[str, NDArray[Any]]) -> bytes:
    """The header and the layout of the columns as one JSON line, then the columns, in the format of store.derived."""
    import numpy as np  # late, as in `startup`

    from rankscope.store import derived

    arrays = {name: np.ascontiguousarray(array) for name, array in columns.items()}
    return b"".join(derived.pack(header, arrays, json_bytes))


def as_json(header: dict[str, Any], columns: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """The same answer as a JSON document."""
    return {**header, "columns": {name: array.tolist() for name, array in columns.items()}}


def json_bytes(document: Any) -> bytes:
    """NaN and infinity, which JSON does not have, become null."""
    try:
        return json.dumps(document, allow_nan=False).encode()
    except (TypeError, ValueError):
        return json.dumps(plain(document), allow_nan=False).encode()
