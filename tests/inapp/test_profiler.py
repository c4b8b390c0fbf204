"""rankscope.profile in a loop: files, steps, regions, summaries, and that it never stands in the way."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rankscope
from rankscope.errors import UsageError
from rankscope.inapp.train_step_region import TrainStepRegion
from rankscope.store.discover import find_sources

torch: Any = pytest.importorskip("torch")

Train = Callable[[], None]
ONE_CYCLE = rankscope.schedule(wait=1, warmup=1, active=2)


def loop(prof: rankscope.profile, train: Train, steps: int = 6) -> None:
    with prof:
        for _ in range(steps):
            train()
            prof.step()


def events(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    found: list[dict[str, Any]] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)[
        "traceEvents"
    ]
    return found


def ranges(path: Path, name: str) -> list[tuple[float, float]]:
    return sorted(
        (event["ts"], event["ts"] + event["dur"])
        for event in events(path)
        if event.get("name", "").startswith(name) and event.get("cat") == "user_annotation"
    )


def test_a_chrome_trace_of_the_scheduled_steps(tmp_path: Path, train: Train) -> None:
    loop(rankscope.profile(tmp_path, schedule=ONE_CYCLE, name="mine"), train)
    trace = tmp_path / "mine-0-of-1.json"
    names = {event["name"] for event in events(trace) if event.get("cat") == "user_annotation"}
    assert {name for name in names if name.startswith("ProfilerStep")} == {"ProfilerStep#2", "ProfilerStep#3"}
    manifest = json.loads((tmp_path / "rank-00000.rankscope.json").read_text())
    assert [window["state"] for window in manifest["windows"]] == ["whole"]
    assert manifest["windows"][0]["file"] == trace.name


def test_the_region_is_around_forward_and_backward(tmp_path: Path, train: Train) -> None:
    loop(rankscope.profile(tmp_path, schedule=ONE_CYCLE, name="t", region="my_step"), train)
    trace = tmp_path / "t-0-of-1.json"
    regions = ranges(trace, "my_step")
    steps = ranges(trace, "ProfilerStep#")
    assert len(regions) == len(steps) == 2
    inside = [event for event in events(trace) if event.get("cat") == "cpu_op"]
    for (begin, end), (step_begin, step_end) in zip(regions, steps, strict=True):
        assert step_begin <= begin < end <= step_end
        forward = [e for e in inside if e["name"] == "aten::linear" and begin <= e["ts"] <= end]
        assert len(forward) == 2
        optimizer = [e for e in events(trace) if e.get("name", "").startswith("Optimizer.step")]
        assert not any(begin <= one["ts"] <= end for one in optimizer)
    backward = [e for e in inside if "Backward0" in e["name"]]
    assert backward
    assert all(any(b <= e["ts"] <= end for b, end in regions) for e in backward)


def test_no_region_when_none_is_wanted_and_torch_is_left_as_it_was(tmp_path: Path, train: Train) -> None:
    backward, prepare = torch.autograd.backward, torch.autograd.profiler.profile._prepare_trace
    loop(rankscope.profile(tmp_path, schedule=ONE_CYCLE, name="t", region=None), train)
    assert not ranges(tmp_path / "t-0-of-1.json", "train_step")
    loop(rankscope.profile(tmp_path, schedule=ONE_CYCLE, name="t"), train)
    assert len(ranges(tmp_path / "t-0-of-1.json", "train_step")) == 2
    assert torch.autograd.backward is backward
    assert torch.autograd.profiler.profile._prepare_trace is prepare


def test_micro_batches_get_a_region_each_and_evaluation_none(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 1)
    with rankscope.profile(tmp_path, schedule=ONE_CYCLE, name="t") as prof:
        for _ in range(5):
            with torch.no_grad():
                model(torch.ones(2, 4))
            for _ in range(2):
                model(torch.ones(2, 4)).sum().backward()
            prof.step()
    assert len(ranges(tmp_path / "t-0-of-1.json", "train_step")) == 4


def test_debug_prints_the_memory_around_each_forward_and_backward(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    backward = torch.autograd.backward
    model, loss = torch.nn.Linear(4, 1), torch.nn.L1Loss()
    with rankscope.profile(tmp_path, schedule=ONE_CYCLE, name="t", debug=True) as prof:
        for _ in range(4):
            for _ in range(2):  # micro-batches; the model and the loss are one forward
                loss(model(torch.ones(2, 4)), torch.ones(2, 1)).backward()
            with torch.no_grad():
                model(torch.ones(2, 4))
            prof.step()
        model(torch.ones(2, 4))  # a forward without backward
    said = re.findall(r"step (\d) (before|after) (forward|backward): host ", capfd.readouterr().err)
    batch = [("before", "forward"), ("after", "forward"), ("before", "backward"), ("after", "backward")]
    expected = [(str(step), *moment) for step in range(4) for moment in 2 * batch]
    assert said == [*expected, ("4", *batch[0]), ("4", *batch[1])]
    assert torch.autograd.backward is backward
    assert not model._forward_hooks and not loss._forward_hooks
    assert len(ranges(tmp_path / "t-0-of-1.json", "train_step")) == 4  # the region is not disturbed


def test_the_summary_is_torchs_own_table_of_the_same_profile(tmp_path: Path, train: Train) -> None:
    seen: list[rankscope.Recorded] = []
    loop(rankscope.profile(tmp_path, schedule=ONE_CYCLE, handlers=[seen.append, rankscope.Summary()]), train)
    averages = seen[0].profile.key_averages()
    text = (tmp_path / "profiler_list.dat").read_text()
    table = averages.table(sort_by="self_cpu_time_total", row_limit=-1, max_name_column_width=80)
    assert table.strip("\n") in text
    for one in averages:
        lines = [line for line in text.splitlines() if line.split() and line.strip().startswith(one.key[:70])]
        assert any(line.split()[-1] == str(one.count) for line in lines), one.key
    assert "steps 2-3" in text.splitlines()[0]
    assert "Memory at the end" in text
    assert "host" in text


@pytest.mark.slow
def test_nothing_of_ours_is_in_a_trace_with_stacks_or_its_table(
    tmp_path: Path, train: Train, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = rankscope.profile(tmp_path, schedule=ONE_CYCLE, with_stack=True, name="t")
    ours = ["rankscope/inapp"] + ["threading.py"] * (
        threading.active_count() == 1
    )  # earlier tests may leave threads
    with engine:
        rankscope.watch(tmp_path)  # a second thread of ours
        for _ in range(6):
            train()
            engine.step()
    names = [
        event["name"] for event in events(tmp_path / "t-0-of-1.json") if event.get("cat") == "python_function"
    ]
    assert any(name.endswith(": train") or ": step" in name for name in names)
    table = (tmp_path / "profiler_list.dat").read_text()
    assert not [text for text in (*names, table) if any(word in text for word in ours)]
    assert table.count("\n") < 150
    assert not capfd.readouterr().out


def test_a_line_before_a_window_and_when_its_trace_is_on_disk(
    tmp_path: Path, train: Train, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rank 0, or of the first rank that is recorded."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    with rankscope.profile(tmp_path, schedule=ONE_CYCLE, name="t", ranks=[1, 2]) as prof:
        for step in range(8):
            train()
            deadline = time.monotonic() + 20
            while step == 6 and not prof._engine._windows._exports[0][1].poll():  # type: ignore[union-attr]
                assert time.monotonic() < deadline
                time.sleep(0.01)
            prof.step()
        said = capfd.readouterr().err
    assert re.search(
        rf"rank 1: steps 2-3 will be recorded: (?s:.*)"
        rf"rank 1: the trace of steps 2-3 is on disk: {tmp_path}/t-1-of-3.json \([\d.]+ kB\); "
        r"training was paused for [\d.]+ m?s\n",
        said,
    )


def test_a_scripts_own_patch_is_not_undone(
    tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rankscope.capture.plan import Plan
    from rankscope.capture.rank import Identity
    from rankscope.capture.rank_files import RankFiles
    from rankscope.capture.schedule import Schedule
    from rankscope.inapp.engine import Engine
    from rankscope.inapp.job_log import JobLog

    optimizer_class, before = torch.optim.Optimizer, torch.optim.Optimizer.__init__
    plan = Plan(when=Schedule(0, 0, 0, 2, 1), output=str(tmp_path / "run"))
    engine = Engine(plan, RankFiles(plan, Identity(0, 0, 1, 1, 0, "a test"), {}), JobLog(0, quiet=True))
    engine.watch_optimizers()
    calls: list[str] = []
    ours = optimizer_class.__init__
    assert ours is not before

    def patched(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        calls.append("theirs")
        ours(optimizer, *args, **kwargs)

    monkeypatch.setattr(optimizer_class, "__init__", patched)
    for _ in range(2):
        torch.optim.SGD([torch.ones(1, requires_grad=True)])
    assert calls == ["theirs", "theirs"]
    assert optimizer_class.__init__ is patched
    engine.finish(process_ends=False)
    engine.release()
    assert len(engine.files.manifest["windows"]) == 1

    backward = torch.autograd.backward
    region = TrainStepRegion()
    region.begin()
    wrapped = torch.autograd.backward
    monkeypatch.setattr(torch.autograd, "backward", lambda *args, **kwargs: wrapped(*args, **kwargs))
    theirs = torch.autograd.backward
    region.end()
    assert torch.autograd.backward is theirs
    train()
    assert region._forward_hook is None and region._range is None
    monkeypatch.setattr(torch.autograd, "backward", backward)
    optimizer_class.__init__ = before


@pytest.mark.slow
def test_each_cycle_has_a_file_and_several_handlers_work(tmp_path: Path, train: Train) -> None:
    schedule = rankscope.schedule(wait=0, warmup=1, active=1, repeat=2)
    handlers: list[Callable[[rankscope.Recorded], object]] = [
        rankscope.ChromeTrace("a"),
        rankscope.TensorBoard(tmp_path / "tb"),
    ]
    loop(rankscope.profile(tmp_path, schedule=schedule, handlers=handlers), train, 5)
    assert sorted(path.name for path in tmp_path.glob("a-*")) == ["a-0-of-1.cycle-1.json", "a-0-of-1.json"]
    boards = sorted((tmp_path / "tb").iterdir())
    assert len(boards) == 2
    assert all(path.name.endswith(".pt.trace.json.gz") for path in boards)
    assert ranges(boards[1], "ProfilerStep#3")
    windows = json.loads((tmp_path / "rank-00000.rankscope.json").read_text())["windows"]
    assert [(one["index"], one["state"]) for one in windows] == [
        (0, "whole"),
        (0, "whole"),
        (1, "whole"),
        (1, "whole"),
    ]


def test_a_handler_that_fails_is_said_and_stops_nobody(
    tmp_path: Path, train: Train, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(_recorded: rankscope.Recorded) -> None:
        raise ValueError("no")

    loop(
        rankscope.profile(tmp_path, schedule=ONE_CYCLE, handlers=[broken, rankscope.ChromeTrace("a")]), train
    )
    assert (tmp_path / "a-0-of-1.json").exists()
    assert "the handler broken failed, the job goes on: ValueError: no" in capfd.readouterr().err


def test_without_a_schedule_everything_is_recorded_and_whole(tmp_path: Path, train: Train) -> None:
    loop(rankscope.profile(tmp_path, schedule=None, name="t"), train, 3)
    assert len(ranges(tmp_path / "t-0-of-1.json", "train_step")) == 3
    manifest = json.loads((tmp_path / "rank-00000.rankscope.json").read_text())
    assert manifest["windows"][0]["state"] == "whole"


def test_torchs_own_schedule_function_and_on_trace_ready(tmp_path: Path, train: Train) -> None:
    steps: list[int] = []
    write = torch.profiler.tensorboard_trace_handler(str(tmp_path / "tb"), use_gzip=True)

    def ready(prof: Any) -> None:
        steps.append(prof.step_num)
        assert "aten::addmm" in {one.key for one in prof.key_averages()}
        write(prof)
        assert events(max((tmp_path / "tb").iterdir()))  # complete when torch's function returns

    schedule = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2)
    loop(rankscope.profile(tmp_path, schedule=schedule, on_trace_ready=ready), train, 10)
    assert steps == [4, 8]
    numbers = [
        [event["name"] for event in events(path) if event["name"].startswith("ProfilerStep#")]
        for path in sorted((tmp_path / "tb").iterdir())
    ]
    assert [sorted(set(names)) for names in numbers] == [
        ["ProfilerStep#2", "ProfilerStep#3"],
        ["ProfilerStep#6", "ProfilerStep#7"],
    ]
    assert not list(tmp_path.glob("*.json.gz"))
    assert (tmp_path / "profiler_list.dat").exists()
    windows = json.loads((tmp_path / "rank-00000.rankscope.json").read_text())["windows"]
    assert [one["relative"] for one in windows] == [
        f"tb/{path.name}" for path in sorted((tmp_path / "tb").iterdir())
    ]
    found = find_sources([tmp_path])  # `rankscope stats` follows the manifest
    assert [found.ranks[path] for path in found.files] == [0, 0]


def test_a_schedule_function_that_torch_calls_incorrect(
    tmp_path: Path, train: Train, capfd: pytest.CaptureFixture[str]
) -> None:
    """A warm-up that leads to nothing is dropped; recorded steps without RECORD_AND_SAVE are kept."""
    action = torch.profiler.ProfilerAction
    plan = [action.WARMUP, action.NONE, action.RECORD, action.RECORD, action.NONE, action.NONE]
    loop(rankscope.profile(tmp_path, schedule=plan.__getitem__, name="t"), train, 5)
    assert len(ranges(tmp_path / "t-0-of-1.json", "ProfilerStep#")) == 2
    loop(rankscope.profile(tmp_path, schedule=lambda _step: "all", name="t"), train)
    err = capfd.readouterr().err
    assert "capture is off, the job goes on: the schedule returned 'all' for step 0" in err
    loop(rankscope.profile(tmp_path, schedule=lambda _step: action.NONE, name="t"), train)
    assert "the schedule function recorded none of the 6 steps" in capfd.readouterr().err


def test_on_trace_ready_that_fails_or_cannot_write(
    tmp_path: Path, train: Train, capfd: pytest.CaptureFixture[str]
) -> None:
    def ready(prof: Any) -> None:
        prof.export_chrome_trace(str(tmp_path / "missing" / "t.json"))

    loop(rankscope.profile(tmp_path, schedule=ONE_CYCLE, on_trace_ready=ready), train)
    err = capfd.readouterr().err
    assert "ready failed, the job goes on: OSError" in err
    assert "missing/t.json was not written" in err


def test_an_exception_leaves_a_partial_trace_and_goes_on(tmp_path: Path, train: Train) -> None:
    with pytest.raises(ZeroDivisionError), rankscope.profile(tmp_path, schedule=None, name="t") as prof:
        train()
        prof.step()
        raise ZeroDivisionError
    [window] = json.loads((tmp_path / "rank-00000.rankscope.json").read_text())["windows"]
    assert window["state"] == "partial"
    assert "ZeroDivisionError" in window["why"]


def test_switched_off_it_does_nothing(tmp_path: Path, train: Train) -> None:
    prof = rankscope.profile(tmp_path / "prof", enabled=False)
    loop(prof, train)
    loop(rankscope.profile(tmp_path / "prof", ranks=[3]), train)
    assert prof.step_number == 0
    assert not prof.recording
    assert not (tmp_path / "prof").exists()


def test_a_second_run_replaces_the_first(tmp_path: Path, train: Train) -> None:
    for name in ("first", "second"):
        loop(rankscope.profile(tmp_path, schedule=ONE_CYCLE, name=name), train)
    windows = json.loads((tmp_path / "rank-00000.rankscope.json").read_text())["windows"]
    assert [one["file"] for one in windows] == ["second-0-of-1.json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": "every"}, "every"),
        ({"handlers": None, "schedule": 3}, "is not a schedule"),
        ({"on_trace_ready": "tb"}, "cannot be called"),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rankscope.profile(**arguments)
    with pytest.raises(UsageError, match="not a file name template"):
        rankscope.ChromeTrace(template="{nobody}.json")
    with pytest.raises(UsageError, match="cannot be scheduled"):
        rankscope.schedule(wait=1, warmup=1, active=0)


def test_importing_rankscope_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('numpy', 'duckdb', 'isal', 'rich')));"
        "import rankscope; early = 'rankscope.inapp' in sys.modules;"
        "rankscope.profile; rankscope.Timers; rankscope.trace;"
        "print(early, 'torch' in sys.modules, sorted(set(dir(rankscope)) & {'profile', 'schedule'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "['profile',", "'schedule']"]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        rankscope.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_every_public_name_is_there() -> None:
    assert all(getattr(rankscope, name) is not None for name in rankscope.__all__)


@settings(deadline=None)
@given(
    wait=st.integers(0, 4),
    warmup=st.integers(0, 4),
    active=st.integers(1, 4),
    repeat=st.integers(0, 3),
    skip_first=st.integers(0, 4),
)
def test_a_schedule_is_torchs_for_every_combination(**cycle: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about warmup=0
        theirs = torch.profiler.schedule(**cycle)
    ours = rankscope.schedule(**cycle)
    assert [ours.action(step) for step in range(50)] == [theirs(step).value for step in range(50)]


@pytest.mark.slow(every_variation=True)
@pytest.mark.parametrize("wait", [0, 1, 3])
def test_a_window_waits_for_a_profiler_of_the_script(
    tmp_path: Path, train: Train, capfd: pytest.CaptureFixture[str], wait: int
) -> None:
    """With a wait, both begin with the loop; without one, the script's begins in our warm-up."""
    cycle = torch.profiler.schedule(wait=wait, warmup=1, active=2, repeat=1) if wait else None
    own = torch.profiler.profile(schedule=cycle)
    with rankscope.profile(tmp_path, schedule=ONE_CYCLE, name="mine") as prof:
        for step in range(12):
            if step == (not wait):
                own.start()
            train()
            prof.step()
            own.step()
            if step == wait + 4:
                own.stop()
    assert any(event.key == "aten::addmm" for event in own.key_averages())
    [window] = json.loads((tmp_path / "rank-00000.rankscope.json").read_text())["windows"]
    assert window["state"] == "whole" and window["first_step"] > wait + 3
    said = capfd.readouterr().err
    assert said.count("the window waits until it has ended") == 1 and "disableProfiler" not in said


@pytest.mark.parametrize("first", [0, 3])
def test_stacks_leave_the_scripts_own_profile_function_alone(
    tmp_path: Path, train: Train, capfd: pytest.CaptureFixture[str], first: int
) -> None:
    """One that is there goes before our stacks; one that comes while they are recorded stays."""
    calls: list[int] = []

    def count(frame: Any, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code is train.__code__:
            calls.append(1)

    before = sys.getprofile()
    try:
        with rankscope.profile(tmp_path, schedule=ONE_CYCLE, name="mine", with_stack=True) as prof:
            for step in range(6):
                if step == first:
                    sys.setprofile(count)
                train()
                prof.step()
    finally:
        sys.setprofile(before)
    assert len(calls) == 6 - first
    recorded = any(event.get("cat") == "python_function" for event in events(tmp_path / "mine-0-of-1.json"))
    assert recorded == (first > 0)
    assert ("no stacks are recorded" in capfd.readouterr().err) == (first == 0)
