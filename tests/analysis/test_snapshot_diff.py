"""Two snapshots by call stack, against brute force; the planted leak stands first."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from conftest import ROOT, open_trace
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.memory.snapshot_diff import both_are_snapshots, grown_devices, snapshot_diff
from rankscope.cli import main

pytestmark = pytest.mark.usefixtures("without_workers")

MB = 1 << 20


def stack(line: int) -> list[dict[str, Any]]:
    return [
        {"filename": "??", "line": 0, "name": f"at::_ops::op{line % 3}::call()"},
        {"filename": "/home/me/train.py", "line": line, "name": "step"},
        {"filename": "/home/me/main.py", "line": line % 2 + 1, "name": "main"},
    ]


def write(path: Path, history: list[tuple[str, int, int, int]], start: dict[int, tuple[int, int]]) -> Path:
    """A snapshot of a history (action, address, size, line), from what was allocated before: address -> size, line."""
    live, entries = dict(start), []
    for place, (action, address, size, line) in enumerate(history):
        entries.append({"action": action, "addr": address, "size": size, "stream": 0, "time_us": 10**15 + place,
                        "frames": stack(line)})  # fmt: skip
        if action == "alloc":
            live[address] = (size, line)
        else:
            live.pop(address)
    state = "active_allocated"
    blocks = [
        {"address": address, "size": size + 12, "requested_size": size, "state": state, "frames": stack(line)}
        for address, (size, line) in live.items()
    ]
    segment = {"device": 0, "address": 0, "total_size": 1 << 40, "blocks": blocks, "segment_type": "large"}
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [entries]}))
    return path


def random_history(random: Random) -> tuple[list[tuple[str, int, int, int]], dict[int, tuple[int, int]]]:
    start = {address: (random.randint(1, 999), random.randint(1, 5)) for address in range(4)}
    live, history = dict(start), []
    for _ in range(50):
        address = random.randrange(9)
        if address in live:
            history.append(("free_requested", address, live.pop(address)[0], 7))
        else:
            live[address] = (random.randint(1, 999), random.randint(1, 5))
            history.append(("alloc", address, *live[address]))
    return history, start


def by_line(live: dict[int, tuple[int, int]]) -> tuple[Counter[int], Counter[int]]:
    sizes: Counter[int] = Counter()
    counts: Counter[int] = Counter()
    for size, line in live.values():
        sizes[line] += size
        counts[line] += 1
    return sizes, counts


def brute_force(
    history: list[tuple[str, int, int, int]], start: dict[int, tuple[int, int]]
) -> tuple[Counter[int], Counter[int], int]:
    """Sizes and counts of each line at the end, and the highest total after an entry."""
    live, peak = dict(start), 0
    for action, address, size, line in history:
        if action == "alloc":
            live[address] = (size, line)
        else:
            live.pop(address)
        peak = max(peak, sum(size for size, _ in live.values()))
    return *by_line(live), peak


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_any_two_snapshots(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    histories = [random_history(random), random_history(random)]
    base, new = (
        open_trace(write(tmp_path / f"{name}.rank-0.pickle", *history))
        for name, history in zip("ab", histories, strict=True)
    )
    result = snapshot_diff(base, new, Scope())
    known = [brute_force(*history) for history in histories]
    rows = {int(row["source"].split("(")[1].split(")")[0]): row for row in result.rows if row["source"]}
    assert len(rows) == len([row for row in result.rows if row["source"]])
    for side, (sizes, counts, peak) in zip(("base", "new"), known, strict=True):
        for line in {*rows, *sizes}:
            assert rows[line][f"{side}_end_bytes"] == sizes[line]
            assert rows[line][f"{side}_end_count"] == counts[line]
        assert sum(row[f"{side}_peak_bytes"] for row in result.rows) == peak
    changes = [row["change_bytes"] for row in result.rows]
    assert changes == sorted(changes, reverse=True)
    for row in result.rows:
        before, after = row["base_end_bytes"], row["new_end_bytes"]
        if before or after:
            words = {(True, False): "gone", (False, True): "new"}
            expected = words.get((before > 0, after > 0), "grown" if after > before else "shrunk")
            assert row["verdict"] == ("same" if before == after else expected)


def leaking(path: Path, kept: int) -> Path:
    """Each step frees its activations (line 1) and keeps a loss (line 2); weights (line 3) stay."""
    history = []
    for step in range(kept):
        history += [
            ("alloc", 1, 50 * MB, 1),
            ("alloc", 100 + step, 2 * MB, 2),
            ("free_requested", 1, 50 * MB, 1),
        ]
    return write(path, history, {7: (400 * MB, 3)})


@pytest.mark.slow
def test_the_leak_stands_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    early, late = leaking(tmp_path / "step-10.pickle", 10), leaking(tmp_path / "step-30.pickle", 30)
    base, new = open_trace(early), open_trace(late)
    assert both_are_snapshots(base, new)
    result = snapshot_diff(base, new, Scope())
    first = result.rows[0]
    assert (first["source"], first["change_bytes"], first["change_count"]) == (
        "train.py(2): step",
        40 * MB,
        20,
    )
    assert first["verdict"] == "grown"
    assert first["frames"] == ("/home/me/train.py(2): step", "/home/me/main.py(1): main")
    assert "41.9 MB more" in result.findings[0].title and "train.py(2): step" in result.findings[1].title
    ((rank, device, pct),) = grown_devices(result, 5.0)
    assert (rank, device, round(pct, 1)) == (0, "GPU 0", 9.5)
    assert grown_devices(result, 10.0) == []
    assert snapshot_diff(base, base, Scope()).findings[0].severity == "ok"
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["diff", str(early), str(late), "--fail-over", "5%"]) == 3
    shown = capsys.readouterr()
    page = (
        (ROOT / "docs" / "diff.md")
        .read_text(encoding="utf-8")
        .partition("step-30.pickle\n")[2]
        .partition("\n…")[0]
    )
    assert page and shown.out.startswith(page)
    assert "train.py(2): step" in shown.out and "+9.5 % at the end" in shown.err
    assert main(["diff", str(early), str(late), "-r", "stacks", "--format", "junit"]) == 2
    assert "no junit form" in capsys.readouterr().err
    assert main(["diff", str(early), str(late), "-r", "steps,stacks"]) == 2
