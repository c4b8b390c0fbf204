"""A block of Kineto's JSON, read by the scanner written in C (native/scan.c, docs/adr/0136-native-scanner.md)."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope import native
from rankscope.model import COMPUTING_OPS, MEMORY_ARGS, SHAPE_ARGS
from rankscope.readers.columns import IN_C, EventColumns, Texts
from rankscope.readers.kineto.arguments import OP_CATEGORIES, TYPED_ARGS, WITH_TYPED_ARGS, WITHOUT_TYPED_ARGS

_Lists = tuple[tuple[bytes, ...], ...]


def _lists(*lists: tuple[str, ...]) -> _Lists:
    return tuple(tuple(text.encode() for text in texts) for texts in lists)


_WORDS = _lists(
    WITHOUT_TYPED_ARGS,
    ("cpu_op",),
    ("user_annotation",),
    OP_CATEGORIES,
    (WITH_TYPED_ARGS,),
    ("[memory]",),
    COMPUTING_OPS,
)
"""Categories and names that decide which arguments of an event get columns; scan.c says what each list means."""

_NAMES = _lists(
    tuple(name for name, kind in TYPED_ARGS.items() if kind == "BIGINT"),
    tuple(name for name, kind in TYPED_ARGS.items() if kind == "VARCHAR"),
    tuple(MEMORY_ARGS),
    SHAPE_ARGS,
)
"""The arguments that get columns: numbers and texts of linked events, of memory events, of computing ops."""

_COLUMNS = {
    **dict.fromkeys(("phase", "category", "name", "pid", "tid"), np.int32),
    **dict.fromkeys(("flow", "time", "duration"), np.int64),
    "args": np.uint8,
    "args_offset": np.uint32,
    "linked": np.int32,
    **dict.fromkeys(("correlation", "external_id", "device", "stream", "bytes"), np.int64),
    "collective": np.int32,
    "memory_events": np.int32,
    "memory": np.int64,
    "computing": np.int32,
    "shapes": np.int32,
}
"""In the order in which the scanner returns them."""


def available() -> bool:
    return native.functions is not None


def scan(view: memoryview) -> EventColumns | None:
    """The events of a block: complete events with commas between them. None if the scanner is not sure to read them as
    the DuckDB reader does."""
    found = native.functions.scan_events(view, _WORDS, _NAMES)
    if found is None:
        return None
    *buffers, text_offsets, text_data = found
    columns: dict[str, Any] = {
        name: np.frombuffer(buffer, dtype=kind)
        for (name, kind), buffer in zip(_COLUMNS.items(), buffers, strict=True)
    }
    columns["memory"] = columns["memory"].reshape(-1, len(MEMORY_ARGS))
    columns["shapes"] = columns["shapes"].reshape(-1, len(SHAPE_ARGS))
    return EventColumns(
        texts=Texts(np.frombuffer(text_offsets, dtype=np.int64), text_data), read_by=IN_C, **columns
    )
