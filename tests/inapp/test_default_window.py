"""The default window: six steps where they cost little, and never less than the three that are promised."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankscope.capture.plan import Plan
from rankscope.capture.rank import Identity
from rankscope.capture.rank_files import RankFiles
from rankscope.capture.schedule import MOST_ACTIVE, Schedule
from rankscope.inapp.engine import Engine
from rankscope.inapp.job_log import JobLog

Found = list[tuple[str, int, int]]


def recorded(
    folder: Path,
    train: Callable[[], None],
    steps: int,
    at: dict[int, Callable[[Engine], object]] | None = None,
    *,
    up_to: int = MOST_ACTIVE,
) -> Found:
    """The windows of a script of so many steps, which does something else before some of them."""
    plan = Plan(when=Schedule(), active_up_to=up_to, output=str(folder))
    engine = Engine(plan, RankFiles(plan, Identity(0, 0, 1, 1, 0, "a test"), {}), JobLog(0))
    engine.watch_optimizers()
    for step in range(steps):
        if at is not None and step in at:
            at[step](engine)
        train()
    engine.finish()
    engine.release()
    manifest: dict[str, Any] = json.loads((folder / "rank-00000.rankscope.json").read_text())
    assert [note for note in manifest["notes"] if "torch.profiler" not in note] == []
    return [(one["state"], one["first_step"], one["last_step"]) for one in manifest["windows"]]


@pytest.mark.parametrize(
    ("steps", "found"),
    [(4, ("partial", 2, 3)), *((steps, ("whole", 2, min(steps - 1, 7))) for steps in range(5, 10))],
)
def test_a_script_that_ends_in_the_further_steps_has_a_whole_window(
    tmp_path: Path,
    train: Callable[[], None],
    capsys: pytest.CaptureFixture[str],
    steps: int,
    found: tuple[str, int, int],
) -> None:
    assert recorded(tmp_path, train, steps) == [found]
    said = capsys.readouterr().err
    assert "steps 2-7 will be recorded: " in said
    assert "; as that is little, 6 steps instead of 3 (--active sets how many)" in said


@pytest.mark.slow
def test_what_would_pause_training_for_long_has_three_steps(
    tmp_path: Path,
    train: Callable[[], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert recorded(tmp_path / "a", train, 9, up_to=0) == [("whole", 2, 4)]
    monkeypatch.setattr("rankscope.inapp.pause_warning.LITTLE_PAUSE_S", 0.001)
    assert recorded(tmp_path / "b", train, 9) == [("whole", 2, 4)]
    said = capsys.readouterr().err
    assert said.count("steps 2-4 will be recorded: ") == 2 and "little" not in said


@pytest.mark.parametrize(("step", "last"), [(3, 4), (4, 4), (6, 5)])
def test_steps_that_take_longer_than_expected_end_it(
    tmp_path: Path, train: Callable[[], None], step: int, last: int
) -> None:
    assert recorded(tmp_path, train, 9, {step: lambda engine: engine._end_longer()}) == [("whole", 2, last)]


def test_the_scripts_own_profiler_ends_it(tmp_path: Path, train: Callable[[], None]) -> None:
    import torch

    def profile(_: Engine) -> None:
        with torch.profiler.profile():
            pass

    assert recorded(tmp_path, train, 9, {6: profile}) == [("whole", 2, 5)]


def test_where_another_thread_trains_it_is_as_planned(tmp_path: Path, train: Callable[[], None]) -> None:
    """What would end it early runs on the main thread."""
    found: Found = []
    thread = threading.Thread(target=lambda: found.extend(recorded(tmp_path, train, 9)))
    thread.start()
    thread.join()
    assert found == [("whole", 2, 4)]
