"""Memory snapshots: peak and live allocations against brute force, on a real snapshot and on random ones."""

from __future__ import annotations

import gzip
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from conftest import DATA, open_trace, slice_event, write_kineto
from rankscope.analysis import REPORTS
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.memory.snapshot import BEFORE, held_at_peak, read_blocks, snapshot_peaks
from rankscope.readers.safe_pickle import Budget
from rankscope.readers.stack_frames import frames_in, op_name, own_line
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

pytestmark = pytest.mark.usefixtures("without_workers")


def frames(line: int, op: str = "mm") -> list[dict[str, Any]]:
    return [
        {"filename": "??", "line": 0, "name": f"at::_ops::{op}::call(at::Tensor const&)"},
        {"filename": "/venv/lib/python3.12/site-packages/torch/nn/linear.py", "line": 9, "name": "forward"},
        {"filename": "/home/me/train.py", "line": line, "name": "step"},
    ]


def entry(action: str, address: int, size: int, at: int, line: int = 1) -> dict[str, Any]:
    stack = frames(line)
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": 10**15 + at,
        "frames": stack,
    }


def snapshot(history: list[dict[str, Any]], live: dict[int, int], reserved: int = 0) -> dict[str, Any]:
    """`live` maps addresses to sizes at the end."""
    blocks = [
        {
            "address": address,
            "size": size + 12,
            "requested_size": size,
            "state": "active_allocated",
            "frames": frames(99),
        }
        for address, size in live.items()
    ]
    segment = {
        "device": 0, "address": 0, "total_size": reserved, "allocated_size": sum(live.values()) + 12 * len(live),
        "active_size": 0, "requested_size": sum(live.values()), "stream": 0, "segment_type": "large", "blocks": blocks,
    }  # fmt: skip
    return {"segments": [segment], "device_traces": [history], "allocator_settings": {}}


def write(path: Path, value: dict[str, Any]) -> Path:
    path.write_bytes(pickle.dumps(value))
    return path


def brute_force(value: dict[str, Any], device: int = 0) -> tuple[int, Counter[str]]:
    """The requested bytes at the peak and their stacks, by brute force: back from the state at the end."""
    live = {
        block["address"]: block["requested_size"]
        for segment in value["segments"]
        for block in segment["blocks"]
        if segment["device"] == device and block["state"] == "active_allocated"
    }
    history = value["device_traces"][device]
    moments = []
    for event in reversed(history):
        moments.append(dict(live))
        if event["action"] == "alloc":
            live.pop(event["addr"])
        elif event["action"] == "free_requested":
            live[event["addr"]] = event["size"]
    moments.reverse()
    totals = [sum(moment.values()) for moment in moments]
    at = totals.index(max(totals))
    made: dict[int, str] = {}
    for event in history[: at + 1]:
        if event["action"] == "alloc":
            made[event["addr"]] = own_line(frames_in(event["frames"], Budget(Path(), 1 << 30))) or ""
        elif event["action"] == "free_requested":
            made.pop(event["addr"], None)
    holders: Counter[str] = Counter()
    for address, size in moments[at].items():
        holders[made.get(address, "?")] += size
    return totals[at], holders


def without_times(value: dict[str, Any]) -> dict[str, Any]:
    """As older versions of torch write it."""
    return value | {
        "device_traces": [
            [{key: one for key, one in event.items() if key != "time_us"} for event in trace]
            for trace in value["device_traces"]
        ]
    }


@pytest.mark.slow
def test_a_history_without_times_has_the_same_peak(tmp_path: Path, open_real: Callable[[Path], Run]) -> None:
    path = DATA / "memory" / "gpt-h200.pickle.gz"
    value = pickle.loads(gzip.decompress(path.read_bytes()))
    timed, untimed = open_real(path), open_trace(write(tmp_path / "rank-0.pickle", without_times(value)))
    (peak,), (same) = snapshot_peaks(untimed, Scope()), snapshot_peaks(timed, Scope())
    assert (peak.allocated_bytes, peak.reserved_bytes, peak.unused_bytes, peak.event) == (
        6_432_652_760,
        same[0].reserved_bytes,
        same[0].unused_bytes,
        same[0].event,
    )
    assert peak.at_ns is None and same[0].at_ns is not None
    assert held_at_peak(untimed, Scope()) == held_at_peak(timed, Scope())
    result = REPORTS["memory"].analyse(untimed, Scope(), None)
    assert any("history of the snapshot has no times: rank 0" in note for note in result.notes)
    assert not any("left out" in note for note in result.notes)


def test_the_peak_of_a_history_without_times_is_not_the_moment_of_the_snapshot(tmp_path: Path) -> None:
    history = [entry("alloc", 1, 5_000, 0), entry("alloc", 2, 880, 1), entry("free_requested", 1, 5_000, 2)]
    run = open_trace(
        write(tmp_path / "rank-0.pickle", without_times(snapshot(history, {2: 880, 3: 120}, 8_000)))
    )
    (row,) = REPORTS["memory"].analyse(run, Scope(), None).rows
    assert (row["peak_allocated_bytes"], row["unused_bytes"], row["at_ns"]) == (6_000, 2_000, None)
    held = [(holder.name, holder.bytes) for holder in held_at_peak(run, Scope())]
    assert sum(size for _, size in held) == 6_000


def test_a_snapshot_without_history_says_that_its_figures_are_no_peak(tmp_path: Path) -> None:
    result = REPORTS["memory"].analyse(
        open_trace(write(tmp_path / "rank-0.pickle", snapshot([], {2: 880}, 8_000))), Scope(), None
    )
    assert result.rows[0]["peak_allocated_bytes"] == 880
    assert any("no history: rank 0" in note and "may have been higher" in note for note in result.notes)


@pytest.mark.slow
def test_a_snapshot_beside_a_trace_with_steps_is_used(tmp_path: Path) -> None:
    """By default the window is all steps of the trace; a snapshot knows no steps, and is left out of a part of them."""
    events = [slice_event(f"ProfilerStep#{step}", 1000 * step, 900, cat="user_annotation") for step in (1, 2)]
    write_kineto(tmp_path / "rank-0.json", events, distributedInfo={"rank": 0, "world_size": 1})
    write(tmp_path / "rank-0.pickle", snapshot([entry("alloc", 1, 5_000, 0)], {1: 5_000}, 8_000))
    run = Run(ingest([tmp_path]))
    for name, column in (("memory", "peak_allocated_bytes"), ("memory.allocators", "bytes")):
        assert [row[column] for row in REPORTS[name].analyse(run, Scope(), None).rows] == [5_000]
        assert REPORTS[name].analyse(run, Scope(steps=(1, 1)), None).rows == ()


@pytest.mark.slow
def test_findings_of_a_snapshot_carry_their_figures(tmp_path: Path) -> None:
    gigabyte = 10**9
    history = [entry("alloc", 1, 3 * gigabyte, 0)]
    value = snapshot(history, {1: 3 * gigabyte}, 8 * gigabyte)
    for name, path in (("timed", value), ("untimed", without_times(value))):
        run = open_trace(write(tmp_path / f"{name}.rank-0.pickle", path))
        assert not REPORTS["memory"].analyse(run, Scope(), None).findings  # it would be said twice
        (finding,) = REPORTS["memory.fragmentation"].analyse(run, Scope(), None).findings
        unused = finding.fact("free_bytes")
        assert unused is not None and (unused.value, unused.ranks) == (5 * gigabyte, (0,))
        assert finding.title.startswith("5.00 GB") or finding.title.startswith("5 GB")
        assert (finding.span is None) == (name == "untimed") and finding.cost_ns is None


@pytest.mark.slow
def test_the_real_snapshot(open_real: Callable[[Path], Run]) -> None:
    path = DATA / "memory" / "gpt-h200.pickle.gz"
    value = pickle.loads(gzip.decompress(path.read_bytes()))
    peak, holders = brute_force(value)
    run = open_real(path)
    (ours,) = snapshot_peaks(run, Scope())
    assert ours.allocated_bytes == peak == 6_432_652_760
    assert ours.reserved_bytes == 7_948_206_080 == sum(s["total_size"] for s in value["segments"])
    by_line: Counter[str] = Counter()
    for holder in held_at_peak(run, Scope()):
        by_line[holder.source or ""] += holder.bytes
    assert by_line == holders
    top = REPORTS["memory.allocators"].analyse(run, Scope(), None).rows[0]
    assert (top["name"], top["source"], top["bytes"], top["count"]) == (
        "aten::cross_entropy_loss",
        "gpt.py(34): step",
        1_572_864_008,
        4,
    )
    instants = run.rows(
        "SELECT count(*), count(DISTINCT ts_ns) > 1000 FROM instants WHERE category = 'memory_snapshot'"
    )
    assert instants == [(16162, True)]


def test_the_reports_use_it(open_real: Callable[[Path], Run]) -> None:
    run = open_real(DATA / "memory" / "gpt-h200.pickle.gz")
    (row,) = REPORTS["memory"].analyse(run, Scope(), None).rows
    assert (row["device"], row["peak_allocated_bytes"]) == ("GPU 0", 6_432_652_760)
    result = REPORTS["memory.allocators"].analyse(run, Scope(), None)
    assert sum(row["bytes"] for row in result.rows) == 6_432_652_760
    first = {key: result.rows[0][key] for key in ("rank", "name", "bytes", "count", "source")}
    assert first == {
        "rank": 0,
        "name": "aten::cross_entropy_loss",
        "bytes": 1_572_864_008,
        "count": 4,
        "source": "gpt.py(34): step",
    }
    assert any("snapshot" in note for note in result.notes)


@pytest.mark.slow
def test_fragments_of_the_real_snapshot(open_real: Callable[[Path], Run]) -> None:
    path = DATA / "memory" / "gpt-h200.pickle.gz"
    value = pickle.loads(gzip.decompress(path.read_bytes()))
    result = REPORTS["memory.fragmentation"].analyse(open_real(path), Scope(), None)
    for row in result.rows:
        segments = [s for s in value["segments"] if s["segment_type"] == row["kind"]]
        free = [b["size"] for s in segments for b in s["blocks"] if b["state"] == "inactive"]
        assert row["segments"] == len(segments)
        assert row["reserved_bytes"] == sum(s["total_size"] for s in segments)
        assert row["free_bytes"] == row["reserved_bytes"] - row["allocated_bytes"] == sum(free)
        assert (row["largest_free_bytes"], row["free_blocks"]) == (max(free), len(free))
    assert {row["kind"] for row in result.rows} == {"large", "small"}
    assert not result.findings and any("1.52 GB of 7.95 GB" in note for note in result.notes)


def random_history(random: Random) -> tuple[list[dict[str, Any]], dict[int, int]]:
    """One that begins late: what was there before is freed in it, or still there at the end."""
    live = {address: random.randint(1, 1000) for address in range(6) if random.random() < 0.4}
    history = []
    for number in range(random.randint(1, 60)):
        address, line = random.randrange(8), random.randint(1, 4)
        if address not in live:
            live[address] = random.randint(1, 1000)
            history.append(entry("alloc", address, live[address], number // 3, line))
        else:
            history.append(entry("free_requested", address, live[address], number // 3, line))
            history.append(entry("free_completed", address, live.pop(address), number // 3, line))
    return history, live


@pytest.mark.slow
def test_any_history(tmp_path: Path) -> None:
    """Forty devices with a history each."""
    random = Random(5)
    value: dict[str, Any] = {"segments": [], "device_traces": [], "allocator_settings": {}}
    for device in range(40):
        history, live = random_history(random)
        (segment,) = snapshot(history, live)["segments"]
        value["segments"].append({**segment, "device": device})
        value["device_traces"].append(history)
    run = open_trace(write(tmp_path / "rank-0.pickle", value))
    peaks = {peak.device: peak.allocated_bytes for peak in snapshot_peaks(run, Scope())}
    holders = held_at_peak(run, Scope())
    late = 0
    for device in range(40):
        expected, by_line = brute_force(value, device)
        assert peaks[device] == expected
        found: Counter[str] = Counter()
        for holder in holders:
            if holder.device == f"GPU {device}":
                before = holder.name == BEFORE or holder.source == "train.py(99): step"
                found["?" if before else holder.source or ""] += holder.bytes
        assert found == by_line
        late += by_line["?"] > 0
    assert 5 < late < 40  # both kinds are among them


@pytest.mark.slow
def test_a_history_with_completed_frees_only(tmp_path: Path) -> None:
    """skip_actions=["free_requested"]: the same peak, holders and rectangles."""
    history, live = random_history(Random(8))
    completed = [entry for entry in history if entry["action"] != "free_requested"]
    assert len(completed) < len(history)
    runs = [
        open_trace(write(tmp_path / f"{name}.rank-0.pickle", snapshot(entries, live)))
        for name, entries in (("all", history), ("some", completed))
    ]
    peaks = [[peak.allocated_bytes for peak in snapshot_peaks(run, Scope())] for run in runs]
    assert peaks[0] == peaks[1] == [brute_force(snapshot(history, live))[0]]
    assert held_at_peak(runs[0], Scope()) == held_at_peak(runs[1], Scope())
    sizes = [sorted(read_blocks(run, 0, 0).allocations.bytes.tolist()) for run in runs]
    assert sizes[0] == sizes[1]


@pytest.mark.slow
def test_a_snapshot_without_history(tmp_path: Path) -> None:
    value = snapshot([], {1: 500, 2: 300}, reserved=2000)
    value["device_traces"] = []
    run = open_trace(write(tmp_path / "memory-3-of-8.pickle", value))
    (peak,) = snapshot_peaks(run, Scope())
    assert (peak.rank, peak.allocated_bytes, peak.reserved_bytes, peak.at_ns) == (3, 800, 2000, None)
    assert [(h.bytes, h.count) for h in held_at_peak(run, Scope())] == [(800, 2)]


def test_where_in_the_program() -> None:
    def read(stack: Any) -> Any:
        return frames_in(stack, Budget(Path(), 1000))

    assert own_line(read(frames(7))) == "train.py(7): step"
    assert own_line(read(frames(7)[:2])) == "linear.py(9): forward"
    assert own_line(read("damaged")) is None
    assert own_line(read([{"filename": "x.py"}, 3])) is None
    inner = [{"name": "at::_ops::empty_strided::call(x)", "filename": "??"}, *frames(1, "linear")]
    assert op_name(read(inner)) == "aten::linear"
    node = [{"name": "torch::autograd::generated::MmBackward0::apply(x)", "filename": "??"}]
    assert op_name(read([*inner[:1], *node])) == "MmBackward0"


@pytest.mark.parametrize("name", ["memory.fragmentation", "memory", "memory.allocators"])
def test_note_without_a_snapshot(tmp_path: Path, name: str) -> None:
    from conftest import slice_event, write_kineto

    run = open_trace(write_kineto(tmp_path / "rank-0.json", [slice_event("aten::mm", 1, 2)]))
    result = REPORTS[name].analyse(run, Scope(), None)
    assert result.rows == () and result.notes
