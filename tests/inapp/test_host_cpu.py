"""CPU time, run delay, threads and garbage collection of each step are in the trace, and nothing stays behind."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rankscope
from rankscope.inapp import host_cpu
from rankscope.inapp.added_events import AddedEvents
from rankscope.inapp.host_cpu import HostCpu


def spin(nanoseconds: int) -> None:
    end = time.thread_time_ns() + nanoseconds
    while time.thread_time_ns() < end:
        pass


def recorded_events(added: AddedEvents) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(b"[" + added.as_json(b"").rstrip(b",") + b"]")
    return events


def test_the_cpu_time_of_each_step() -> None:
    host = HostCpu(AddedEvents(), 4)
    bounds = []
    for step in (7, 8):
        before = time.thread_time_ns()
        host.step(step)
        inside = time.thread_time_ns()
        spin(3_000_000 * (step - 6))
        bounds.append((time.thread_time_ns() - inside, before, inside))
    fields = host.fields()
    end = time.thread_time_ns()
    steps = fields["steps"]
    assert (steps["step"], fields["ranks_on_host"]) == ([7, 8], 4)
    at_most = (bounds[1][2] - bounds[0][1], end - bounds[1][1])
    for cpu_ns, (least, _, _), most in zip(steps["cpu_ns"], bounds, at_most, strict=True):
        assert least <= cpu_ns <= most
    assert fields["window_ns"] == sum(steps["wall_ns"])


def test_the_run_delay_of_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    delays = iter([5, 12, 40])
    host = HostCpu(AddedEvents(), None)
    monkeypatch.setattr(host_cpu, "_schedstat", lambda _thread: (1, next(delays, None)))
    host.step(1)
    host.step(2)
    assert host.fields()["steps"]["run_delay_ns"] == [7, 28]


def test_another_thread_is_named_with_its_cpu_time() -> None:
    host = HostCpu(AddedEvents(), None)
    begin, done, leave = threading.Event(), threading.Event(), threading.Event()
    used = []

    def work() -> None:
        begin.wait()
        before = time.thread_time_ns()
        spin(20_000_000)
        used.append(time.thread_time_ns() - before)
        done.set()
        leave.wait()

    thread = threading.Thread(target=work, name="tokenizer")
    thread.start()
    host.step(1)
    begin.set()
    done.wait()
    host.step(2)
    fields = host.fields()
    leave.set()
    thread.join()
    first, second = fields["threads"]["tokenizer"]
    assert used[0] <= first and second < used[0]
    assert fields["steps"]["process_ns"][0] >= first


@pytest.mark.slow
def test_a_long_garbage_collection_is_an_event_of_its_step() -> None:
    added = AddedEvents()
    host = HostCpu(added, None)
    host.step(1)
    gc.collect(0)
    objects = [[number] for number in range(200_000)]
    for each in objects:
        each.append(each)  # type: ignore[arg-type]
    del objects, each
    host.step(2)
    before = time.time_ns()
    collected = gc.collect()
    after = time.time_ns()
    host.step(3)
    fields = host.fields()
    event = next(event for event in recorded_events(added) if event["args"]["collected"] == collected)
    assert event["name"] == "garbage collection (generation 2)" and collected >= 200_000
    start, end = event["ts"] * 1000, (event["ts"] + event["dur"]) * 1000
    assert before - 1000 <= start < end <= after + 1000
    assert event["tid"] == threading.get_native_id()
    assert fields["steps"]["gc_ns"][1] >= event["dur"] * 1000 - 1000
    assert host._collecting not in gc.callbacks


def test_what_the_system_does_not_say_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host_cpu, "_schedstat", lambda _thread: (None, None))
    monkeypatch.setattr(host_cpu, "PROC", tmp_path)
    host = HostCpu(AddedEvents(), None)
    host.step(1)
    fields = host.fields()
    assert (fields["steps"]["run_delay_ns"], fields["busy_ns"], fields["native_threads"]) == (
        [None],
        None,
        [],
    )


def test_a_failure_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_thread: int) -> int:
        raise OSError

    callbacks = [*gc.callbacks]
    host = HostCpu(AddedEvents(), None)
    monkeypatch.setattr(host_cpu, "_thread_time_ns", fail)
    host.step(1)
    assert host.fields() == {} and gc.callbacks == callbacks


def test_a_long_window_keeps_its_first_steps() -> None:
    host = HostCpu(AddedEvents(), None)
    for step in range(host_cpu.MOST_STEPS + 50):
        host.step(step)
    fields = host.fields()
    assert fields["steps"]["step"] == [*range(host_cpu.MOST_STEPS)]
    assert {len(column) for column in fields["steps"].values()} == {host_cpu.MOST_STEPS}
    assert len(json.dumps(fields)) < 45_000


@pytest.mark.slow
def test_a_real_trace_has_them_in_header_and_events(tmp_path: Path, train: Callable[[], None]) -> None:
    callbacks = [*gc.callbacks]
    garbage = [[number] for number in range(100_000)]
    with rankscope.profile(
        tmp_path, schedule=rankscope.schedule(wait=1, warmup=1, active=2), name="t"
    ) as prof:
        for step in range(6):
            train()
            if step == 3:
                gc.collect()
            prof.step()
    assert len(garbage) == 100_000 and gc.callbacks == callbacks
    trace = json.loads((tmp_path / "t-0-of-1.json").read_text())
    assert trace["rankscope"]["rank"] == 0
    steps = trace["rankscope"]["host_cpu"]["steps"]
    assert steps["step"] == [2, 3] and steps["gc_ns"][1] > host_cpu.SHORT_GC_NS
    (begin, end) = next(
        (event["ts"], event["ts"] + event["dur"])
        for event in trace["traceEvents"]
        if event["name"] == "ProfilerStep#3"
    )
    pauses = [event for event in trace["traceEvents"] if event["name"] == "garbage collection (generation 2)"]
    assert len(pauses) == 1 and begin < pauses[0]["ts"] < pauses[0]["ts"] + pauses[0]["dur"] < end
    assert pauses[0]["cat"] == "user_annotation"
