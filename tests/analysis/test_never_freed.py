"""Blocks that are never freed: planted in histories of training loops, beside what only looks like a leak."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import DATA, open_trace, slice_event, write_kineto
from rankscope.analysis import REPORTS
from rankscope.analysis.core.result import Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.memory.snapshot import held_by_line
from rankscope.timeline.run import Run
from rankscope.views.charts import CHARTS

pytestmark = pytest.mark.usefixtures("without_workers")

MB = 1_000_000
ACTIVATION, STATE, LEAK, OTHER_LEAK = 10, 20, 30, 40
"""Lines of the script."""


class Loop:
    """A training loop on one device, in the words of torch's allocator."""

    def __init__(self) -> None:
        self.history: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self.live: dict[int, tuple[int, int]] = {}
        self.peak = 0
        self._next = 1 << 20
        self._time = 10**15

    def _entry(self, action: str, address: int, size: int, line: int) -> None:
        self._time += 10
        frames = [
            {"filename": "/home/me/train.py", "line": line, "name": "step"},
            {"filename": "/home/me/train.py", "line": 99, "name": "<module>"},
        ]
        entry = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": self._time}
        self.history.append(entry | {"frames": frames})

    def allocate(self, line: int, size: int = MB) -> int:
        self._next += 1 << 30
        self.live[self._next] = (size, line)
        self._entry("alloc", self._next, size, line)
        self.peak = max(self.peak, sum(size for size, _ in self.live.values()))
        return self._next

    def free(self, address: int) -> None:
        size, line = self.live.pop(address)
        self._entry("free_requested", address, size, line)
        self._entry("free_completed", address, size, line)

    def step(self) -> None:
        """Activations of six layers, freed in the backward pass; then the optimizer's step."""
        layers = [self.allocate(ACTIVATION) for _ in range(6)]
        for layer in reversed(layers):
            self.free(layer)
        for stage in ("START", "END"):
            self._time += 10
            note = {"stage": stage, "name": "Optimizer.step#AdamW.step", "device": 0, "time_us": self._time}
            self.annotations.append(note)

    def write(self, path: Path, reserved: int = 0) -> None:
        blocks = [
            {
                "address": address,
                "size": size,
                "requested_size": size,
                "state": "active_allocated",
                "frames": next(e["frames"] for e in self.history if e["addr"] == address),
            }
            for address, (size, _) in self.live.items()
        ]
        total = sum(size for size, _ in self.live.values())
        segment = {
            "device": 0, "address": 0, "total_size": reserved or total, "allocated_size": total, "active_size": total,
            "requested_size": total, "stream": 0, "segment_type": "large", "blocks": blocks,
        }  # fmt: skip
        snapshot = {"segments": [segment], "device_traces": [self.history], "allocator_settings": {}}
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(pickle.dumps(snapshot | {"external_annotations": self.annotations}))


def memory(path: Path) -> Result:
    return REPORTS["memory"].analyse(open_trace(path), Scope(), None)


def leaks(path: Path) -> list[Finding]:
    return [finding for finding in memory(path).findings if "never freed" in finding.title]


@pytest.mark.slow(every_variation=True)
@pytest.mark.parametrize(
    ("every", "at_once", "words"),
    [(1, 1, "one every step"), (2, 1, "one every 2 steps"), (1, 3, "3 every step")],
)
def test_a_planted_leak(tmp_path: Path, every: int, at_once: int, words: str) -> None:
    loop = Loop()
    for number in range(12):
        if number % every == 0:
            for _ in range(at_once):
                loop.allocate(LEAK, 4 * MB)
        loop.step()
    loop.write(tmp_path / "rank0.pickle")
    (finding,) = leaks(tmp_path)
    count = 12 // every * at_once
    assert finding.severity == "warning" and finding.ranks == (0,)
    assert finding.title.startswith(
        f"{count} blocks of 4.00 MB from train.py(30) were never freed, {words} ("
    )
    assert "called by: train.py(30): step < train.py(99): <module>" in finding.lines
    held, growth = finding.fact("held_bytes"), finding.fact("growth_bytes")
    assert held and held.value == count * 4 * MB
    assert growth and growth.value == 4 * MB * at_once // every
    assert finding.fact("steps_until_full") is None  # how much memory the device has is not known


def test_the_table_has_the_growth_and_names_it_once(tmp_path: Path) -> None:
    loop = Loop()
    for _ in range(8):
        loop.allocate(LEAK, 4 * MB)
        loop.step()
    loop.write(tmp_path / "rank0.pickle")
    result = memory(tmp_path)
    assert [row["growth_bytes"] for row in result.rows] == [4 * MB]
    assert len(result.findings) == 1 and not any("growth is unknown" in note for note in result.notes)


def test_how_long_until_the_device_is_full(tmp_path: Path) -> None:
    loop = Loop()
    for _ in range(8):
        loop.allocate(LEAK, 4 * MB)
        loop.step()
    loop.write(tmp_path / "rank0.pickle")
    device = [{"id": 0, "name": "x", "totalGlobalMem": loop.peak + 40 * MB}]
    write_kineto(tmp_path / "rank0.json", [slice_event("aten::mm", 1.0, 5.0)], deviceProperties=device)
    (finding,) = leaks(tmp_path)
    left = finding.fact("steps_until_full")
    assert left and left.value == 10 and "steps until it is full: 10, GPU 0 of rank 0" in finding.lines


@pytest.mark.slow
def test_the_same_line_of_two_ranks_is_one_finding(tmp_path: Path) -> None:
    for rank in range(2):
        loop = Loop()
        for _ in range(6):
            loop.allocate(LEAK, 4 * MB)
            loop.allocate(OTHER_LEAK, (2 + rank) * MB)
            loop.step()
        loop.write(tmp_path / f"rank{rank}.pickle")
    first, second = leaks(tmp_path)
    assert "train.py(30)" in first.title and first.title.endswith("on ranks 0-1") and first.ranks == (0, 1)
    assert "of 3.00 MB from train.py(40)" in second.title


def made_and_kept(loop: Loop) -> None:
    """The model before the first step, the optimizer's state in it."""
    for _ in range(20):
        loop.allocate(STATE, 4 * MB)
    loop.step()
    for _ in range(20):
        loop.allocate(STATE + 1, 4 * MB)
    for _ in range(11):
        loop.step()


def in_the_middle_of_a_step(loop: Loop) -> None:
    """Activations of the last step are still there, as when memory runs out."""
    for _ in range(2):
        loop.step()
    for _ in range(40):
        loop.allocate(ACTIVATION, MB)


def one_step_only(loop: Loop) -> None:
    """Nothing of the history is freed: it ends in the first forward pass."""
    for _ in range(40):
        loop.allocate(ACTIVATION, MB)


def a_cache_that_has_filled(loop: Loop) -> None:
    for number in range(20):
        if number < 8:
            loop.allocate(LEAK, 4 * MB)
        loop.step()


def a_queue_of_fixed_length(loop: Loop) -> None:
    queue = []
    for _ in range(20):
        queue.append(loop.allocate(LEAK, 4 * MB))
        if len(queue) > 6:
            loop.free(queue.pop(0))
        loop.step()


def now_and_then(loop: Loop) -> None:
    for number in range(30):
        if number in (1, 2, 3, 17, 29):
            loop.allocate(LEAK, 4 * MB)
        loop.step()


def small_blocks(loop: Loop) -> None:
    """A list of losses."""
    for _ in range(20):
        loop.allocate(LEAK, 512)
        loop.step()


HEALTHY = (
    made_and_kept,
    in_the_middle_of_a_step,
    one_step_only,
    a_cache_that_has_filled,
    a_queue_of_fixed_length,
    now_and_then,
    small_blocks,
)


@pytest.mark.slow
def test_what_only_looks_like_a_leak(tmp_path: Path) -> None:
    """Each job as a rank."""
    for rank, job in enumerate(HEALTHY):
        loop = Loop()
        job(loop)
        loop.write(tmp_path / f"rank{rank}.pickle")
    result = memory(tmp_path)
    assert len(result.rows) == len(HEALTHY)
    assert not result.findings


def test_without_steps_nothing_is_claimed(tmp_path: Path) -> None:
    """Older versions of torch do not note them: layers of one forward pass look like steps."""
    loop = Loop()
    for _ in range(8):
        loop.allocate(LEAK, 4 * MB)
        loop.step()
    loop.annotations = []
    loop.write(tmp_path / "rank0.pickle")
    result = memory(tmp_path)
    assert not result.findings and result.rows[0]["growth_bytes"] is None


DAMAGED: list[Any] = [
    7,
    [7, None, {}],
    [{"name": 5, "stage": "END", "device": "0", "time_us": None}],
    [{"name": "Optimizer.step#x", "stage": "END", "device": 9, "time_us": -(2**62)}],
]


def test_damaged_annotations_are_ignored(tmp_path: Path) -> None:
    for rank, damaged in enumerate(DAMAGED):
        loop = Loop()
        loop.step()
        loop.annotations = damaged
        loop.write(tmp_path / f"rank{rank}.pickle")
    assert len(memory(tmp_path).rows) == len(DAMAGED)


def test_the_recorded_leak(dataset: Callable[[str], Path], open_real: Callable[[Path], Run]) -> None:
    run = open_real(dataset("leak-h200"))
    (finding,) = REPORTS["findings"].analyse(run, Scope(), None).findings
    expected = "8 blocks of 16.8 MB from mix.py(9) were never freed, one every step (11.5 ms)"
    assert finding.title == expected and finding.severity == "warning"
    (row,) = REPORTS["memory"].analyse(run, Scope(), None).rows
    assert row["growth_bytes"] == 16 << 20
    # The charts of its report: one curve, and what the line holds, from nothing to eight blocks.
    assert CHARTS["memory"].make(run, Scope()).body and CHARTS["memory.allocators"].make(run, Scope()).body
    held = [row["held_bytes"] for row in held_by_line(run, Scope()).rows if row["line"] == "mix.py(9): one"]
    assert held == sorted(held) and held[0] == 0 and held[-1] == 8 << 24


def test_a_healthy_recording_has_no_finding(open_real: Callable[[Path], Run]) -> None:
    """6.18 GB are free between two steps; at the peak it is 1.52 GB of 7.95 GB."""
    run = open_real(DATA / "memory" / "gpt-h200.pickle.gz")
    assert not REPORTS["findings"].analyse(run, Scope(), None).findings
    (row,) = REPORTS["memory"].analyse(run, Scope(), None).rows
    assert row["growth_bytes"] == 0


def test_fragmentation_is_judged_at_the_peak(tmp_path: Path) -> None:
    gb = 1 << 30
    loop = Loop()
    loop._entry("segment_alloc", 0, 8 * gb, STATE)
    loop._next = -gb
    blocks = [loop.allocate(STATE, gb // 2) for _ in range(8)]  # each at the begin of a GB
    for block in blocks:
        loop.free(block)
    loop.write(tmp_path / "a" / "rank0.pickle", 8 * gb)
    result = REPORTS["memory.fragmentation"].analyse(open_trace(tmp_path / "a"), Scope(), None)
    (finding,) = result.findings
    pieces, largest = finding.fact("free_blocks"), finding.fact("largest_free_bytes")
    assert pieces and largest and (pieces.value, largest.value) == (8, gb // 2)
    assert "4.29 GB of GPU 0 (rank 0) is reserved but not allocated at the peak (50 %)" in finding.title
    assert "expandable_segments" in finding.hint
    # The same memory, all of it used at the peak and none of it at the end.
    loop = Loop()
    loop._entry("segment_alloc", 0, 8 * gb, STATE)
    for block in [loop.allocate(STATE, gb) for _ in range(8)]:
        loop.free(block)
    loop.write(tmp_path / "b" / "rank0.pickle", 8 * gb)
    full = REPORTS["memory.fragmentation"].analyse(open_trace(tmp_path / "b"), Scope(), None)
    assert not full.findings and full.rows[0]["free_bytes"] == 8 * gb
    assert any("at the peak 0 B of 8.59 GB are not allocated" in note for note in full.notes)
