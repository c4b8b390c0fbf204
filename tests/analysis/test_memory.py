"""Memory from [memory] events: peaks, growth and live allocations, against brute force and planted figures."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from conftest import DATA, open_trace, slice_event, write_kineto
from rankscope.analysis import REPORTS
from rankscope.analysis.core.result import Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.memory.allocators import BEFORE, UNKNOWN, live_at_peak
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope_bench.synthetic import Plan, write


def report(run: Run, name: str, by: str | None = None, **scope: Any) -> Result:
    return REPORTS[name].analyse(run, Scope(**scope), by)


def memory(
    ts: float,
    change: int,
    total: int,
    address: int,
    *,
    reserved: int | None = None,
    device: int = 0,
    tid: int = 1,
) -> dict[str, Any]:
    """One [memory] event; device -1 is the CPU."""
    args = {"Bytes": change, "Total Allocated": total, "Total Reserved": total if reserved is None else reserved,
            "Device Id": device, "Device Type": 0 if device < 0 else 1, "Addr": address}  # fmt: skip
    return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "s": "t", "pid": 1, "tid": tid, "ts": ts,
            "args": args}  # fmt: skip


Block = tuple[int, int, int, int]
"""Time, address, change, total after it."""


def history(random: Random) -> list[Block]:
    """Blocks come and go; one may have been there before. Times repeat, addresses are used again."""
    live = {99: random.randint(1, 50)} if random.random() < 0.5 else {}
    time, total, events = 0, random.choice((0, 1000)) + sum(live.values()), []
    for _ in range(random.randint(1, 25)):
        time += random.randint(0, 3)
        free = [address for address in range(1, 8) if address not in live]
        if live and (not free or random.random() < 0.5):
            address = random.choice(sorted(live))
            change = -live.pop(address)
        else:
            address = random.choice(free)
            change = live[address] = random.randint(1, 50)
        total += change
        events.append((time, address, change, total))
    return events


def nested_ops(random: Random, thread: int) -> list[tuple[str, int, int]]:
    """Ops of one thread, outer before inner: each lies within those before it, or beside them."""
    ops: list[tuple[str, int, int]] = []
    for number in range(random.randint(0, 5)):
        start = random.randint(0, 30)
        end = start + random.randint(1, 20)
        if all(end <= s or start >= e or (s <= start and end <= e) for _, s, e in ops):
            ops.append((f"aten::op{thread}_{number}", start, end))
    return ops


def expected_holders(blocks: list[Block], ops: list[tuple[str, int, int]]) -> tuple[int, int, dict[str, Any]]:
    """The peak, its time, and by op: bytes and count."""
    peak = max(total for *_, total in blocks)
    at = next(i for i, (*_, total) in enumerate(blocks) if total == peak)
    live: dict[int, tuple[int, int]] = {}
    for time, address, change, _ in blocks[: at + 1]:
        if change > 0:
            live[address] = (time, change)
        else:
            live.pop(address, None)
    held: dict[str, Any] = {}
    for time, change in live.values():
        around = [name for name, start, end in ops if start <= time < end]
        size, count = held.get(around[-1] if around else UNKNOWN, (0, 0))
        held[around[-1] if around else UNKNOWN] = (size + change, count + 1)
    rest = peak - sum(change for _, change in live.values())
    return peak, blocks[at][0], held | ({BEFORE: (rest, None)} if rest else {})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_live_at_the_peak_against_brute_force(seed: int, tmp_path: Path) -> None:
    """A hundred random histories in one trace, each on a device and a thread of its own."""
    random = Random(seed)
    events, known = [slice_event("aten::first", 0, 1, tid=999)], {}
    for device in range(100):
        blocks, ops = history(random), nested_ops(random, device)
        events += [memory(t, c, s, a, device=device, tid=device) for t, a, c, s in blocks]
        events += [slice_event(name, start, end - start, tid=device) for name, start, end in ops]
        known[f"GPU {device}"] = expected_holders(blocks, ops)
    run = open_trace(write_kineto(tmp_path / "t.json", events))
    found: dict[str, dict[str, Any]] = {}
    for holder in live_at_peak(run, Scope()):
        found.setdefault(holder.device, {})[holder.name] = (holder.bytes, holder.count)
    rows = report(run, "memory").rows
    for peak in rows:
        total, at, held = known[peak["device"]]
        assert (peak["peak_allocated_bytes"], peak["at_ns"]) == (total, at * 1000)
        assert found.get(peak["device"], {}) == held, peak
    assert len(known) == len(rows)


def test_the_calling_op_is_named_and_not_the_allocating_one(tmp_path: Path) -> None:
    frames = [slice_event("train.py(7): step", 0, 100, cat="python_function", args={"Python id": 1}),
              slice_event("nn.Module: Linear_0", 1, 90, cat="python_function", args={"Python id": 2})]  # fmt: skip
    events = [
        *frames,
        slice_event("aten::linear", 10, 50),
        slice_event("aten::addmm", 20, 30),
        slice_event("aten::empty", 25, 5),
        memory(27, 64, 100, 1),
        slice_event("aten::empty_strided", 70, 5),
        memory(72, 32, 132, 2),
    ]
    run = open_trace(write_kineto(tmp_path / "t.json", events))
    rows = {row["name"]: row for row in report(run, "memory.allocators").rows}
    assert {name: (row["bytes"], row["count"]) for name, row in rows.items()} == {
        "aten::addmm": (64, 1), "aten::empty_strided": (32, 1), BEFORE: (36, None),
    }  # fmt: skip
    assert rows["aten::addmm"]["source"] == "train.py(7): step"
    by_module = {row["name"]: row["module"] for row in report(run, "memory.allocators", "module").rows}
    assert by_module["aten::addmm"] == "nn.Module: Linear_0"


def test_what_a_gpt_holds_at_its_peak(open_real: Any) -> None:
    """The loss is computed in float32: 1 GB of logits there, 1 GB of their gradient, 0.5 GB of bfloat16 softmax."""
    run = open_real(DATA / "gpt-h200-stack")
    rows = [row for row in report(run, "memory.allocators").rows if row["device"] == "GPU 0"]
    (peak,) = [row for row in report(run, "memory").rows if row["device"] == "GPU 0"]
    assert sum(row["bytes"] for row in rows) == peak["peak_allocated_bytes"] == 5_477_374_464
    largest = {row["name"]: (row["bytes"], row["source"]) for row in rows[:4]}
    logits = 8 * 1024 * 32_000
    assert largest["aten::nll_loss"] == (4 * logits, "gpt.py(31): step")
    assert largest["aten::nll_loss_backward"] == (4 * logits, None)
    assert largest["aten::_log_softmax"] == (2 * logits, "gpt.py(31): step")
    assert BEFORE in largest


@pytest.mark.slow
def test_planted_peaks_and_all_of_them_explained(tmp_path: Path) -> None:
    truth = write(Plan(ranks=2, events_per_rank=12_000), tmp_path)
    run = Run(ingest([tmp_path]))
    rows = report(run, "memory").rows
    held = report(run, "memory.allocators").rows
    for rank in truth["ranks"]:
        (row,) = [r for r in rows if r["rank"] == rank["rank"] and r["device"] != "CPU"]
        assert row["peak_allocated_bytes"] == rank["peak_allocated_bytes"]
        mine = [r["bytes"] for r in held if r["rank"] == rank["rank"] and r["device"] != "CPU"]
        assert sum(mine) == rank["peak_allocated_bytes"]


def leaking(path: Path, steps: int, grows: int, header: Any = None) -> Run:
    events: list[dict[str, Any]] = []
    base = 10_000_000_000
    for n in range(steps):
        events.append(slice_event(f"ProfilerStep#{n}", 1000 * n, 1000, cat="user_annotation"))
        kept = base + grows * n
        events.append(memory(1000 * n + 10, 5_000_000, kept + 5_000_000, 1, reserved=20_000_000_000))
        events.append(memory(1000 * n + 500, -5_000_000, kept, 1, reserved=20_000_000_000))
    return open_trace(
        write_kineto(path / "t.json", events, **({"deviceProperties": header} if header else {}))
    )


@pytest.mark.slow
def test_a_leak_is_found_and_a_steady_run_is_not(tmp_path: Path) -> None:
    result = report(leaking(tmp_path / "a", 5, 3_000_000), "memory")
    assert result.rows[0]["growth_bytes"] == 3_000_000
    leak = next(f for f in result.findings if "grows by 3.00 MB per step" in f.title)
    assert leak.severity == "warning" and leak.ranks == (0,)
    assert all("grows" not in f.title for f in report(leaking(tmp_path / "b", 5, 0), "memory").findings)
    assert report(leaking(tmp_path / "c", 3, 2_000_000), "memory").findings[0].severity == "info"
    by_step = report(leaking(tmp_path / "d", 3, 0), "memory", "step").rows
    assert [row["step"] for row in by_step] == [0, 1, 2]


@pytest.mark.slow
def test_memory_that_is_full_and_memory_that_is_not_used(tmp_path: Path) -> None:
    small = [{"id": 0, "name": "x", "totalGlobalMem": 21_000_000_000}]
    titles = {f.title: f.severity for f in report(leaking(tmp_path, 2, 0, small), "memory").findings}
    assert titles == {
        "Memory of GPU 0 (rank 0) is 95 % full": "warning",
        "10.0 GB on GPU 0 (rank 0) is reserved but not allocated at the peak": "warning",
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["memory", "memory.allocators"])
def test_without_memory_events_it_says_how_to_record_them(name: str, tmp_path: Path) -> None:
    run = open_trace(write_kineto(tmp_path / "t.json", [slice_event("aten::add", 0, 1)]))
    result = report(run, name)
    assert result.rows == () and any("--profile-memory" in note for note in result.notes)
