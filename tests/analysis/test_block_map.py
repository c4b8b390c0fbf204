"""The block map against brute force: rectangles from a replayed history, areas cell by cell."""

from __future__ import annotations

import pickle
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from conftest import open_trace
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.memory.block_map import (
    OTHER_LINES,
    Blocks,
    Rectangles,
    block_map,
    devices_with_blocks,
    read_blocks,
)
from rankscope.timeline.run import Run
from rankscope.views.charts import CHARTS, NothingToDrawError

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


def overlap(begin: float, end: float, low: float, high: float) -> float:
    return max(0.0, min(end, high) - max(begin, low))


@pytest.mark.slow
def test_rectangles_and_areas(planted: tuple[Run, set[tuple[int, int, int, int, int]]]) -> None:
    run, rectangles = planted
    assert devices_with_blocks(run, Scope()) == [(0, 0)]
    blocks = read_blocks(run, 0, 0)
    ours = blocks.allocations
    found = set(
        zip(*(column.tolist() for column in (ours.begin, ours.end, ours.address, ours.bytes)), strict=True)
    )
    assert found == {one[:4] for one in rectangles} and blocks.left_out == 0
    columns, rows = 7, 5
    window = (blocks.begin + 20_000, blocks.end - 30_000)
    picture = block_map(blocks, columns, rows, window, largest=10)
    assert picture.reserved_bytes == 2 * SEGMENT  # what lies between the segments is left out
    assert len(picture.lines) == 7 and picture.lines[-1] == OTHER_LINES
    width, height = (window[1] - window[0]) / columns, 2 * SEGMENT / rows
    expected = np.zeros((len(picture.lines), rows, columns))
    for begin, end, address, size, line in rectangles:
        low = address - BASES[0] if address < BASES[1] else SEGMENT + address - BASES[1]
        name = f"train.py({line}): step" if line else "(no stack recorded)"
        place = picture.lines.index(name) if name in picture.lines else len(picture.lines) - 1
        for row in range(rows):
            for column in range(columns):
                left = window[0] + column * width
                area = overlap(begin, end, left, left + width) * overlap(
                    low, low + size, row * height, (row + 1) * height
                )
                expected[place, row, column] += area / (width * height)
    np.testing.assert_allclose(picture.held, expected, atol=1e-9)
    assert (picture.reserved >= picture.held.sum(axis=0) - 1e-9).all()
    largest = picture.largest
    assert len(largest) == 10 and largest[0].stack in blocks.sources
    areas = [overlap(one.begin, one.end, *window) * one.bytes for one in largest]
    assert areas == sorted(areas, reverse=True)


@pytest.mark.slow
def test_the_chart(planted: tuple[Run, set[tuple[int, int, int, int, int]]]) -> None:
    chart = CHARTS["blocks"].make(planted[0], Scope())
    assert f"{len(planted[1])} allocations in 2.00 kB" in chart.subtitle
    svg = chart.svg()
    assert "reserved and free" in svg and "train.py(" in svg and "NaN" not in svg
    assert "<title>" in svg and "var(" not in svg


@pytest.mark.slow
def test_the_chart_of_a_run_without_a_snapshot(tmp_path: Path) -> None:
    from conftest import slice_event, write_kineto

    run = open_trace(write_kineto(tmp_path / "rank-0.json", [slice_event("aten::mm", 1, 2)]))
    with pytest.raises(NothingToDrawError, match="no block map"):
        CHARTS["blocks"].make(run, Scope())


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
        assert blocks.left_out == (5 if entries else 0)
        assert blocks.has_times == (bool(entries) and with_times)
        assert np.isfinite(block_map(blocks, 4, 4, largest=3).held).all()
        assert "NaN" not in CHARTS["blocks"].make(run, Scope()).svg()


@pytest.mark.slow
def test_many_allocations_are_a_small_picture() -> None:
    count = 200_000
    random = np.random.default_rng(1)
    begin = np.sort(random.integers(0, 10**9, count))
    stacks = random.integers(0, 50, count)
    rectangles = Rectangles(
        begin, begin + 1000, random.integers(0, 1000, count) * 512, np.full(count, 512), stacks
    )
    segment = Rectangles(*(np.array([value]) for value in (0, 10**9, 0, 512_000, -1)))
    sources = {stack: f"train.py({stack}): step" for stack in range(50)}
    blocks = Blocks(0, 0, rectangles, segment, 0, 10**9, True, sources, {}, {}, 0)
    picture = block_map(blocks, 100, 50, largest=20)
    exact = float(np.minimum(10**9 - begin, 1000).sum()) * 512 / (10**9 * 512_000)
    assert abs(picture.held.sum() / 5000 - exact) < 1e-6
    assert picture.held.shape == (7, 50, 100) and len(picture.largest) == 20
