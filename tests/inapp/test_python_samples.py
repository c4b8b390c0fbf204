"""The functions of the training thread are sampled in a window, at no risk to the job."""

from __future__ import annotations

import _thread
import io
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import rankscope
from rankscope.analysis.across_ranks.main_thread import gaps, sampled_line
from rankscope.analysis.core.intervals import Intervals
from rankscope.inapp import python_samples
from rankscope.inapp.added_events import AddedEvents
from rankscope.inapp.python_samples import INTERVAL_NS, PythonSamples, slices_of
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

SECOND = 1_000_000_000
SOURCE = """
def main():
    save()
    train()
def save():
    write()
    close()
"""


def code_of(name: str, path: str = "/job/train.py") -> CodeType:
    functions: dict[str, Any] = {}
    exec(compile(SOURCE, path, "exec"), functions)
    code: CodeType = functions[name].__code__
    return code


def at(code: CodeType, line: int) -> tuple[CodeType, int]:
    return code, next(start for start, _, number in code.co_lines() if number == line)


MAIN, SAVE = code_of("main"), code_of("save")


def written(added: AddedEvents) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(b"[" + added.as_json(b"").rstrip(b",") + b"]")
    return events


def wait_for(samples: PythonSamples, count: int) -> None:
    while len(samples._samples) < count:
        time.sleep(0.01)


def test_samples_become_nested_slices_of_a_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/job", *sys.path])
    ours = at(code_of("save", python_samples.__file__), 6)
    stacks = [
        (at(MAIN, 3),),
        (at(SAVE, 6), at(MAIN, 3)),
        (ours, at(SAVE, 6), at(MAIN, 3)),
        (at(SAVE, 7), at(MAIN, 3)),
        (at(MAIN, 4),),
    ]
    step = INTERVAL_NS
    slices = [*slices_of([((number + 1) * step, step, stack) for number, stack in enumerate(stacks)])]
    half = step // 2
    assert slices == [
        ("train.py(3): main", half, 4 * step + half),
        ("train.py(6): save", step + half, 3 * step + half),
        ("train.py(7): save", 3 * step + half, 4 * step + half),
        ("train.py(4): main", 4 * step + half, 5 * step + half),
    ]


def test_a_late_sample_stands_for_the_time_in_which_c_code_held_the_lock() -> None:
    late = SECOND, INTERVAL_NS, (at(MAIN, 4),)
    slices = [*slices_of([late, (2 * SECOND, INTERVAL_NS, (at(SAVE, 6),))])]
    half = INTERVAL_NS // 2
    assert slices[1][1:] == (SECOND + half, 2 * SECOND + half)
    assert [*slices_of([])] == []


def test_between_distant_samples_nothing_is_said() -> None:
    stack, half = (at(MAIN, 4),), INTERVAL_NS // 2
    times = [number * 4 * INTERVAL_NS for number in (1, 2)]
    slices = [*slices_of([(time_ns, 4 * INTERVAL_NS, stack) for time_ns in times])]
    assert [part[1:] for part in slices] == [(time_ns - half, time_ns + half) for time_ns in times]


def test_the_thread_that_begins_the_window_is_sampled() -> None:
    added = AddedEvents()
    samples = PythonSamples(added)
    wait_for(samples, 3)
    samples.off()
    samples.off()
    *events, first = written(added)
    assert (first["ph"], first["name"], first["args"]["name"]) == (
        "M",
        "thread_name",
        "Python, sampled",
    )
    assert {event["cat"] for event in events} == {"python_sample"}
    assert {event["tid"] for event in events} == {first["tid"]} != {threading.get_native_id()}
    names = [event["name"] for event in events]
    assert any(name.endswith(": wait_for") for name in names)
    assert not any("rankscope/inapp" in name for name in names)


def test_no_thread_stays_behind_and_no_tensor_is_kept() -> None:
    before = _thread._count()
    samples = PythonSamples(AddedEvents())
    wait_for(samples, 1)
    samples.off()
    while _thread._count() > before:
        time.sleep(0.001)
    assert not any(isinstance(part, FrameType) for _, _, stack in samples._samples for part in sum(stack, ()))


def test_the_samples_of_a_long_window_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_samples, "MOST_SAMPLES", 2)
    monkeypatch.setattr(python_samples, "MOST_FRAMES", 3)
    before = _thread._count()
    samples = PythonSamples(AddedEvents())
    wait_for(samples, 2)
    while _thread._count() > before:
        time.sleep(0.001)
    assert [len(stack) for _, _, stack in samples._samples] == [3, 3]


def test_samples_that_take_too_much_cpu_time_become_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_samples, "LARGEST_SHARE", 0.0)
    monkeypatch.setattr(python_samples, "_MEASURED_SAMPLES", 1)
    samples = PythonSamples(AddedEvents())
    wait_for(samples, 2)
    samples.off()
    assert samples._interval_ns >= 4 * INTERVAL_NS


def test_a_python_that_refuses_costs_nothing_but_the_samples(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> dict[int, FrameType]:
        raise RuntimeError("an audit hook of the job")

    before = _thread._count()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "_current_frames", refuse)
        samples = PythonSamples(added := AddedEvents())
        while _thread._count() > before:
            time.sleep(0.001)
    samples.off()
    assert not any(event["ph"] == "X" for event in written(added)) and capfd.readouterr() == ("", "")


def test_no_samples_without_the_gil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    before = _thread._count()
    samples = PythonSamples(added := AddedEvents())
    samples.off()
    assert _thread._count() == before and written(added) == []


BALLAST = [{"number": number, "text": str(number)} for number in range(40_000)]


def save_checkpoint() -> None:
    torch: Any = pytest.importorskip("torch")
    torch.save(BALLAST, io.BytesIO())


def prepare_texts() -> None:
    end = time.perf_counter() + 0.1
    words: dict[str, int] = {}
    while time.perf_counter() < end:
        for number in range(100):
            words[str(number)] = words.get(str(number), 0) + 1


def write_log() -> None:
    time.sleep(0.1)


@pytest.mark.slow
def test_each_pause_of_a_recorded_loop_has_its_line(tmp_path: Path, train: Callable[[], None]) -> None:
    before = _thread._count()
    schedule = rankscope.schedule(wait=1, warmup=1, active=4)
    pauses = {2: save_checkpoint, 3: prepare_texts, 4: write_log}
    with rankscope.profile(tmp_path, schedule=schedule, name="t") as prof:
        for step in range(7):
            train()
            pauses.get(step, lambda: None)()
            prof.step()
    while _thread._count() > before:
        time.sleep(0.001)
    run = Run(ingest([tmp_path]))
    spans = run.rows("SELECT step, start_ns, start_ns + dur_ns FROM steps")
    lines = {step: sampled_line(run, 0, gaps_of(run, [(start, end)])) for step, start, end in spans}
    for step, pause in pauses.items():
        assert lines[step].endswith(f"): {pause.__name__}"), lines
    assert not lines[5].endswith(tuple(pause.__name__ for pause in pauses.values()))


@pytest.mark.slow
def test_there_are_no_samples_where_torch_records_stacks(tmp_path: Path, train: Callable[[], None]) -> None:
    schedule = rankscope.schedule(wait=0, warmup=1, active=1)
    with rankscope.profile(tmp_path, schedule=schedule, name="t", with_stack=True) as prof:
        for _ in range(3):
            train()
            time.sleep(3 * INTERVAL_NS / SECOND)
            prof.step()
    trace = json.loads((tmp_path / "t-0-of-1.json").read_text())["traceEvents"]
    assert {"python_sample"}.isdisjoint(event.get("cat") for event in trace)


def gaps_of(run: Run, spans: list[tuple[int, int]]) -> Intervals:
    times = gaps(run, 0, spans)
    return Intervals(times.start, times.end)


FORKS = """
import os, sys, threading, time
from rankscope.inapp.added_events import AddedEvents
from rankscope.inapp.python_samples import PythonSamples
samples = PythonSamples(AddedEvents())
while not samples._samples:
    time.sleep(0.01)
child = os.fork()
if child == 0:
    count = len(samples._samples)
    time.sleep(0.05)
    samples.off()
    os._exit(len(samples._samples) - count)
sys.exit(os.waitpid(child, 0)[1])
"""


def test_a_forked_child_is_not_sampled() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS], capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
