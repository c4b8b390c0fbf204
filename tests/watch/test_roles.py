"""Roles of a simulated job: who waits for whom, and which role holds up the others."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import ROOT, examples
from rankscope.capture.capture_request import request_path
from rankscope.capture.telemetry_ring import FIELDS, NONE, RingWriter, ring_path
from rankscope.cli import main
from rankscope.errors import StoreError
from rankscope.watch.ask_capture import ask_capture
from rankscope.watch.hang import read_stacks
from rankscope.watch.rings import RankRing, has_telemetry, read_rings
from rankscope.watch.roles import bottleneck, role_lines, role_states
from simulated_telemetry import read_state

MS = 1_000_000
RANKS = {"rollout": (0, 1), "reward": (2,), "training": (3, 4)}
BATCHES = 4
"""Steps of the training in each cycle."""


def record(step: int, began: int, ended: int, working: int) -> list[int]:
    values = dict.fromkeys(FIELDS[1:], NONE) | {"step": step, "end_unix_ns": ended, "step_ns": ended - began}
    return [*(values | {"cpu_ns": working, "wait_ns": 0, "data_ns": 0, "profiled": 0}).values()]


def cycle_job(durations: dict[str, float], cycles: int, chance: random.Random) -> dict[str, list[list[int]]]:
    """One role after the other: rollout, reward, training, and again. Times in ms, with a noise of 5 %."""
    now = 1_000_000 * MS
    last = dict.fromkeys(durations, now)
    records: dict[str, list[list[int]]] = {role: [] for role in durations}
    for _ in range(cycles):
        for role, mean in durations.items():
            count = BATCHES if role == "training" else 1
            for _ in range(count):
                working = int(mean / count * chance.gauss(1, 0.05) * MS)
                now += working
                records[role].append(record(len(records[role]), last[role], now, working))
                last[role] = now
    return records


def rings(run: Path, records: dict[str, list[list[int]]]) -> list[RankRing]:
    (run / "telemetry").mkdir(exist_ok=True)
    for role, rows in records.items():
        for rank in RANKS[role]:
            about = {"rank": rank, "role": role, "world_size": 5, "host": "node0", "started_unix_ns": 1}
            RingWriter(ring_path(run, rank), about, 256).write(rows, rows[-1][1], 1, rows[-1][1])
    return read_rings(run)


@settings(max_examples=examples(50))
@given(st.tuples(*[st.integers(50, 1000)] * 3), st.integers(0, 10**6))
def test_a_cycle_of_roles(
    tmp_path_factory: pytest.TempPathFactory, times: tuple[int, ...], seed: int
) -> None:
    durations = dict(zip(RANKS, map(float, times), strict=True))
    run = tmp_path_factory.mktemp("roles")
    states = {
        state["role"]: state
        for state in role_states(rings(run, cycle_job(durations, 40, random.Random(seed))))
    }
    cycle = sum(times)
    for role, waits_for in (("rollout", "training"), ("reward", "rollout"), ("training", "reward")):
        blocked = 100 * (1 - durations[role] / cycle)
        if blocked > 30:
            assert states[role]["waits_for"] == waits_for
            assert states[role]["wait_pct"] == pytest.approx(blocked, abs=5)
    longest, second = sorted(times)[-1], sorted(times)[-2]
    if (longest - second) / cycle > 0.2:
        slowest = max(durations, key=lambda role: durations[role])
        assert bottleneck([*states.values()]).startswith(f"{slowest} is the bottleneck: ")


def test_the_page_shows_what_is_printed(tmp_path: Path) -> None:
    states = role_states(
        rings(
            tmp_path, cycle_job({"rollout": 800.0, "reward": 50.0, "training": 200.0}, 40, random.Random(1))
        )
    )
    text = "\n".join([*role_lines(states), bottleneck(states)])
    assert f"```{text}\n```" in (ROOT / "docs" / "watch.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("seed", range(5))
def test_roles_that_do_not_wait_for_each_other(tmp_path: Path, seed: int) -> None:
    """Each is blocked half its time, by something outside the job, and at its own pace."""
    chance = random.Random(seed)
    records: dict[str, list[list[int]]] = {}
    for role, pace in (("rollout", 730), ("reward", 90), ("training", 410)):
        now = 1_000_000 * MS
        rows = records[role] = []
        while now < 1_000_000 * MS + 60_000 * MS:
            began, now = now, now + int(pace * chance.uniform(0.7, 1.3) * MS)
            rows.append(record(len(rows), began, now, (now - began) // 2))
    states = role_states(rings(tmp_path, records))
    assert [state["waits_for"] for state in states] == [None] * 3 and bottleneck(states) == ""


def test_a_role_whose_work_is_elsewhere_is_still_waited_for(tmp_path: Path) -> None:
    """The rollout's process only waits for its engine, a child: when it works is not known."""
    records = cycle_job({"rollout": 800.0, "reward": 50.0, "training": 200.0}, 40, random.Random(2))
    for row in records["rollout"]:
        row[FIELDS.index("cpu_ns") - 1] = 2 * MS
    states = role_states(rings(tmp_path, records))
    assert [(state["waits_for"], state["wait_pct"] is None) for state in states] == [
        (None, True), ("rollout", False), ("reward", False),
    ]  # fmt: skip
    assert bottleneck(states).startswith("rollout is the bottleneck: reward waits 9")


def test_roles_with_folders_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As Ray's actors: each role numbers its ranks from 0 on. The reward has stopped first, and holds up the others."""
    now = time.time_ns()
    records = cycle_job({"rollout": 800.0, "reward": 50.0, "training": 200.0}, 40, random.Random(1))
    del records["reward"][-2:]
    moved = now - max(rows[-1][1] for rows in records.values()) - 20_000 * MS
    for role, rows in records.items():
        (tmp_path / role / "telemetry").mkdir(parents=True)
        (tmp_path / role / "rankscope.json").write_text('{"job": "one"}')
        for row in rows:
            row[1] += moved
        for rank in range(len(RANKS[role])):
            about = {"rank": rank, "role": role, "world_size": len(RANKS[role]), "started_unix_ns": 1}
            writer = RingWriter(ring_path(tmp_path / role, rank), about | {"hang_after_s": 15}, 256)
            writer.write(rows, now, 1, rows[-1][1])
    state, alarms = read_state(tmp_path)
    assert [(role["role"], role["ranks"]) for role in state["roles"]] == [
        ("reward", [0]), ("rollout", [1, 2]), ("training", [3, 4]),
    ]  # fmt: skip
    assert state["bottleneck"].startswith("rollout is the bottleneck")
    assert state["world_size"] == state["alive_ranks"] == 5
    (alarm,) = alarms
    assert alarm.kind == "hang" and alarm.ranks == (0,) and "reward stopped first" in alarm.text
    for role, numbers in (("rollout", (0, 1)), ("reward", (0,))):
        for rank in numbers:
            stacks = f'Thread 0x1 (most recent call first):\n  File "{role}.py", line {rank + 1} in loop\n'
            (tmp_path / role / "telemetry" / f"stacks-rank-{rank:05d}.txt").write_text(stacks)
    assert {rank: dump.main[0].line for rank, dump in read_stacks(tmp_path).items()} == {
        0: "1",
        1: "1",
        2: "2",
    }
    assert has_telemetry(tmp_path)
    assert main(["stats", str(tmp_path), "-r", "hang"]) == 0
    assert "reward.py" in capsys.readouterr().out
    asked = ask_capture(tmp_path)
    assert [
        (each.ranks, each.request.first_step > rows[-1][0])
        for each, rows in zip(
            asked, (records["reward"], records["rollout"], records["training"]), strict=True
        )
    ] == [([0], True), ([1, 2], True), ([3, 4], True)]
    assert all(request_path(tmp_path / role, 1).is_file() for role in RANKS)
    (tmp_path / "reward" / "rankscope.json").write_text('{"job": "another"}')
    assert not has_telemetry(tmp_path)
    with pytest.raises(StoreError, match="several jobs"):
        read_rings(tmp_path)


def test_the_state_of_a_job_has_its_roles(tmp_path: Path) -> None:
    from rankscope.watch.live import lines

    rings(tmp_path, cycle_job({"rollout": 800.0, "reward": 50.0, "training": 200.0}, 40, random.Random(1)))
    state, _ = read_state(tmp_path)
    assert [role["ranks"] for role in state["roles"]] == [[0, 1], [2], [3, 4]]
    text = "\n".join(lines(state))
    assert "rollout is the bottleneck: reward waits 9" in text
    (row,) = (line.split() for line in text.splitlines() if line.startswith("training "))
    assert row[:3] == ["training", "3-4", "reward"]
    for path in (tmp_path / "telemetry").iterdir():
        path.unlink()
    rings(tmp_path, cycle_job({"rollout": 800.0}, 40, random.Random(1)))
    assert read_state(tmp_path)[0]["roles"] == []
