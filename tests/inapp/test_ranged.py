"""Steps under nsys and ncu: the range opens and closes at the steps that were asked for. CUDA is a recording fake.

Steps of unchanged scripts under the real nsys: tests/integration/test_steps_under_nsys.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rankscope.capture.plan import Plan
from rankscope.capture.rank import Identity
from rankscope.capture.schedule import EveryStep, Schedule, When, steps_window
from rankscope.inapp import cuda_range
from rankscope.inapp.cuda_range import CudaRangeFiles, CudaRangeRecorder, export_nothing
from rankscope.inapp.engine import Engine
from rankscope.inapp.job_log import JobLog
from rankscope.inapp.nvtx_ranges import Nvtx

RANK = Identity(3, 1, 4, 2, 1, "torchrun")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of CUDA."""
    made: list[str] = []

    class RecordingRuntime:
        def cudaProfilerStart(self) -> None:  # noqa: N802
            made.append("start")

        def cudaProfilerStop(self) -> None:  # noqa: N802
            made.append("stop")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: made.append("wait"))
    monkeypatch.setattr(torch.cuda, "cudart", RecordingRuntime)
    nvtx = Nvtx(
        made.append, lambda: made.append("pop"), _started(made), lambda name: made.append(f"end {name}")
    )
    monkeypatch.setattr(cuda_range, "find_nvtx", lambda: nvtx)
    return made


def _started(made: list[str]) -> Callable[[str], str]:
    def start(name: str) -> str:
        made.append(name)
        return name

    return start


def engine_for(tmp_path: Path, when: When, *, opens_range: bool = True) -> Engine:
    plan = Plan(
        when=when, tool="nsys", output=str(tmp_path / "run"), job="j", windows=str(tmp_path), speaks=False
    )
    files = CudaRangeFiles(plan, RANK, {})
    return Engine(
        plan, files, JobLog(3, reports=False), [export_nothing], CudaRangeRecorder(opens_range=opens_range)
    )


def note(tmp_path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((tmp_path / "rank-00003.json").read_text())
    return value


def run_steps(engine: Engine, calls: list[str], count: int) -> None:
    engine.begin()
    for number in range(count):
        calls.append(f"work {number}")
        engine.mark_step()
    engine.finish()
    engine.release()


def test_the_range_holds_exactly_these_steps(tmp_path: Path, calls: list[str]) -> None:
    run_steps(engine_for(tmp_path, steps_window("2:3")), calls, 6)
    assert calls == [
        *("work 0", "work 1", "wait", "start"),
        *("ProfilerStep#2", "work 2", "end ProfilerStep#2", "ProfilerStep#3", "work 3", "end ProfilerStep#3"),
        *("wait", "stop", "work 4", "work 5"),
    ]
    [window] = note(tmp_path)["windows"]
    assert (window["first_step"], window["last_step"], window["state"]) == (2, 3, "whole")
    assert note(tmp_path)["steps"] == 6
    assert not (tmp_path / "run").exists(), "the run folder is the wrapper's"


def test_without_a_driver_the_steps_asked_for_are_only_marked(tmp_path: Path, calls: list[str]) -> None:
    run_steps(engine_for(tmp_path, steps_window("1:1"), opens_range=False), calls, 3)
    assert calls == ["work 0", "ProfilerStep#1", "work 1", "end ProfilerStep#1", "work 2"]


def test_without_a_schedule_every_step_is_marked_and_the_last_as_unfinished(
    tmp_path: Path, calls: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    run_steps(engine_for(tmp_path, EveryStep(), opens_range=False), calls, 2)
    assert calls == [
        *("ProfilerStep#0", "work 0", "end ProfilerStep#0", "ProfilerStep#1", "work 1", "end ProfilerStep#1"),
        *("ProfilerStep#2", "unfinished step 2", "end unfinished step 2", "end ProfilerStep#2"),
    ]
    [window] = note(tmp_path)["windows"]
    assert (window["first_step"], window["last_step"], window["state"]) == (0, 1, "whole")
    assert capfd.readouterr().err == ""


def test_a_run_without_a_step_has_none(tmp_path: Path, calls: list[str]) -> None:
    run_steps(engine_for(tmp_path, EveryStep(), opens_range=False), calls, 0)
    assert note(tmp_path)["windows"] == []
    assert "no step was marked: no optimizer stepped" in note(tmp_path)["notes"][0]


def test_a_range_for_each_cycle(tmp_path: Path, calls: list[str]) -> None:
    run_steps(engine_for(tmp_path, Schedule(0, 1, 0, 1, 2)), calls, 6)
    assert (calls.count("start"), calls.count("stop")) == (2, 2)
    assert [window["first_step"] for window in note(tmp_path)["windows"]] == [1, 3]


def test_a_script_that_ends_too_early_says_so(
    tmp_path: Path, calls: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    run_steps(engine_for(tmp_path, steps_window("20:21")), calls, 3)
    assert "start" not in calls
    assert "the script ended after 3 steps, recording begins with step 20" in capfd.readouterr().err
    assert note(tmp_path)["windows"] == []


def test_without_cuda_the_job_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    run_steps(engine_for(tmp_path, steps_window("1:1")), [], 3)
    assert "torch finds no CUDA device" in capfd.readouterr().err
