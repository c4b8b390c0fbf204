"""Adds to a segment what files beside its trace know: execution traces, captures of CUDA graphs, logs of torch.compile.

It works on the tables of the segment, after they have been written.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankscope.errors import RankscopeError
from rankscope.store.sidecar_kinds import kind_of
from rankscope.timeline.executed_ops import add_executed_ops
from rankscope.timeline.origins import Build, write_origins


def add_companions(
    folder: Path, facts: dict[str, Any], companions: Sequence[Path], build: Build
) -> list[dict[str, Any]]:
    """Write EXECUTED_OPS and ORIGINS where there is something to say; returns what segment.json records.

    `build` reads a trace into a folder. Each file has a kind, what was taken from it, and if that is nothing the reason
    in three parts.
    """
    records = [_record(path) for path in companions]
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        by_kind.setdefault(record["kind"], []).append(record)
    written = facts["further"]
    if traces := by_kind.get("execution trace"):
        written |= add_executed_ops(folder, traces)
    captures, logs = by_kind.get("graph capture", []), by_kind.get("torch.compile log", [])
    if facts["replays"] or facts["compiled"]:
        written |= write_origins(folder, captures, logs, build)
    for record in (*captures, *logs):
        if not record["used"] and not record["unused"]:
            record["unused"] = [
                f"{record['path']} adds nothing",
                "No kernel of the trace is from the graphs or the compiled code that it describes.",
                "Record both in the same run of the job.",
            ]
    return records


def _record(path: Path) -> dict[str, Any]:
    stat = path.stat()
    record: dict[str, Any] = {
        "path": str(path), "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns, "kind": "", "used": "", "unused": []
    }  # fmt: skip
    try:
        record["kind"] = kind_of(path)
    except RankscopeError as error:
        record["unused"] = [error.message, error.why, error.hint]
    return record
