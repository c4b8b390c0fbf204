"""Links the ops of execution traces to the slices of a segment, and completes the shapes that they recorded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from rankscope.errors import RankscopeError
from rankscope.files import close_to_others
from rankscope.model import COMPUTING, EXECUTED_OPS
from rankscope.readers import one_file
from rankscope.readers.execution_trace import ExecutedOp, ExecutionTrace
from rankscope.readers.sql_columns import connection
from rankscope.sql import sql_text
from rankscope.store.plain_folder import PlainFolder
from rankscope.store.selected_tables import write_selected

_LEAST_AGREEING = 0.5
"""Share of the common ids whose ops must have the same name. Ids count from 1 in every process: those of another run
agree by chance only."""
_CHAKRA_NUMBER = re.compile(r"\(\d+\)$")
"""Chakra's converter numbers ops of the same name."""
_LONGEST_LINE = 1 << 16
"""Characters. Ops with longer inputs, such as lists of all parameters, have none in the table."""
_ENCODE = json.JSONEncoder(allow_nan=False, check_circular=False).encode
_WITH_SHAPES = "shapes_added"
_ROWS = "executed_ops.jsonl"


def add_executed_ops(folder: Path, traces: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Write EXECUTED_OPS, and the shapes of COMPUTING that are missing; returns the rows of the tables.

    `traces` are the records of the execution traces; what was taken from each is noted in it.
    """
    plain = PlainFolder(folder)
    rows = plain.path / _ROWS
    try:
        recorded = _recorded_ops(plain.path)
        with rows.open("wb") as file:
            for record in traces:
                path = Path(record["path"])
                try:
                    with one_file(path):
                        _link(path, recorded, file, record)
                except RankscopeError as error:
                    record["unused"] = [error.message, error.why, error.hint]
        if not rows.stat().st_size:
            return {}
        count = write_selected(_Lines(rows), EXECUTED_OPS, folder, 0)
        _add_shapes(plain.path)
        return {EXECUTED_OPS.name: count}
    finally:
        rows.unlink(missing_ok=True)
        plain.close()


class _Lines:
    """The rows of EXECUTED_OPS, one line of JSON each: a file, since there may be millions."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def select(self) -> str:
        columns = ", ".join(
            f"{field.name}: '{'JSON' if field.type == 'VARCHAR' else field.type}'"
            for field in EXECUTED_OPS.fields
        )
        lines = f"read_json({sql_text(self._path)}, format='newline_delimited', columns={{{columns}}})"
        return f"SELECT * FROM {lines} QUALIFY row_number() OVER (PARTITION BY id) = 1 ORDER BY id"

    def select_repaired(self) -> str:
        """Without the lines that DuckDB cannot parse, such as those with half a character."""
        return self.select().replace("format=", "ignore_errors=true, format=", 1)

    def close(self) -> None:
        pass


def _recorded_ops(folder: Path) -> dict[int, tuple[int, str]]:
    """By record function id: the id and name of the op's slice."""
    result = connection().execute(f"""
        SELECT TRY_CAST(e.args->>'Record function id' AS BIGINT) AS record, s.id, s.name
        FROM read_parquet({sql_text(folder / "slices.parquet")}) s
        JOIN read_parquet({sql_text(folder / "events.parquet")}, file_row_number=true) e ON e.file_row_number = s.id
        WHERE s.category IN ('cpu_op', 'user_annotation') AND record > 0
    """)
    return {record: (id, name) for record, id, name in result.fetchall()}


def _link(path: Path, recorded: dict[int, tuple[int, str]], rows: BinaryIO, record: dict[str, Any]) -> None:
    """Add a row for each op that both traces have; `record` says how many, or why none."""
    trace = ExecutionTrace(path)
    begin = rows.tell()
    linked = common = 0
    for op in trace.ops():
        slice_id, name = recorded.get(op.record, (-1, ""))
        if slice_id < 0:
            continue
        common += 1
        if name in (op.name, _CHAKRA_NUMBER.sub("", op.name)):
            linked += 1
            rows.write(_line(slice_id, op))
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
        if not recorded:
            why = "The trace has no record function ids"
        record["unused"] = [
            f"{path} is not linked to the trace of its rank",
            f"{why}.{' Also, ' + damage + '.' if damage else ''}",
            "Record both together: profile(execution_trace_observer=ExecutionTraceObserver().register_callback(FILE))",
        ]
        rows.truncate(begin)
        rows.seek(begin)
        return
    record["used"] = (
        f"{linked:,} of {len(recorded):,} ops linked by record function id, schema {trace.schema}"
        + (f", {trace.groups} process groups" if trace.groups else "")
        + (f"; {damage}" if damage else "")
    )


def _line(slice_id: int, op: ExecutedOp) -> bytes:
    row = {"id": slice_id, "record": op.record, "node": op.node}
    inputs = op.inputs()
    recorded_inputs = {
        "shapes": inputs.shapes,
        "types": inputs.types,
        "concrete": inputs.concrete,
        "tensors": inputs.values,
    }
    try:
        line = _ENCODE(row | recorded_inputs)
    except (ValueError, RecursionError):
        line = ""
    return (line if 0 < len(line) <= _LONGEST_LINE else json.dumps(row)).encode() + b"\n"


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
