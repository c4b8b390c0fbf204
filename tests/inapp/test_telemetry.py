"""The figures of a step, from the hooks to the ring."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rankscope.capture.capture_request import CaptureRequest, make_request, read_request, request_path
from rankscope.capture.plan import Plan
from rankscope.capture.rank import Identity
from rankscope.capture.rank_files import RankFiles
from rankscope.capture.schedule import OnRequest
from rankscope.capture.telemetry_ring import (
    FIELDS,
    HEADER_BYTES,
    NONE,
    PHASES,
    RECORD,
    RingWriter,
    read_header,
    ring_path,
)
from rankscope.inapp.engine import Engine
from rankscope.inapp.job_log import JobLog
from rankscope.inapp.step_figures import StepClock, StepFigures
from rankscope.inapp.telemetry import Telemetry, ring_record
from rankscope.inapp.watch_cost import PERIODS, WatchCost

torch: Any = pytest.importorskip("torch")

MS = 1_000_000


def step(**changes: Any) -> StepFigures:
    """A step from 1,000 to 1,100 ms."""
    plain = StepFigures(
        number=7,
        began=1000 * MS,
        ended=1100 * MS,
        wait_ns=0,
        first_wait=0,
        data_ns=5 * MS,
        optimizer_ns=10 * MS,
        forward_ns=30 * MS,
        cpu_ns=80 * MS,
        run_delay_ns=2 * MS,
        gc_ns=0,
        hook_ns=NONE,
        memory_bytes=1,
        marks=(None,) * 4,
        profiled=False,
    )
    return plain._replace(**changes)


def record(figures: StepFigures, device_ns: int = NONE) -> dict[str, int]:
    return dict(zip(FIELDS[1:], ring_record(figures, device_ns=device_ns, end_unix_ns=1), strict=True))


@pytest.mark.parametrize(
    ("figures", "own_ms", "wait_ms", "first_ms"),
    [
        (step(), 100, 0, None),  # alone
        (step(wait_ns=7 * MS, first_wait=1040 * MS), 93, 7, 40),
        # more than the step: waits of several threads
        (step(wait_ns=700 * MS, first_wait=1000 * MS), 0, 100, 0),
    ],
)
def test_own_work_is_what_is_not_spent_waiting(
    figures: StepFigures, own_ms: int, wait_ms: int, first_ms: int | None
) -> None:
    values = record(figures)
    assert values["own_ns"] == own_ms * MS
    assert values["wait_ns"] == wait_ms * MS
    assert values["first_ns"] == (NONE if first_ms is None else first_ms * MS)


def test_the_gpus_own_work_is_that_of_its_events() -> None:
    assert record(step(), device_ns=42 * MS)["own_ns"] == 42 * MS


# -- the hooks


@pytest.fixture
def clock() -> Iterator[StepClock]:
    made = StepClock()
    yield made
    made.off()


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Python 3.10 keeps the traceback apart from the exception"
)
def test_the_jobs_traceback_is_as_without_the_hooks(clock: StepClock) -> None:
    """Of an exception that passes backward, the data loader and a wait."""

    class Samples(torch.utils.data.Dataset[int]):  # type: ignore[misc]
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> int:
            raise KeyError(index)

    value = torch.ones(1, requires_grad=True)
    value.register_hook(lambda _: 1 / 0)
    passes: list[Callable[[], object]] = [
        lambda: (2 * value).backward(),
        lambda: next(iter(torch.utils.data.DataLoader(Samples()))),
        lambda: torch._C._distributed_c10d.Work.wait(None),
    ]
    for action in passes:
        with pytest.raises((ZeroDivisionError, KeyError, TypeError)) as caught:
            action()
        files = [str(entry.path) for entry in caught.traceback]
        assert not [file for file in files if "rankscope/inapp" in file], files
    assert PHASES[clock.phase[0]] == "training"


def test_a_job_that_closes_all_descriptors_keeps_its_own(tmp_path: Path) -> None:
    clock = StepClock()
    number = clock._schedstat
    with (tmp_path / "its own").open("wb") as file:
        os.dup2(file.fileno(), number)  # as after os.closerange
    clock.off()
    os.write(number, b"x")
    os.close(number)


def test_what_the_hooks_see(clock: StepClock, train: Callable[[], None]) -> None:
    loader = torch.utils.data.DataLoader(torch.zeros(4), batch_size=1)
    for _ in loader:
        train()
        torch._C._distributed_c10d.Work.wait(torch._C._distributed_c10d.FakeWork())
        gc.collect(0)
    clock.step_ended(3, profiled=True)
    train()
    clock.step_ended(4, profiled=False)
    first, second = clock.done
    assert (first.number, first.profiled) == (3, True)
    assert min(first.data_ns, first.optimizer_ns, first.forward_ns, first.gc_ns, first.cpu_ns) > 0
    assert first.run_delay_ns >= 0
    assert first.began < first.first_wait < first.ended
    assert first.memory_bytes > 0
    assert first.ended == second.began
    assert (second.data_ns, second.wait_ns, second.gc_ns) == (0, 0, 0)
    assert PHASES[clock.phase[0]] == "training"


def test_other_threads_are_not_the_training(clock: StepClock, train: Callable[[], None]) -> None:
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    clock.step_ended(0, profiled=False)
    [found] = clock.done
    assert (found.optimizer_ns, found.forward_ns) == (0, NONE)


@pytest.mark.parametrize("in_python", [False, True])
def test_backward_waits_from_its_last_gradient_on(monkeypatch: pytest.MonkeyPatch, in_python: bool) -> None:
    """DistributedDataParallel waits in a callback at the end of backward, which its last bucket has queued. Waits of
    Python code are counted where they are."""
    monkeypatch.setattr("rankscope.inapp.step_figures.joined_distributed", lambda: torch.distributed)
    clock = StepClock()
    work = torch._C._distributed_c10d
    callbacks = torch.autograd.Variable._execution_engine

    def wait_for_buckets() -> None:
        if in_python:
            work.Work.wait(work.FakeWork())
        time.sleep(0.02)

    try:
        weight = torch.ones(4, requires_grad=True)
        weight.register_hook(lambda _: callbacks.queue_callback(wait_for_buckets))
        (weight * 2).sum().backward()
        clock.step_ended(0, profiled=False)
    finally:
        clock.off()
    [step] = clock.done
    assert step.began < step.first_wait < step.ended
    assert (step.wait_ns >= 20 * MS) != in_python
    assert step.wait_ns <= step.ended - step.began


def test_a_graph_that_is_kept_collects_no_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.inapp.step_figures.joined_distributed", lambda: torch.distributed)
    calls: list[object] = []
    monkeypatch.setattr(StepClock, "_queue_note", lambda _clock, gradients: calls.append(gradients))
    clock = StepClock()
    try:
        loss = torch.ones(4, requires_grad=True).sum()
        for _ in range(3):
            loss.backward(retain_graph=True)
    finally:
        clock.off()
    assert len(calls) == 3


def test_torch_is_left_as_it_was() -> None:
    work = torch._C._distributed_c10d
    before = (torch.autograd.backward, vars(work.Work)["wait"], len(gc.callbacks))
    made = StepClock()
    assert torch.autograd.backward is not before[0]
    made.off()
    assert (torch.autograd.backward, vars(work.Work)["wait"], len(gc.callbacks)) == before
    assert work.Work.wait(work.FakeWork())


class FakeEvent:
    """A CUDA event: recorded ever 2 ms later, ready when the GPU has come to it."""

    now_ms = 0.0
    ready = True
    stream = 7

    def __init__(self, enable_timing: bool) -> None:
        self.at_ms = 0.0

    def record(self, stream: str) -> None:
        assert stream == f"stream {FakeEvent.stream}"
        FakeEvent.now_ms += 2
        self.at_ms = FakeEvent.now_ms

    def query(self) -> bool:
        return FakeEvent.ready

    def elapsed_time(self, end: FakeEvent) -> float:
        return end.at_ms - self.at_ms


@pytest.fixture
def telemetry(tmp_path: Path) -> Iterator[Telemetry]:
    made = watched(tmp_path)
    yield made
    made.clock.off()


def watched(tmp_path: Path, requested: Callable[[CaptureRequest], None] = print, **more: Any) -> Telemetry:
    plan = Plan(when=OnRequest(), output=str(tmp_path / "run"), watch=True)
    files = RankFiles(plan, Identity(3, 1, 4, 2, 1, "a test"), {})
    files.claim()
    made = Telemetry(files, JobLog(3), more.get("hang_after_s", 600.0), requested)
    made.make_ring()
    return made


def written(tmp_path: Path) -> list[dict[str, int]]:
    data = ring_path(tmp_path / "run", 3).read_bytes()
    ring = read_header(data)
    assert ring is not None
    places = range(HEADER_BYTES, HEADER_BYTES + ring.header.records * RECORD.size, RECORD.size)
    return [dict(zip(FIELDS, RECORD.unpack_from(data, place), strict=True)) for place in places]


def test_events_of_the_gpu_are_read_later(
    tmp_path: Path, telemetry: Telemetry, train: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, fake in {
        "is_initialized": lambda: True,
        "is_current_stream_capturing": lambda: False,
        "memory_allocated": lambda: 12_345,
        "Event": FakeEvent,
        "current_stream": lambda: f"stream {FakeEvent.stream}",
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: FakeEvent.stream, raising=False)
    telemetry.clock._may_use_cuda = True
    telemetry.clock.step_ended(0, profiled=False)
    FakeEvent.ready = False
    for number in (1, 2):
        FakeEvent.stream += 1  # an object of the stream is kept, but not that of another one
        train()
        telemetry.clock.step_ended(number, profiled=False)
    telemetry.look()
    assert [one["step"] for one in written(tmp_path)] == [0]
    FakeEvent.ready = True
    telemetry.look()
    zero, one, two = written(tmp_path)
    assert zero["device_ns"] == NONE
    assert one["device_ns"] == two["device_ns"] == one["own_ns"] == 4 * MS
    assert two["memory_bytes"] == 12_345
    assert len(telemetry.clock.free_marks) == 8


# -- the thread's work


def test_a_rank_that_has_ended_says_why_whenever_it_is_read(
    tmp_path: Path, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = []

    def seen_after(method: Callable[..., None]) -> Callable[..., None]:
        def called(ring: RingWriter, *words: Any) -> None:
            method(ring, *words)
            read = read_header(ring.path.read_bytes())
            if read is not None and PHASES[read.header.phase] == "ended":
                reasons.append(read.about.get("off"))

        return called

    for name in ("write", "describe"):
        monkeypatch.setattr(RingWriter, name, seen_after(getattr(RingWriter, name)))
    monkeypatch.setattr(telemetry.cost, "excess", lambda: "it costs 9 % of the step time")
    assert telemetry._run(False) is False
    assert {*reasons} == {"it costs 9 % of the step time"}


def test_the_ring_describes_the_rank_and_its_phase(tmp_path: Path, telemetry: Telemetry) -> None:
    telemetry.clock.step_ended(0, profiled=False)
    telemetry.look()
    ring = read_header(ring_path(tmp_path / "run", 3).read_bytes())
    assert ring is not None
    assert ring.about["rank"] == 3
    assert (ring.about["local_rank"], ring.about["node"], ring.about["role"]) == (1, 1, "default")
    assert ring_path(tmp_path / "run", 3).stat().st_mode & 0o777 == 0o600
    assert PHASES[ring.header.phase] == "training"
    assert ring.header.phase_since_unix_ns <= ring.header.alive_unix_ns


def test_requests_are_read_once_and_only_by_those_they_select(tmp_path: Path) -> None:
    asked: list[CaptureRequest] = []
    telemetry = watched(tmp_path, asked.append)
    run = tmp_path / "run"
    mine = CaptureRequest(20, ranks="2-3", reason="slow")
    assert [make_request(run, one) for one in (CaptureRequest(10, ranks="0"), mine)] == [1, 2]
    telemetry.look()
    telemetry.look()
    assert asked == [mine]
    telemetry.clock.off()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"first_step": -1}', '{"first_step": 3, "steps": 0}'])
def test_what_is_no_request(tmp_path: Path, text: str) -> None:
    path = request_path(tmp_path, 1)
    path.parent.mkdir()
    path.write_text(text)
    assert read_request(tmp_path, 1) is None


def test_the_stacks_of_a_hang_are_written_once_and_again_much_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    telemetry = watched(tmp_path, hang_after_s=5.0)
    stacks = tmp_path / "run/telemetry/stacks-rank-00003.txt"
    for seconds, step_ends, dumps in [(9, False, 0), (1, True, 0), (4, False, 0), (1, False, 1), (40, False, 1),
                                      (5, False, 2), (1, True, 2), (5, False, 3)]:  # fmt: skip
        now[0] += seconds
        if step_ends:
            telemetry.clock.step_ended(0, profiled=False)
        telemetry.look()
        found = stacks.read_text().count("# ") if stacks.exists() else 0
        assert found == dumps, (seconds, now)
    assert "test_telemetry.py" in stacks.read_text()
    assert "no step for 5 s" in capsys.readouterr().err
    telemetry.clock.off()


def test_a_write_that_fails_ends_it_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    telemetry = watched(tmp_path)
    (tmp_path / "run/telemetry/rank-00003.ring").unlink()
    (tmp_path / "run/telemetry").rmdir()
    (tmp_path / "run/telemetry").write_text("in the way")
    telemetry.begin()
    telemetry.end()
    [line] = capsys.readouterr().err.splitlines()
    assert "telemetry is off, the job goes on: " in line


# -- what it costs


def test_hooks_measure_themselves_in_some_steps(clock: StepClock, train: Callable[[], None]) -> None:
    for number in range(16):
        train()
        clock.step_ended(number, profiled=False)
    measured = [one for one in clock.done if one.hook_ns != NONE]
    assert [one.number for one in measured] == [5, 13]
    assert all(0 < one.hook_ns < one.ended - one.began for one in measured)


def costly_steps(
    cost: WatchCost, seconds: float, hook_us: int, first: int = 5, profiled: bool = False
) -> None:
    """Steps of 100 ms."""
    for number in range(first, first + int(seconds * 10)):
        hook_ns = hook_us * 1000 if number % 8 == 5 else NONE
        cost.add_step(step(number=number, hook_ns=hook_ns, profiled=profiled))


@pytest.mark.parametrize(
    ("hook_us", "thread_us", "over"),
    [(490, 0, False), (510, 0, True), (300, 490, False), (0, 510, True)],
)
def test_the_budget_is_of_the_hooks_and_of_the_thread(hook_us: int, thread_us: int, over: bool) -> None:
    cost = WatchCost(0.5)
    for period in range(PERIODS):
        assert cost.excess() is None, period
        costly_steps(cost, 10.4, hook_us)
        cost.add_thread_ns(thread_us * 1000 * 104)
        excess = cost.excess()
    assert (excess is not None) == over
    if over:
        assert f"it costs {max(hook_us, thread_us) / 1000:.2g} % of the step time" in str(excess)
        assert "its budget is 0.5 %" in str(excess)


def test_only_an_excess_that_lasts_counts() -> None:
    """The first steps, those under a profiler, and two periods of three may cost anything."""
    cost = WatchCost(0.5)
    costly_steps(cost, 0.5, 50_000, first=0)
    costly_steps(cost, 60, 50_000, profiled=True)
    assert (str(cost), cost.excess()) == ("", None)
    for hook_us in (9_000, 9_000, 10, 9_000, 9_000):
        costly_steps(cost, 10.4, hook_us)
        assert cost.excess() is None
    costly_steps(cost, 9, 9_000)
    assert cost.excess() is None  # the period is not over
    costly_steps(cost, 1.6, 9_000)
    assert cost.excess() is not None


def test_the_line_at_the_end() -> None:
    cost = WatchCost(0.5)
    costly_steps(cost, 16, 20)
    cost.add_thread_ns(16 * MS)
    assert str(cost) == (
        "the telemetry cost 0.02 % of the step time: 20.0 µs of 100 ms in its hooks, by 20 steps; its thread used "
        "0.1 % of a core"
    )


def test_above_its_budget_the_telemetry_ends_and_the_job_goes_on(
    tmp_path: Path,
    train: Callable[[], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.optim.optimizer import _global_optimizer_post_hooks as hooks

    before = len(hooks)
    monkeypatch.setattr("rankscope.inapp.telemetry.start_waiting_thread", lambda *_: None)
    made = engine(tmp_path, JobLog(0))
    telemetry = made._telemetry
    assert telemetry is not None
    train()
    train()
    monkeypatch.setattr(telemetry.cost, "excess", lambda: "it costs 9 % of the step time")
    telemetry.end = lambda: telemetry.clock.off()  # type: ignore[method-assign]
    assert telemetry._run(False) is False  # what its thread does once a second
    assert made._telemetry is telemetry
    train()  # the training thread removes the hooks when it has stepped
    assert vars(made)["_telemetry"] is None
    assert len(hooks) == before
    train()
    made.finish()
    ring = read_header(ring_path(tmp_path / "run", 0).read_bytes())
    assert ring is not None
    assert (PHASES[ring.header.phase], ring.about["off"]) == ("ended", "it costs 9 % of the step time")
    assert ring.about["cost"] is None  # too few steps
    line = "telemetry is off from step 3 on, the job goes on: it costs 9 % of the step time"
    assert capsys.readouterr().err == f"rankscope: rank 0: {line}\n"
    assert json.loads((tmp_path / "run/rank-00000.rankscope.json").read_text())["notes"] == [line]


# -- requested windows


def engine(tmp_path: Path, log: JobLog | None = None) -> Engine:
    plan = Plan(when=OnRequest(), output=str(tmp_path / "run"), watch=True)
    files = RankFiles(plan, Identity(0, 0, 1, 1, 0, "a test"), {})
    made = Engine(plan, files, log or JobLog(0, quiet=True))
    made.watch_optimizers()
    return made


@pytest.mark.slow
def test_requested_windows_are_cycles_of_one_run(tmp_path: Path, train: Callable[[], None]) -> None:
    made = engine(tmp_path)
    requests = {0: CaptureRequest(3, 2), 2: CaptureRequest(8, 1, 0), 6: CaptureRequest(5, 1)}
    for number in range(12):
        if number in requests:
            made._requests.append(requests[number])
        train()
        made._windows.wait_for_exports(60)
    made.finish()
    made.release()
    manifest = json.loads((tmp_path / "run/rank-00000.rankscope.json").read_text())
    found = [(one["index"], one["first_step"], one["last_step"]) for one in manifest["windows"]]
    assert found == [(0, 3, 4), (1, 8, 8)]
    [note] = manifest["notes"]
    assert note.startswith("the requested steps 5-5 were not recorded: the rank was in step ")


def test_a_request_beyond_the_end(tmp_path: Path, train: Callable[[], None]) -> None:
    made = engine(tmp_path)
    train()
    made._requests.append(CaptureRequest(9, 2))
    train()
    made.finish()
    manifest = json.loads((tmp_path / "run/rank-00000.rankscope.json").read_text())
    assert manifest["notes"] == ["the requested steps 9-10 were not recorded: the job ended after 2 steps"]
    assert manifest["windows"] == []
