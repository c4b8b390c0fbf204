"""NCCL flight-recorder dumps: the last collectives of each rank and their state when the job hung.

Torch writes one file per rank (TORCH_NCCL_DEBUG_INFO_TEMP_FILE, or _dump_3), as a pickle or as JSON. That of torch 2.2
is a list of entries; later ones are dictionaries with a version, 1.0 to 2.10, to which fields were added.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankscope.errors import ReadError
from rankscope.model import FLIGHT, FLIGHT_GROUPS, READ_EVENTS
from rankscope.readers.base import EventBatch, Reader
from rankscope.readers.byte_stream import read_head
from rankscope.readers.checked_values import as_object, integer, text
from rankscope.readers.row_batch import RowBatch, TablesReading, name_row
from rankscope.readers.safe_pickle import Budget, is_pickle, load_value
from rankscope.readers.stack_frames import frames_in, own_line

_KEYS = (
    b"collective_seq_id",
    b"profiling_name",
    b"nccl_version",
    b"pg_config",
    b"pg_status",
    b"comm_lib_version",
)
_JSON_KEYS = (b'"entries"', b'"pg_status"')
"""A rank that has called nothing yet has no entries in its JSON dump."""
_NEWEST_VERSION = (2, 10)
_HEADER = ("version", "nccl_version", "comm_lib_version")
_TRACK = "NCCL flight recorder"
_LARGEST_JSON = 1 << 30
_PEERS = re.compile(r"(?:send|recv)\s*(\d+)\s*(?:->|<-)\s*(\d+)")
_ELEMENT_BYTES = {
    "double": 8, "long": 8, "complexfloat": 8, "complexdouble": 16, "float": 4, "int": 4, "half": 2, "bfloat16": 2,
    "short": 2, "byte": 1, "char": 1, "bool": 1,
}  # fmt: skip


class FlightReading(TablesReading):
    """One dump: its entries as rows and as events on the timeline."""

    def batches(self) -> Iterator[EventBatch]:
        content, size = self._content()
        budget = Budget(self._path, max(size, 1000))
        dump = {"entries": content} if isinstance(content, list) else as_object(content)  # a list: torch 2.2
        entries = dump.get("entries", [] if "pg_config" in dump else None)
        if not isinstance(entries, list):
            raise ReadError(
                f"{self._path} is not a flight-recorder dump",
                why="It has no list of entries.",
                hint="Torch writes dumps to TORCH_NCCL_DEBUG_INFO_TEMP_FILE when a collective times out.",
            )
        self.header = {key: dump[key] for key in _HEADER if isinstance(dump.get(key), str)}
        version = re.match(r"(\d{1,6})\.(\d{1,6})", self.header.get("version", ""))
        if version and (int(version[1]), int(version[2])) > _NEWEST_VERSION:
            self.header["unknown_version"] = self.header["version"][:20]
        rows = [_entry_row(entry, budget) for entry in budget.dicts(entries)]
        self.tables = [(FLIGHT, rows), (FLIGHT_GROUPS, _group_rows(dump, budget))]
        groups = {(row["group_name"] or "", row["group_description"] or "") for row in rows}
        tracks = [
            name_row("thread_name", _TRACK, group, f"NCCL group {group} {description}".strip())
            for group, description in sorted(groups)
        ]
        yield RowBatch(READ_EVENTS, [*map(_event, rows), *tracks])

    def _content(self) -> tuple[Any, int]:
        if is_pickle(read_head(self._path, 2)[0]):
            return load_value(self._path)
        content, damage = read_head(self._path, _LARGEST_JSON)
        try:
            dump = json.loads(content)
        except (ValueError, RecursionError) as error:
            why = f"It is damaged or truncated: {damage or error}."
            raise ReadError(f"cannot read {self._path}", why=why, hint="Capture this rank again.") from None
        return dump, len(content)


class FlightReader(Reader):
    """Recognises dumps by the keys in their first bytes."""

    name = "flight"
    reading = FlightReading

    def recognises(self, path: Path, head: bytes) -> bool:
        is_json = head.lstrip()[:1] == b"{" and any(key in head for key in _JSON_KEYS)
        return (is_pickle(head) or is_json) and any(key in head for key in _KEYS)


FLIGHT_READER = FlightReader()


def _entry_row(entry: dict[Any, Any], budget: Budget) -> dict[str, Any]:
    group = entry.get("process_group")
    name, description = (*group, None, None)[:2] if isinstance(group, (list, tuple)) else (group, None)
    label = text(entry.get("profiling_name")) or ""
    kind = label.partition(":")[2] or label
    peers = _PEERS.search(kind)
    is_p2p = entry.get("is_p2p") is True or peers is not None
    input_sizes = _sizes(entry.get("input_sizes"), budget)
    output_sizes = _sizes(entry.get("output_sizes"), budget)
    dtypes = [text(item) for item in budget.take(entry.get("input_dtypes"))]
    seq = integer(entry.get("collective_seq_id"))
    # Entries of gloo stay "scheduled" until they are retired. With NCCL, one that is retired in another state than
    # "completed" has timed out.
    is_done = entry.get("retired") is True and label.startswith("gloo:")
    return {
        "record": integer(entry.get("record_id")),
        "group_name": text(name) if isinstance(name, str) else str(integer(entry.get("pg_id")) or 0),
        "group_description": text(description),
        "local_group": integer(entry.get("pg_id")),
        "seq": integer(entry.get("seq_id")) if seq is None else seq,
        "p2p_seq": integer(entry.get("p2p_seq_id")) if is_p2p else None,
        "kind": kind.split(" ")[0] or "?",
        "peer": int(peers[2]) if peers else None,
        "is_p2p": is_p2p,
        "state": "completed" if is_done else text(entry.get("state")) or "",
        "created_ns": _created(entry),
        "started_ns": integer(entry.get("time_discovered_started_ns")) or None,
        "completed_ns": integer(entry.get("time_discovered_completed_ns")) or None,
        "duration_ns": _duration(entry),
        "bytes": _bytes(input_sizes, dtypes),
        "input_sizes": json.dumps(input_sizes),
        "output_sizes": json.dumps(output_sizes),
        "dtype": ", ".join(dict.fromkeys(item for item in dtypes if item)) or None,
        "timeout_ms": integer(entry.get("timeout_ms")),
        "source": own_line(frames_in(entry.get("frames"), budget)),
    }


def _created(entry: dict[Any, Any]) -> int | None:
    """JSON dumps have 0 for "not yet"; torch 2.2 counts in µs."""
    time = integer(entry.get("time_created_ns"))
    micros = integer(entry.get("time_created_us"))
    return time or (micros * 1000 if micros is not None and abs(micros) < 2**53 else None) or None


def _duration(entry: dict[Any, Any]) -> int | None:
    duration = entry.get("duration_ms")
    if not isinstance(duration, (int, float)) or not math.isfinite(duration) or not 0 <= duration < 1e12:
        return None
    return round(duration * 1e6)


def _sizes(value: Any, budget: Budget) -> list[list[int]]:
    return [[integer(size) or 0 for size in budget.take(shape)] for shape in budget.take(value)]


def _bytes(shapes: list[list[int]], dtypes: list[str | None]) -> int | None:
    """Size of the inputs; None if a type is unknown."""
    total = 0
    for shape, dtype in zip(shapes, [*dtypes, *[None] * len(shapes)], strict=False):
        width = _ELEMENT_BYTES.get((dtype or "").lower())
        if width is None:
            return None
        total += math.prod(shape) * width
    return total if shapes and total < 2**63 else None


def _group_rows(dump: dict[Any, Any], budget: Budget) -> list[dict[str, Any]]:
    """Process groups by name, and their progress by the rank's own number of the group."""
    rows: list[dict[str, Any]] = []
    config = dump.get("pg_config")
    for name, about in config.items() if isinstance(config, dict) else ():
        if isinstance(about, dict):
            row = {
                # gloo lists the default group without a name; its entries refer to it as 0.
                "group_name": text(about.get("name")) or text(name) or "0",
                "group_description": text(about.get("desc")),
            }
            rows.append(row | {"ranks": _ranks(about.get("ranks"), budget)})
    status = dump.get("pg_status")
    for number, about in status.items() if isinstance(status, dict) else ():
        if isinstance(about, dict) and str(number).isdigit():
            rows.append({
                "local_group": int(number),
                "last_enqueued": _number(about.get("last_enqueued_collective")),
                "last_started": _number(about.get("last_started_collective")),
                "last_completed": _number(about.get("last_completed_collective")),
            })  # fmt: skip
    budget.take(rows)
    return rows


def _number(value: Any) -> int | None:
    """A number, or a number as text, as in JSON dumps."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    return integer(value)


def _ranks(value: Any, budget: Budget) -> list[int] | None:
    """A list, or a list as text: '[0, 1, 2]'."""
    if isinstance(value, str):
        return [int(number) for number in budget.take(re.findall(r"\d{1,9}", value))]
    ranks = [rank for item in budget.take(value) if (rank := integer(item)) is not None]
    return ranks or None


def _event(row: dict[str, Any]) -> dict[str, Any]:
    """A slice for a completed entry; an instant at the start for one that has not completed."""
    begin = row["started_ns"] or row["created_ns"]
    ended = row["completed_ns"] is not None and begin is not None
    seq = row["p2p_seq"] if row["is_p2p"] else row["seq"]
    return {
        "ph": "X" if ended else "i",
        "category": "flight",
        "name": f"{row['kind']} {seq}",
        "pid": _TRACK,
        "tid": row["group_name"] or "",
        "ts_ns": begin,
        "dur_ns": max(row["completed_ns"] - begin, 0) if ended else None,
        "args": {
            key: row[key] for key in ("state", "seq", "p2p_seq", "bytes", "input_sizes", "dtype", "source")
        },
    }
