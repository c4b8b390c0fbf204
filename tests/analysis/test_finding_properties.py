"""The six properties of findings (finding_properties.py), over small runs and those of other projects.

Recorded and simulated runs: tests/benchmarks/test_answers.py and test_words.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis import finding_properties
from analysis.finding_properties import statements, violations
from conftest import SHARED, kernel_event, slice_event, write_kineto
from rankscope.analysis.core.result import Fact, Finding
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.summary import summary
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["hta/nccl_data.json.gz", "tracelens/h100_qwen.json.gz"])
def test_runs_of_other_projects(name: str, open_real: Callable[[Path], Run], without_workers: None) -> None:
    if not (SHARED / "public" / name).is_file():
        pytest.skip("needs other projects' traces in ../shared/data/public")
    assert violations(open_real(SHARED / "public" / name)) == []


def small_run(folder: Path, changes: dict[str, Any], ranks: int = 2) -> Run:
    """Two ranks alike: a wait for data, two ops, two kernels, two steps; without what `changes` leaves out."""
    for rank in range(ranks):
        events = []
        for step in range(2):
            at = 2000 * step
            if changes.get("steps", True):
                events.append(slice_event(f"ProfilerStep#{step}", at, 2000, cat="user_annotation"))
            events += [
                slice_event(
                    "enumerate(DataLoader)#Iter.__next__",
                    at,
                    700,
                    cat="user_annotation",
                ),
                slice_event("aten::mm", at + 800, 100),
                slice_event("aten::add", at + 1000, 100),
            ]
            for number, when in enumerate((at + 850, at + 1050)):
                link = 10 * step + number + 1
                if changes.get("gpu", True):
                    events.append(kernel_event("gemm", when + 20, 30, link))
                if changes.get("launches", True):
                    args = {"correlation": link}
                    events.append(slice_event("cudaLaunchKernel", when, 5, cat="cuda_runtime", args=args))
        write_kineto(
            folder / f"rank-{rank}.json", events, distributedInfo={"rank": rank, "world_size": ranks}
        )
    return Run(ingest([folder]))


@pytest.mark.parametrize("missing", ["nothing", "steps", "gpu", "launches"])
def test_small_runs_that_lack_something(missing: str, tmp_path: Path, without_workers: None) -> None:
    run = small_run(tmp_path, {missing: False} | ({"launches": False} if missing == "gpu" else {}))
    assert violations(run) == []
    texts = list(statements(run, summary(run, Scope())))
    if missing == "nothing":
        assert any("waits for a batch: 700 µs, mean of both ranks, per step" in text for text in texts)
    if missing == "gpu":
        assert any("the host waits for a batch: 700 µs, mean" in text for text in texts)
    if missing == "launches":
        assert not any("Host gaps" in text for text in texts)


@pytest.mark.slow(every_variation=True)
@pytest.mark.parametrize(
    ("number", "finding"),
    [
        (1, Finding("info", "It costs", cost_ns=10**12, facts=(Fact("calls", 1),))),
        (1, Finding("limit", "It costs", cost_ns=2, alone_ns=1)),
        (3, Finding("info", "It is there", facts=(Fact("kernel", "none"),))),
        (
            3,
            Finding(
                "info", "It is late", facts=(Fact("total_ns", 1, row={"name": "none"}, report="kernels"),)
            ),
        ),
        (4, Finding("info", "It takes 17.3 ms")),
        (4, Finding("info", "It is large", facts=(Fact("share_pct", 130.0, "percent"),))),
        (5, Finding("info", "It is slow", advice="Use larger DDP buckets.")),
        (6, Finding("info", "Rank 0 is late", ranks=(0, 1))),
        (6, Finding("info", "Rank 0 costs much", report="faults", ranks=(0,))),
    ],
)
def test_each_property_can_fail(
    number: int, finding: Finding, tmp_path: Path, without_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small_run(tmp_path, {})
    shown = replace(summary(run, Scope()), findings=(finding,))
    monkeypatch.setattr(finding_properties, "collect", lambda run, scope: (finding,))
    monkeypatch.setattr(finding_properties, "summary", lambda run, scope: shown)
    assert any(text.startswith(f"{number}. ") for text in violations(run)), violations(run)


def test_opposites_are_found(tmp_path: Path, without_workers: None) -> None:
    run = small_run(tmp_path, {"gpu": False, "launches": False})
    assert len(violations(run, {"without GPU": "waits for a batch"}, ())) == 1
    assert len(violations(run, {}, (("waits for a batch", "A step takes"),))) == 1
