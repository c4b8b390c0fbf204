"""Events that a reader selects with SQL, as columns. DuckDB runs the SQL: one for each thread, started when needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from rankscope.model import MEMORY_ARGS, SHAPE_ARGS
from rankscope.readers.base import Batch
from rankscope.readers.columns import (
    LINKS,
    NULL,
    EventColumns,
    Numbers,
    Texts,
    event_columns,
    joined_texts,
    text_codes,
    whole_number,
)
from rankscope.readers.database import new_database
from rankscope.sql import sql_name

if TYPE_CHECKING:
    import duckdb

_MEMORY_LIMIT = "1GB"
"""For one batch, which is some tens of MB of text."""

_NEVER_NULL = ("ph", "category", "name", "pid", "tid")
_SPARSE = {
    "memory": (
        "memory IS NOT NULL AS has_memory",
        *(f"memory.{sql_name(name)} AS memory_{index}" for index, name in enumerate(MEMORY_ARGS)),
    ),
    "shapes": (
        "shapes IS NOT NULL AS has_shapes",
        *(f"shapes[{index + 1}] AS shape_{index}" for index in range(len(SHAPE_ARGS))),
    ),
}

_of_thread = threading.local()
T = TypeVar("T")


def connection() -> duckdb.DuckDBPyConnection:
    """The DuckDB of this thread."""
    if not hasattr(_of_thread, "connection"):
        _of_thread.connection = new_database(threads=1, memory_limit=_MEMORY_LIMIT)
    of_thread: duckdb.DuckDBPyConnection = _of_thread.connection
    return of_thread


def read_columns(batch: Batch) -> EventColumns:
    """Run the SELECT of a batch of model.READ_EVENTS; if it fails, the one that repairs."""
    return or_repaired(lambda: columns_of(batch.select()), lambda: columns_of(batch.select_repaired()))


def or_repaired(read: Callable[[], T], repair: Callable[[], T]) -> T:
    """What `read` gives; where DuckDB refuses the values, what `repair` does."""
    import duckdb

    try:
        return read()
    except duckdb.OutOfMemoryException as error:
        raise MemoryError from error
    except duckdb.IOException:
        raise
    except duckdb.Error:
        return repair()


def columns_of(select: str) -> EventColumns:
    """The events of a SELECT with the columns of model.READ_EVENTS. Those that it lacks are null."""
    database = connection()
    present = database.sql(select).columns
    wanted = [part for name in present for part in _SPARSE.get(name, (name,))]
    result: dict[str, Any] = database.execute(f"SELECT {', '.join(wanted)} FROM ({select})").fetchnumpy()
    pool: dict[str, int] = {}
    codes = {name: text_codes(pool, _objects(result[name], "")) for name in _NEVER_NULL if name in result}
    if "collective" in result:
        codes["collective"] = text_codes(pool, _objects(result["collective"]))
    links = {name: filled(result[name]) for name in LINKS if name in result}
    sparse: dict[str, Any] = {}
    if "flow" in result:
        sparse["flow"] = _flows(pool, _objects(result["flow"]))
    if "has_memory" in result:
        remembered = np.flatnonzero(np.ma.getdata(result["has_memory"]))
        memory = [filled(result[f"memory_{index}"])[remembered] for index in range(len(MEMORY_ARGS))]
        sparse |= {"memory_events": remembered.astype(np.int32), "memory": np.stack(memory, axis=1)}
    if "has_shapes" in result:
        computing = np.flatnonzero(np.ma.getdata(result["has_shapes"]))
        shapes = [text_codes(pool, _objects(result[f"shape_{i}"][computing])) for i in range(len(SHAPE_ARGS))]
        sparse |= {"computing": computing.astype(np.int32), "shapes": np.stack(shapes, axis=1)}
    texts = [None if text is None else text.encode() for text in _objects(result["args"])]
    args, offsets = joined_texts(texts)
    return event_columns(
        Texts.of(pool),
        filled(result["ts_ns"]),
        filled(result["dur_ns"]),
        links,
        codes.get("collective"),
        phase=codes["ph"],
        **{name: codes[name] for name in ("category", "name", "pid", "tid")},
        args=args,
        args_offset=offsets,
        **sparse,
    )


def _objects(column: Any, null: str | None = None) -> list[Any]:
    """Texts, with this for null."""
    texts = np.array(np.ma.getdata(column), dtype=object)
    if isinstance(column, np.ma.MaskedArray):
        texts[np.ma.getmaskarray(column)] = null
    texts_of_column: list[Any] = texts.tolist()
    return texts_of_column


def filled(column: Any) -> Numbers:
    """Whole numbers that DuckDB gives, with NULL for null."""
    values: Numbers = np.ma.getdata(column).astype(np.int64)
    if isinstance(column, np.ma.MaskedArray):
        values[np.ma.getmaskarray(column)] = NULL
    return values


def _flows(pool: dict[str, int], texts: Iterable[str | None]) -> Numbers:
    def number(text: str) -> int:
        whole = whole_number(text)
        return -1 - pool.setdefault(text, len(pool)) if whole is None else whole

    return np.array([NULL if text is None else number(text) for text in texts], dtype=np.int64)
