"""Links the ops of execution traces to the slices of a segment, and completes the shapes that they recorded."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.errors import RankscopeError
from rankscope.files import close_to_others
from rankscope.model import COMPUTING, EXECUTED_OPS
from rankscope.readers import one_file
from rankscope.readers.columns import joined_texts, text_spans
from rankscope.readers.execution_trace import ExecutedOps, ExecutionTrace, InputTexts
from rankscope.readers.sql_columns import connection
from rankscope.sql import sql_text
from rankscope.store.arrays import Mask
from rankscope.store.parquet_writer import (
    Chunk,
    Coded,
    EncodedColumn,
    Numbers,
    ParquetFile,
    PlainTexts,
    encode,
)
from rankscope.store.plain_folder import PlainFolder
from rankscope.store.table_files import coded

_LEAST_AGREEING = 0.5
"""Share of the common ids whose ops must have the same name. Ids count from 1 in every process: those of another run
agree by chance only."""
_CHAKRA_NUMBER = re.compile(r"\(\d+\)$")
"""Chakra's converter numbers ops of the same name."""
_LONGEST_INPUTS = 1 << 16
"""Bytes. Ops with longer inputs, such as lists of all parameters, have none in the table."""
_WITH_SHAPES = "shapes_added"


def add_executed_ops(folder: Path, traces: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Write EXECUTED_OPS, and the shapes of COMPUTING that are missing; returns the rows of the tables.

    `traces` are the records of the execution traces; what was taken from each is noted in it.
    """
    plain = PlainFolder(folder)
    target = folder / f"{EXECUTED_OPS.name}.parquet"
    try:
        recorded = _RecordedOps(plain.path)
        with ParquetFile(target, EXECUTED_OPS.fields) as file:
            for record in traces:
                path = Path(record["path"])
                try:
                    with one_file(path):
                        for columns, count in _linked_ops(path, recorded, record):
                            file.append(columns, count)
                except RankscopeError as error:
                    record["unused"] = [error.message, error.why, error.hint]
        if not file.rows:
            target.unlink()
            return {}
        _add_shapes(plain.path)
        return {EXECUTED_OPS.name: file.rows}
    finally:
        plain.close()


class _RecordedOps:
    """The ops of the trace that have a record function id, in the order of these ids."""

    def __init__(self, folder: Path) -> None:
        result = connection().execute(f"""
            SELECT TRY_CAST(e.args->>'Record function id' AS BIGINT) AS record, s.id AS id, s.name AS name
            FROM read_parquet({sql_text(folder / "slices.parquet")}) s
            JOIN read_parquet({sql_text(folder / "events.parquet")}, file_row_number=true) e ON e.file_row_number = s.id
            WHERE s.category IN ('cpu_op', 'user_annotation') AND record > 0
        """)
        columns = {name: np.ma.getdata(column) for name, column in result.fetchnumpy().items()}
        # Of several ops with the same id the last one counts.
        self.record, last = np.unique(columns["record"][::-1], return_index=True)
        self._slice = columns["id"][::-1][last]
        names = columns["name"][::-1][last].tolist()
        self._codes = {name: code for code, name in enumerate(dict.fromkeys(names))}
        self._name = np.fromiter(map(self._codes.__getitem__, names), np.int64, len(names))
        self.is_linked = np.zeros(int(self._slice.max(initial=-1)) + 1, dtype=bool)
        """By slice."""

    def link(self, ops: ExecutedOps, is_linked: Mask) -> tuple[int, int, NDArray[Any], NDArray[Any]]:
        """How many of these ops are in the trace, and how many of them have the same name; which of those are not
        linked yet, in the order of their slices, and the slices."""
        at = np.minimum(np.searchsorted(self.record, ops.record), max(len(self.record) - 1, 0))
        common = np.flatnonzero(self.record[at] == ops.record) if len(self.record) else at[:0]
        used, name_of = np.unique(ops.name[common], return_inverse=True)
        names = [ops.names[code] for code in used.tolist()]
        codes = [
            [self._codes.get(text, -1) for text in (name, _CHAKRA_NUMBER.sub("", name))] for name in names
        ]
        at = at[common]
        is_same = (np.array(codes, dtype=np.int64).reshape(-1, 2)[name_of] == self._name[at][:, None]).any(
            axis=1
        )
        slices, first = np.unique(self._slice[at[is_same]], return_index=True)
        is_new = ~is_linked[slices]
        is_linked[slices] = True
        return len(common), int(is_same.sum()), common[is_same][first[is_new]], slices[is_new]


def _linked_ops(
    path: Path, recorded: _RecordedOps, record: dict[str, Any]
) -> list[tuple[list[EncodedColumn], int]]:
    """Row groups of the ops that both traces have; `record` says how many, or why none."""
    trace = ExecutionTrace(path)
    groups = []
    linked = common = 0
    is_linked = recorded.is_linked.copy()
    for ops in trace.batches():
        both, same, chosen, slices = recorded.link(ops, is_linked)
        common, linked = common + both, linked + same
        if len(chosen):
            columns = _columns(ops, chosen, slices)
            groups.append(
                ([encode(field, columns[field.name]) for field in EXECUTED_OPS.fields], len(chosen))
            )
    report = trace.report
    damage = "; ".join(
        text
        for text in (report.damage, f"{report.events_lost:,} nodes lost" if report.events_lost else "")
        if text
    )
    if not linked or linked < _LEAST_AGREEING * common:
        why = (
            "None of its record function ids is in the trace"
            if not common
            else f"Of {common:,} record function ids that both have, {linked:,} are of the same op: "
            "it is of another recording"
        )
        if not len(recorded.record):
            why = "The trace has no record function ids"
        record["unused"] = [
            f"{path} is not linked to the trace of its rank",
            f"{why}.{' Also, ' + damage + '.' if damage else ''}",
            "Record both together: profile(execution_trace_observer=ExecutionTraceObserver().register_callback(FILE))",
        ]
        return []
    recorded.is_linked = is_linked
    record["used"] = (
        f"{linked:,} of {len(recorded.record):,} ops linked by record function id, schema {trace.schema}"
        + (f", {trace.groups} process groups" if trace.groups else "")
        + (f"; {damage}" if damage else "")
    )
    return groups


def _columns(ops: ExecutedOps, chosen: NDArray[Any], slices: NDArray[Any]) -> dict[str, Chunk]:
    """The rows of some ops."""
    input_codes = ops.inputs[chosen]
    sizes = np.array([_size(texts) for texts in ops.input_texts], dtype=np.int64)[input_codes]
    begin, end = text_spans(ops.values, ops.values_offset[chosen])
    too_long = end - begin + sizes > _LONGEST_INPUTS
    input_codes[too_long] = len(ops.input_texts)
    values = PlainTexts(ops.values, ops.values_offset)
    if too_long.any() or not np.array_equal(chosen, np.arange(len(ops))):
        view = memoryview(ops.values)
        rows = zip(begin.tolist(), end.tolist(), too_long.tolist(), strict=True)
        values = PlainTexts(*joined_texts(None if long else bytes(view[a:b]) for a, b, long in rows))
    columns: dict[str, Chunk] = {
        "id": Numbers(slices),
        "record": Numbers(ops.record[chosen]),
        "node": Numbers(ops.node[chosen]),
        "tensors": values,
    }
    for name, texts in zip(("shapes", "types", "concrete"), zip(*ops.input_texts, strict=True), strict=True):
        different = coded([*texts, None])
        columns[name] = Coded(different.codes[input_codes], different.texts)
    return columns


def _size(texts: InputTexts) -> int:
    """Bytes; of inputs that have no JSON, more than those of any other."""
    return sum(_LONGEST_INPUTS + 1 if text is None else len(text) for text in texts)


def _add_shapes(folder: Path) -> None:
    """Complete the shapes in COMPUTING, as if they had been recorded."""
    computing, added = folder / f"{COMPUTING.name}.parquet", folder / f"{_WITH_SHAPES}.parquet"
    executed = sql_text(folder / f"{EXECUTED_OPS.name}.parquet")
    connection().execute(f"""
        COPY (
            SELECT c.* EXCLUDE (file_row_number) REPLACE (
                CASE WHEN c.shapes[1] IS NULL AND x.id IS NOT NULL
                     THEN [x.shapes, x.types, x.concrete, c.shapes[4], c.shapes[5]] ELSE c.shapes END AS shapes
            )
            FROM read_parquet({sql_text(computing)}, file_row_number=true) c
            LEFT JOIN read_parquet({executed}) x ON x.id = c.id ORDER BY c.file_row_number
        ) TO {sql_text(added)} (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)
    """)
    added.replace(computing)
    close_to_others(computing)
