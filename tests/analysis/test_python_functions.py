"""Python functions by name, against a walk over the calls."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from conftest import slice_event, write_kineto
from rankscope.analysis import REPORTS
from rankscope.analysis.core.scope import Scope
from rankscope.timeline.run import open_run


def test_self_and_total_time_are_those_of_a_walk(tmp_path: Path) -> None:
    """Nested calls of two threads; some functions call themselves, and some objects are at other addresses."""
    events, calls, self_times, total = [], Counter[str](), Counter[str](), Counter[str]()
    chance = random.Random(5)

    def call(thread: int, start: int, dur: int, outer: tuple[str, ...]) -> None:
        name = chance.choice(["a.py(1): f", "a.py(9): g", "<built-in method run of X object"])
        address = f" at 0x{chance.randrange(9):x}>" if name.startswith("<") else ""
        shown = f"{name}>" if address else name
        events.append(slice_event(f"{name}{address}", start, dur, cat="python_function", tid=thread))
        calls[shown] += 1
        self_times[shown] += dur
        total[shown] += dur if shown not in outer else 0
        at = start + 1
        while dur > 8 and (inner := chance.randrange(2, dur // 2)) < start + dur - at:
            self_times[shown] -= inner
            call(thread, at, inner, (*outer, shown))
            at += inner + 1

    for thread in (1, 2):
        call(thread, 10 * thread, 400, ())
    write_kineto(tmp_path / "rank-0.json", events)
    run = open_run([tmp_path / "rank-0.json"], cache=tmp_path / "cache")
    rows = REPORTS["ops.python"].analyse(run, Scope(), None).rows
    assert {row["name"]: (row["calls"], row["self_host_ns"], row["total_host_ns"]) for row in rows} == {
        name: (count, 1000 * self_times[name], 1000 * total[name]) for name, count in calls.items()
    }
    assert sum(calls.values()) > 20 and any(self_times[name] != total[name] for name in calls)
    assert [row["self_host_ns"] for row in rows] == sorted(
        (1000 * self_times[name] for name in calls), reverse=True
    )


def test_without_stacks_it_says_how_to_record_them(tmp_path: Path) -> None:
    write_kineto(tmp_path / "rank-0.json", [slice_event("aten::mm", 0, 5)])
    run = open_run([tmp_path / "rank-0.json"], cache=tmp_path / "cache")
    result = REPORTS["ops.python"].analyse(run, Scope(), None)
    assert not result.rows and result.unanswered and "--with-stack" in result.notes[-1]
