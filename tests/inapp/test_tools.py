"""Timers, memory, the CUDA range and the flags."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rankscope
from rankscope.capture.schedule import Schedule
from rankscope.errors import RankscopeError
from rankscope.inapp.memory import memory_overview

torch: Any = pytest.importorskip("torch")


def test_timers_measure_and_report() -> None:
    timers = rankscope.Timers("cpu")
    for _ in range(2):
        with timers("forward"):
            time.sleep(0.01)
    timers("step").start()
    timers("step").stop()
    said: list[str] = []
    timers.log(per=2, say=said.append)
    assert [line.split(":")[0] for line in said] == ["forward", "step"]
    assert "2 calls" in said[0]
    [forward, _] = timers._last
    assert 20e6 <= forward.mean < 60e9
    assert [one.calls for one in timers.collect()] == [0, 0], "a report starts the next one"


def test_timers_write_to_tensorboard_and_wandb() -> None:
    class Board:
        seen: list[tuple[str, int]]

        def __init__(self) -> None:
            self.seen = []

        def add_scalar(self, tag: str, value: float, step: int) -> None:
            assert value >= 0
            self.seen.append((tag, step))

    class Wandb:
        def log(self, values: dict[str, float], step: int) -> None:
            self.values, self.step = values, step

    timers = rankscope.Timers("cpu")
    with timers("a"):
        pass
    timers.collect()
    board, wandb = Board(), Wandb()
    timers.write(board, 7)
    timers.write(wandb, 8)
    assert board.seen == [("timers/a-mean", 7), ("timers/a-min", 7), ("timers/a-max", 7)]
    assert (sorted(wandb.values), wandb.step) == (["timers/a-max", "timers/a-mean", "timers/a-min"], 8)
    with pytest.raises(RankscopeError, match="cannot be written to a str"):
        timers.write("file", 1)


def test_timers_without_a_writer_or_a_log_before() -> None:
    written: list[dict[str, float]] = []

    class Wandb:
        def log(self, values: dict[str, float], step: int) -> None:
            written.append(values)

    timers = rankscope.Timers("cpu")
    timers.write(None, 0)  # as on the ranks without a writer
    for step in range(2):
        with timers("a"):
            time.sleep(0.001)
        timers.write(Wandb(), step)
        timers.write(None, step)
    assert [sorted(values) for values in written] == [["timers/a-max", "timers/a-mean", "timers/a-min"]] * 2
    assert all(value >= 0.001 for values in written for value in values.values())
    assert written[0] != written[1], "the figures since the last ones"


def test_timers_that_are_misused_say_so() -> None:
    timers = rankscope.Timers("cpu")
    with pytest.raises(RankscopeError, match="does not run"):
        timers("a").stop()
    timers("a").start()
    with pytest.raises(RankscopeError, match="runs already"):
        timers("a").start()


def test_timers_on_a_gpu_wait_for_nothing_until_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing
            self.synchronized = False
            made.append(self)

        def record(self) -> None: ...

        def synchronize(self) -> None:
            self.synchronized = True

        def elapsed_time(self, _end: Any) -> float:
            return 1.5

    monkeypatch.setattr(torch.cuda, "Event", Event)
    timers = rankscope.Timers("cuda")
    for _ in range(2):
        with timers("a"):
            pass
    assert not any(event.synchronized for event in made)
    assert timers.collect()[0].by_rank == (3_000_000,)
    with timers("a"):
        pass
    assert len(made) == 4, "events are used again"


def test_memory_on_the_host() -> None:
    [host] = rankscope.memory_now()
    assert host.device == "host"
    assert host.allocated is not None
    assert 0 < host.allocated <= host.peak_allocated * 1.1
    assert rankscope.memory_line().startswith("host ")
    assert "Peak allocated" in memory_overview()


def test_memory_history_without_a_gpu_says_so_and_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with (
        rankscope.memory_history(tmp_path) as history,
        pytest.raises(RankscopeError, match="no memory history to write"),
    ):
        history.snapshot()
    assert "CUDA devices only" in capsys.readouterr().err


def test_memory_history_writes_snapshots_on_demand_and_when_memory_runs_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recording: list[dict[str, Any]] = []
    observers: list[Callable[..., None]] = []
    memory = torch.cuda.memory
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(memory, "_record_memory_history", lambda **options: recording.append(options))
    monkeypatch.setattr(memory, "_dump_snapshot", lambda path: Path(path).write_bytes(b"snapshot"))
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", observers.append, raising=False)
    with rankscope.memory_history(tmp_path / "prof", max_entries=10) as history:
        path = history.snapshot()
        observers[0](0, 2**30, 0, 0)
    observers[0](0, 2**30, 0, 0)  # torch keeps observers for ever: afterwards ours does nothing
    assert path.name == "memory-0-of-1-0.pickle"
    names = sorted(one.name for one in (tmp_path / "prof").iterdir())
    assert names == ["memory-0-of-1-0.pickle", "memory-0-of-1-oom.pickle"]
    assert recording == [{"max_entries": 10}, {"enabled": None}]
    assert capsys.readouterr().err.count("out of memory on cuda:0, 1.07 GB wanted") == 1


def test_cuda_profiler_range(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[str] = []

    class Runtime:
        def cudaProfilerStart(self) -> None:  # noqa: N802
            calls.append("start")

        def cudaProfilerStop(self) -> None:  # noqa: N802
            calls.append("stop")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with rankscope.cuda_profiler_range():
        calls.append("chunk")
    assert "marks nothing" in capsys.readouterr().err
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("wait"))
    monkeypatch.setattr(torch.cuda, "cudart", Runtime)
    with pytest.raises(ValueError), rankscope.cuda_profiler_range():
        raise ValueError
    assert calls == ["chunk", "wait", "start", "wait", "stop"]


def parse(*words: str) -> argparse.Namespace:
    return rankscope.add_profile_arguments(argparse.ArgumentParser()).parse_args(words)


def test_without_flags_nothing_is_profiled() -> None:
    assert not rankscope.profiler_from_args(parse()).enabled


def run_with(words: list[str], train: Callable[[], None]) -> None:
    with rankscope.profiler_from_args(parse(*words), name="t") as prof:
        for _ in range(6):
            train()
            prof.step()


def test_a4s_style_flags(
    tmp_path: Path, train: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    run_with(["--profiling", "--prof_dir", str(tmp_path), "--debug"], train)
    assert (tmp_path / "t-0-of-1.json").exists()
    assert (tmp_path / "profiler_list.dat").exists()
    said = capfd.readouterr()
    moments = ["before forward", "after forward", "before backward", "after backward", "at its end"]
    assert re.findall(r"step 5 ([a-z ]+): host [\d.]+ [MG]B", said.err) == moments, said.err
    assert (tmp_path / "profiler_list.dat").read_text() in said.out
    run_with(["--profiling", "--ptensorboard", "--prof_table", "--prof_dir", str(tmp_path / "tb")], train)
    said = capfd.readouterr()
    assert (tmp_path / "tb" / "profiler_list.dat").read_text() in said.out
    assert "before forward" not in said.err
    assert list((tmp_path / "tb").glob("*.pt.trace.json.gz"))


@pytest.mark.slow
def test_megatron_style_flags(tmp_path: Path, train: Callable[[], None]) -> None:
    cycle = (
        "--torch-profile-wait 0 --torch-profile-warmup 1 --torch-profile-active 1 --torch-profile-repeat 2"
    )
    switches = [f"--torch-profile-{name}" for name in ("with-flops", "profile-memory", "with-stack")]
    words = ["--torch-profile", "--torch-profile-ranks", "0", "1", *cycle.split(), *switches]
    words += ["--torch-profile-with-modules", "--torch-profile-skip-first", "1"]
    run_with([*words, "--tensorboard-dir", str(tmp_path / "tb"), "--prof_dir", str(tmp_path)], train)
    assert len(list((tmp_path / "tb").glob("*.pt.trace.json.gz"))) == 2
    plan = rankscope.profiler_from_args(parse(*words))._plan
    assert plan.ranks == "0,1"
    assert plan.when == Schedule(1, 0, 1, 1, 2)
    assert (plan.with_flops, plan.profile_memory, plan.with_stack, plan.with_modules) == (True,) * 4


def test_keywords_of_profile_win_over_the_flags(tmp_path: Path) -> None:
    seen: list[rankscope.Recorded] = []
    prof = rankscope.profiler_from_args(
        parse("--profiling", "--prof_dir", "theirs"),
        folder=tmp_path,
        handlers=[seen.append],
        schedule=rankscope.schedule(wait=0, warmup=1, active=1),
        region=None,
        activities=["cpu"],
        with_stack=True,
    )
    plan = prof._plan
    assert (plan.output, plan.when, plan.with_stack) == (str(tmp_path), Schedule(0, 0, 1, 1, 1), True)
    assert (plan.activities, prof._handlers, prof._region) == (("cpu",), [seen.append], None)
    with pytest.raises(TypeError, match="colour"):
        rankscope.profiler_from_args(parse(), colour="red")


def test_ranks_that_do_not_exist_are_reported(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with rankscope.profiler_from_args(parse("--torch-profile", "--torch-profile-ranks", "7")) as prof:
        prof.step()
    line = "rankscope: rank 0: ranks 7 select none of the 2 ranks: nothing is recorded\n"
    assert capfd.readouterr().err == line


def test_a_flag_that_the_script_has_already_is_left_to_it() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tensorboard-dir", default="theirs")
    parser.add_argument("--prof-dir", default="mine")
    args = rankscope.add_profile_arguments(parser).parse_args(["--torch-profile"])
    prof = rankscope.profiler_from_args(args)
    assert (args.tensorboard_dir, prof._plan.output) == ("theirs", "mine")
