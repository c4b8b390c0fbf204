"""Flight-recorder dumps written by tests, with the fields that torch writes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rankscope.model import FLIGHT, FLIGHT_GROUPS, STEPS, Table
from rankscope.readers.flight_recorder import FLIGHT_READER
from rankscope.timeline.run import AnswerCache

T0 = 1_758_610_505_000_000_000


def op(
    group: str, seq: int, kind: str = "all_reduce", state: str = "scheduled", **more: Any
) -> dict[str, Any]:
    p2p = kind.startswith(("send", "recv"))
    return {
        "record_id": seq, "pg_id": int(group), "process_group": (group, f"G{group}"), "profiling_name": f"nccl:{kind}",
        "collective_seq_id": 0 if p2p else seq, "p2p_seq_id": seq if p2p else 0, "op_id": seq, "is_p2p": p2p,
        "time_created_ns": T0 + seq * 1_000_000, "state": state, "time_discovered_started_ns": None,
        "time_discovered_completed_ns": T0 + seq * 1_000_000 + 500 if state == "completed" else None,
        "input_sizes": [[1024]], "output_sizes": [[1024]], "input_dtypes": ["Float"], "output_dtypes": ["Float"],
        "timeout_ms": 600_000, "retired": False, **more,
    }  # fmt: skip


def dump(
    entries: list[dict[str, Any]],
    groups: dict[str, list[int]],
    status: dict[str, tuple[int, int]] | None = None,
) -> dict[str, Any]:
    """`status` is (last enqueued, last completed) by the rank's number for the group."""
    config = {name: {"name": name, "desc": f"G{name}", "ranks": str(ranks)} for name, ranks in groups.items()}
    progress = {
        number: {
            "last_enqueued_collective": asked,
            "last_started_collective": -1,
            "last_completed_collective": done,
        }
        for number, (asked, done) in (status or {}).items()
    }
    return {
        "version": "2.9",
        "pg_config": config,
        "nccl_version": "2.27",
        "pg_status": progress,
        "entries": entries,
    }


class Tables:
    """As much of a Run as this analysis asks for, straight from the reader: a store for each case takes seconds."""

    unused_segments: tuple[object, ...] = ()
    from_events = True

    def __init__(self, dumps: dict[int, Path]) -> None:
        import duckdb

        self.cache = AnswerCache()
        self.ranks = sorted(dumps)
        self.used: list[SimpleNamespace] = []
        self._connection = duckdb.connect()
        execute = self._connection.execute
        execute("CREATE TABLE segments (rank INTEGER, used BOOLEAN, format VARCHAR)")
        for table in (STEPS, FLIGHT, FLIGHT_GROUPS):
            columns = ", ".join(f"{field.name} {field.type}" for field in table.fields)
            execute(f"CREATE TABLE {table.name} (rank INTEGER, segment INTEGER, {columns})")
        for rank, path in dumps.items():
            reading = FLIGHT_READER.open(path)
            for events in reading.batches():
                events.close()
            for table, batch in reading.further():
                execute(f"INSERT INTO {table.name} SELECT {rank}, 0, * FROM ({batch.select()})")
                batch.close()
            manifest = {"header": reading.header, "reading": {"events_lost": 0}, "misplaced": 0}
            self.used.append(SimpleNamespace(rank=rank, segment=0, format="flight", manifest=manifest))

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql).fetchall()

    def arrays(self, sql: str) -> dict[str, Any]:
        return self._connection.execute(sql).fetchnumpy()

    def has(self, table: Table) -> bool:
        return table is FLIGHT
