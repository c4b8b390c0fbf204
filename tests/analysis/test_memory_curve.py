"""The memory curve: fewer points, but every peak with its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conftest import open_trace, slice_event, write_kineto
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.memory.usage import POINTS, memory_curve


def allocation(ts: float, total: int) -> dict[str, Any]:
    args = {
        "Total Reserved": 2 * total, "Total Allocated": total, "Bytes": 1, "Addr": 1, "Device Id": 0, "Device Type": 1,
    }  # fmt: skip
    where = {"cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1}
    return {"ph": "i", "s": "t", "ts": ts, "args": args, **where}


@pytest.mark.slow
def test_peaks_are_kept_and_end(tmp_path: Path) -> None:
    events: list[Any] = [slice_event("op", 0, 100_000)]
    events += [allocation(ts, 100 + ts % 7) for ts in range(0, 100_000, 10)]
    events += [allocation(50_001, 9_999), allocation(50_002, 50)]  # up and down within one interval
    run = open_trace(write_kineto(tmp_path / "rank-0.json", events))
    rows = memory_curve(run, Scope()).rows
    assert len(rows) <= 2 * (POINTS + 1)
    at = [row["ts_ns"] for row in rows]
    assert at == sorted(at)
    peak = next(n for n, row in enumerate(rows) if row["allocated_bytes"] == 9_999)
    assert rows[peak]["ts_ns"] == 50_001_000 and rows[peak]["reserved_bytes"] == 19_998
    assert rows[peak + 1]["allocated_bytes"] < 200 and rows[peak + 1]["ts_ns"] < 50_400_000


def test_note_without_memory_events(tmp_path: Path) -> None:
    run = open_trace(write_kineto(tmp_path / "rank-0.json", [slice_event("op", 0, 1)]))
    result = memory_curve(run, Scope())
    assert result.rows == () and "--profile-memory" in result.notes[0]
