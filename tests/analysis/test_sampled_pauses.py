"""The line of a pause, where the capture sampled the training thread's functions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankscope.analysis.core.result import Finding
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.faults.words import findings_of
from rankscope.store.ingest import Options
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

EVERY_US = 10_000
TRAIN = ("train.py(88): main", "torch/_tensor.py(623): backward")
Sampled = Callable[..., list[Finding]]


def paused_times(events: list[dict[str, Any]], thread: int) -> list[tuple[float, float]]:
    """The times of at least 10 ms in which a thread runs no op, and those in which it loads data."""
    times = [
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("tid") == thread and event.get("cat") in ("cpu_op", "user_annotation")
        if not event["name"].startswith("ProfilerStep#")
    ]
    gaps = [
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("tid") == thread and event["name"].startswith("enumerate(DataLoader)")
    ]
    end = min(times)[0]
    for start, stop in sorted(times):
        if start - end >= EVERY_US:
            gaps.append((end, start))
        end = max(end, stop)
    return gaps


def with_samples(events: list[dict[str, Any]], paused: tuple[str, ...]) -> list[dict[str, Any]]:
    """As the capture adds them: the frames of TRAIN, and these where the training thread runs no op."""
    first = next(event for event in events if event.get("name", "").startswith("ProfilerStep#"))
    gaps = paused_times(events, first["tid"])
    timed = [event for event in events if "dur" in event]
    start, end = min(event["ts"] for event in timed), max(event["ts"] + event["dur"] for event in timed)
    added = []
    for number in range(int((end - start) // EVERY_US)):
        time = start + (number + 0.5) * EVERY_US
        stack = paused if any(begin < time < stop for begin, stop in gaps) else TRAIN
        added += [
            {"ph": "X", "cat": "python_sample", "name": name, "pid": first["pid"], "tid": 4_000_000}
            | {"ts": time - EVERY_US / 2, "dur": EVERY_US}
            for name in stack
        ]
    return [*events, *added]


@pytest.fixture
def sampled(dataset: Callable[[str], Path], tmp_path: Path) -> Sampled:
    """The findings of a recorded job whose ranks were sampled."""

    def findings(name: str, *paused: str) -> list[Finding]:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        for file in dataset(f"ordinary/{name}").glob("*.json"):
            trace = json.loads(file.read_text())
            trace["traceEvents"] = with_samples(trace["traceEvents"], paused)
            (folder / file.name).write_text(json.dumps(trace))
        run = Run(ingest([folder], Options()))
        return [*findings_of(run, Scope().in_run(run))]

    return findings


def line_of(finding: Finding) -> object:
    return next((fact.value for fact in finding.facts if fact.quantity == "line"), None)


SAVE = ("train.py(90): main", "train.py(41): save_checkpoint", "torch/serialization.py(1003): save")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "paused", "text"),
    [
        ("checkpoint", SAVE, r"Rank 0 costs .*its host pauses 44\.\d ms in step 4 in {line}, busy on a CPU"),
        ("save-everywhere", SAVE, r"Step 4 takes .*each rank's host pauses \d\d\.\d ms in {line}"),
        ("slow-log", (TRAIN[0], SAVE[1]), r"Rank 0 .*its host pauses 3\d\.\d ms per step in {line}, asleep"),
        (
            "preprocessing",
            (TRAIN[0], SAVE[1]),
            r"Rank 3 .*its host pauses 1\d\.\d ms per step in {line}, busy",
        ),
    ],
)
def test_the_line_is_said(sampled: Sampled, name: str, paused: tuple[str, ...], text: str) -> None:
    finding = sampled(name, *paused)[0]
    line = "train.py(41): save_checkpoint"
    assert re.match(text.replace("{line}", re.escape(line)), finding.title), finding.title
    assert line_of(finding) == line and finding.advice == f"Look at {line}." and not finding.command
    assert line in finding.names


def test_data_that_is_read_in_the_loop_has_its_line(sampled: Sampled) -> None:
    frames = TRAIN[0], "torch/utils/data/dataloader.py(733): __next__", "data.py(12): __getitem__"
    finding = sampled("slow-data", *frames)[0]
    assert finding.advice.startswith("Look at data.py(12): __getitem__. Use more workers"), finding.advice


def test_a_healthy_job_has_no_pause(sampled: Sampled) -> None:
    assert not sampled("healthy-ddp", *SAVE)
