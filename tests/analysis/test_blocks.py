"""The blocks of a snapshot: rectangles as planted, and histories with impossible entries."""

from __future__ import annotations

import pickle
from pathlib import Path
from random import Random
from typing import Any

import pytest

from conftest import open_trace
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.memory.snapshot import held_by_line, read_blocks
from rankscope.timeline.run import Run

pytestmark = pytest.mark.usefixtures("without_workers")

LIVE = "active_allocated"
SEGMENT = 1000
BASES = (10_000, 50_000)
"""Addresses of two segments; the second is released and reserved again."""


def stack(line: int) -> list[dict[str, Any]]:
    return [{"filename": "/home/me/train.py", "line": line, "name": "step"}]


def history(random: Random) -> tuple[list[dict[str, Any]], set[tuple[int, int, int, int, int]]]:
    """Entries, and the rectangles they stand for: begin, end, address, bytes, line. One block is older (line 0)."""
    entries: list[dict[str, Any]] = []
    live: dict[int, tuple[int, int, int]] = {BASES[0]: (0, 90, 0)}
    rectangles = set()

    def add(action: str, address: int, size: int, line: int) -> int:
        at = len(entries) * 3
        entries.append({"action": action, "addr": address, "size": size, "stream": 0, "time_us": 10**9 + at,
                        "frames": stack(line)})  # fmt: skip
        return 1000 * at

    add("segment_alloc", BASES[1], SEGMENT, 9)
    for _ in range(60):
        address = random.choice(BASES) + 100 * random.randrange(10)
        if address in live:
            begin, size, line = live.pop(address)
            rectangles.add((begin, add("free_requested", address, size, 8), address, size, line))
            add("free_completed", address, size, 8)
        else:
            size, line = random.randint(1, 100), random.randint(1, 9)
            live[address] = (add("alloc", address, size, line), size, line)
    end = 1000 * 3 * (len(entries) - 1)
    last = next(
        1000 * 3 * at for at in reversed(range(len(entries))) if entries[at]["action"] != "free_completed"
    )
    rectangles |= {
        (begin, min(end, last), address, size, line) for address, (begin, size, line) in live.items()
    }
    return entries, rectangles


def snapshot(path: Path, entries: list[dict[str, Any]], live: list[tuple[int, int, int]]) -> Path:
    """`live`: address, bytes and line at the end."""
    segments = [
        {
            "device": 0, "address": base, "total_size": SEGMENT, "segment_type": "large",
            "blocks": [
                {"address": address, "size": 100, "requested_size": size, "state": LIVE, "frames": stack(line)}
                for address, size, line in live if base <= address < base + SEGMENT
            ],
        }
        for base in BASES
    ]  # fmt: skip
    path.write_bytes(pickle.dumps({"segments": segments, "device_traces": [entries]}))
    return path


@pytest.fixture
def planted(tmp_path: Path) -> tuple[Run, set[tuple[int, int, int, int, int]]]:
    entries, rectangles = history(Random(2))
    end = max(one[1] for one in rectangles)
    live = [(address, size, line) for _, stop, address, size, line in rectangles if stop == end]
    return open_trace(snapshot(tmp_path / "rank-0.pickle", entries, live)), rectangles


@pytest.mark.slow
def test_rectangles(planted: tuple[Run, set[tuple[int, int, int, int, int]]]) -> None:
    run, rectangles = planted
    blocks = read_blocks(run, 0, 0)
    ours = blocks.allocations
    found = set(
        zip(*(column.tolist() for column in (ours.begin, ours.end, ours.address, ours.bytes)), strict=True)
    )
    assert found == {one[:4] for one in rectangles}
    lines = {blocks.sources.get(stack) for stack in ours.stack.tolist()}
    assert lines == {f"train.py({one[4]}): step" if one[4] else None for one in rectangles}


@pytest.mark.slow
@pytest.mark.parametrize("with_times", [True, False])
def test_odd_snapshots(tmp_path: Path, with_times: bool) -> None:
    """No entries at all; impossible addresses and sizes; without times the entries are counted."""
    time = {"time_us": 5} if with_times else {}
    figures = ((-5, 1), (2**62, 1), (1, -1), (1, 2**62), (7, 8), (None, None))
    odd: list[dict[str, Any]] = [
        {"action": "alloc", "addr": address, "size": size, "frames": [], **time} for address, size in figures
    ]
    for entries in ([], odd):
        run = open_trace(snapshot(tmp_path / f"{len(entries)}.rank-0.pickle", entries, []))
        blocks = read_blocks(run, 0, 0)
        assert not entries or blocks.allocations.bytes.tolist() == [8], "the others are impossible"
        assert blocks.has_times == (bool(entries) and with_times)
        assert all(row["held_bytes"] >= 0 for row in held_by_line(run, Scope()).rows)
