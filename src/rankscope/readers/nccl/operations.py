"""What the readers of NCCL's files share: its functions, and operations as rows of the table and as events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rankscope.model import NCCL, NCCL_CATEGORY
from rankscope.readers.row_batch import RowBatch
from rankscope.sql import sql_text, sql_texts

FUNCTIONS = {
    "AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter", "Broadcast": "broadcast",
    "Reduce": "reduce", "Send": "send", "Recv": "recv", "SendRecv": "sendrecv", "All2All": "all_to_all",
    "AlltoAll": "all_to_all", "AllGatherV": "all_gather", "Gather": "gather", "Scatter": "scatter",
}  # fmt: skip
"""NCCL's functions and their kinds (collective_kinds)."""
_PER_RANK = ("AllGather", "ReduceScatter", "All2All", "AlltoAll", "AllGatherV")
"""NCCL counts the bytes of one rank in these; S of nccl-tests counts those of all ranks."""
_BYTES = "bytes"
"""The data type in the metadata of events: NCCL's files have sizes in bytes."""
_NUMBERS_PER_SEQ = 16
"""NCCL counts each function of a communicator separately. Events are numbered as c10d does, all functions together."""


def table_rows(raw: str) -> str:
    """A SELECT of rows of model.NCCL from one that lacks kind and bytes, and any other column that a format lacks."""
    kinds = " ".join(f"WHEN {sql_text(name)} THEN {sql_text(kind)}" for name, kind in FUNCTIONS.items())
    missing = ", ".join(f"NULL::{field.type} AS {field.name}" for field in NCCL.fields)
    computed = {
        "kind": f"CASE function {kinds} ELSE 'other' END",
        "bytes": f"rank_bytes * CASE WHEN function IN ({sql_texts(_PER_RANK)}) THEN ranks ELSE 1 END",
    }
    columns = ", ".join(f"{computed.get(name, name)} AS {name}" for name in NCCL.columns)
    return f"SELECT {columns} FROM (FROM ({raw}) UNION ALL BY NAME SELECT {missing} WHERE false)"


def events_of(rows: str, track: str, world: str) -> str:
    """A SELECT of columns of model.READ_EVENTS: a slice with metadata as Kineto's collectives have it.

    An operation without a start is an instant, without arguments, at the time at which it was written or called.
    `world` is the communicator whose ranks are those of the job: in others, the rank of the other side of a send or
    recv is not known.
    """
    functions = sql_texts(FUNCTIONS)
    timed = "started_ns IS NOT NULL AND completed_ns IS NOT NULL"
    peer = f"CASE WHEN communicator = {sql_text(world)} THEN peer END"
    args = {
        "Collective name": "kind",
        "In msg nelems": "CASE WHEN kind = 'all_gather' THEN rank_bytes ELSE bytes END",
        "dtype": sql_text(_BYTES),
        "Group size": "ranks",
        "Process Group Name": "communicator",
        "Process Group Description": "communicator_name",
        "Seq": f"seq * {_NUMBERS_PER_SEQ} + coalesce(list_position([{functions}], function), 0)",
        "Dst Rank": f"CASE WHEN kind = 'send' THEN {peer} END",
        "Src Rank": f"CASE WHEN kind = 'recv' THEN {peer} END",
        **{
            name: name
            for name in ("seq", "duration_ns", "busbw_gb_s", "timing", "algorithm", "protocol", "channels")
        },
    }
    pairs = ", ".join(f"{sql_text(name)}, {value}" for name, value in args.items())
    return (
        f"SELECT CASE WHEN {timed} THEN 'X' ELSE 'i' END AS ph, {sql_text(NCCL_CATEGORY)} AS category, "
        f"function AS name, {sql_text(track)} AS pid, communicator AS tid, "
        f"CASE WHEN {timed} THEN started_ns ELSE coalesce(written_ns, created_ns) END AS ts_ns, "
        f"CASE WHEN {timed} THEN greatest(completed_ns - started_ns, 0) END AS dur_ns, "
        f"CASE WHEN {timed} THEN json_object({pairs}) END AS args, "
        f"CASE WHEN {timed} THEN kind END AS collective FROM ({rows})"
    )


class OperationRows(RowBatch):
    """Operations that were made in Python: as rows of model.NCCL, or, with a track, as events."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], track: str = "", world: str = "") -> None:
        super().__init__(NCCL, rows)
        self._track, self._world = track, world

    def _select(self, content: str) -> str:
        rows = table_rows(super()._select(content))
        return events_of(rows, self._track, self._world) if self._track else rows
