"""diff: the headline names what changed the step time, and what else differs between the runs is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import DATA, kernel_event, open_trace, slice_event, write_kineto
from rankscope.analysis.core.result import Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.diff.compare import Rules, compare
from rankscope.analysis.diff.samples import STEP, Measure, Samples
from rankscope.analysis.diff.two_runs import COLUMNS, by_unit, diff, findings, shown_rows
from rankscope.timeline.run import Run

NOISE = (0.0, 0.1, 0.2, 0.1, 0.0, 0.2)


def samples(**values: float) -> Samples:
    """Six steps; names are REPORT__KEY, values are in ms."""
    measures = {
        STEP if name == "step" else Measure(*name.split("__", 1)): [(value + noise) * 1e6 for noise in NOISE]
        for name, value in values.items()
    }
    return Samples(list(range(6)), 2, measures)


def headline(base: dict[str, float], new: dict[str, float]) -> tuple[str, str]:
    first, *_ = findings(compare(samples(**base), samples(**new), Rules()))
    return first.title, first.hint


BASE = {"step": 50, "breakdown__compute": 30, "breakdown__exposed_comm": 10, "breakdown__idle": 10}


@pytest.mark.parametrize(
    ("base", "new", "title"),
    [
        pytest.param(
            {**BASE, "ops__aten::mm [[8,8]]": 20, "ops__aten::add": 5},
            {**BASE, "step": 65, "breakdown__compute": 45, "ops__aten::mm [[8,8]]": 34, "ops__aten::add": 6},
            "A step is 29.9 % slower: compute takes 15.0 ms more, most in ops: mm [[8,8]] (20.1 ms -> 34.1 ms)",
            id="an op",
        ),
        pytest.param(
            {**BASE, "collectives__all_reduce 8 B": 10},
            {**BASE, "step": 70, "breakdown__exposed_comm": 30, "collectives__all_reduce 8 B": 30},
            "A step is 39.9 % slower: exposed communication takes 20.0 ms more, most in collectives: all_reduce 8 B "
            "(10.1 ms -> 30.1 ms)",
            id="a collective",
        ),
        pytest.param(
            {**BASE, "host__aten::item": 1},
            {**BASE, "step": 70, "breakdown__idle": 30, "host__aten::item": 1.5},
            "A step is 39.9 % slower: idle GPU time takes 20.0 ms more",
            id="no row explains it",
        ),
        pytest.param(
            {**BASE, "ops__aten::mm": 20},
            {**BASE, "step": 40, "breakdown__compute": 20, "ops__aten::mm": 10},
            "A step takes 20.0 % less time: compute takes 10.0 ms less, most in ops: mm (20.1 ms -> 10.1 ms)",
            id="faster",
        ),
        pytest.param(BASE, {**BASE, "step": 70}, "A step is 39.9 % slower", id="nothing else changed"),
    ],
)
def test_the_headline_names_the_part_that_changed(
    base: dict[str, float], new: dict[str, float], title: str
) -> None:
    said, hint = headline(base, new)
    assert said == title
    assert bool(hint) == ("slower" in title)


@pytest.mark.slow
def test_the_headline_names_the_late_rank(open_real: Callable[[Path], Run]) -> None:
    base, new = open_real(DATA / "seqpar-gloo4"), open_real(DATA / "seqpar-gloo4-slow2")
    slower, faster = (diff(*runs, Scope()).findings[0] for runs in ((base, new), (new, base)))
    assert slower.title.startswith("A step is 4.7x slower: rank 2 made 3 others wait")
    assert slower.ranks == (2,) and "rankscope stats NEW -r kernels --by rank --ranks 2" in slower.hint
    assert faster.title.startswith("A step is 4.7x faster: in base, rank 2 made 3 others wait")
    assert faster.ranks == () and not faster.hint  # rank 2 of the new run is not late


def test_memory_is_less_and_an_unsure_step_is_not_the_same() -> None:
    def rows(base: Samples, new: Samples) -> dict[str, str]:
        comparison = compare(base, new, Rules())
        result = Result("diff", "", "", COLUMNS, comparison.rows, facts={"likely": comparison.likely})
        assert [row["what"] for part in by_unit(result) for row in part.rows]
        assert not any("same" in note for note in comparison.notes)
        return {row["what"]: row["verdict"] for row in shown_rows(result)}

    small, large = ({"step": 50, "memory__peak allocated": size} for size in (60, 80))
    assert rows(samples(**large), samples(**small))["memory: peak allocated"] == "less"
    assert rows(samples(**small), samples(**large))["memory: peak allocated"] == "more"
    few = [
        Samples([0, 1, 2], 1, {STEP: [a * 1e6, b * 1e6, c * 1e6]}) for a, b, c in ((50, 45, 58), (70, 66, 62))
    ]
    assert rows(*few)["steps: step"] == "likely"


def trace(folder: Path, command: list[str], torch: str, shape: list[int], **header: Any) -> Run:
    """One rank with a job's manifests beside it."""
    folder.mkdir()
    events: list[Any] = []
    for step in range(3):
        at, number = 1000.0 * step, {"External id": step + 1}
        launch = {"correlation": step + 1, **number}
        events += [
            slice_event(f"ProfilerStep#{step}", at, 900, cat="user_annotation"),
            slice_event("aten::mm", at + 10, 50, args=number | ({"Input Dims": [shape]} if shape else {})),
            slice_event("cudaLaunchKernel", at + 20, 5, cat="cuda_runtime", args=launch),
            kernel_event("gemm", at + 40, 400, step + 1, **number),
        ]
    path = write_kineto(folder / "rank-0-of-1.json", events)
    path.write_text(json.dumps(json.loads(path.read_text()) | header))
    (folder / "rankscope.json").write_text(json.dumps({"command": command, "tool": "torch"}))
    (folder / "rank-0.rankscope.json").write_text(json.dumps({"rank": 0, "torch": torch, "host": "n1"}))
    return open_trace(path)


def test_what_else_differs_is_named(tmp_path: Path) -> None:
    base = trace(
        tmp_path / "a", ["python", "train.py", "--dtype", "fp32", "--fused"], "2.9.0", [4, 4], record_shapes=1
    )
    new = trace(tmp_path / "b", ["python", "train.py", "--dtype=bf16"], "2.10.0", [8, 4], record_shapes=1)
    *_, last = diff(base, new, Scope()).findings
    assert last.title == (
        "The runs also differ in torch (2.9.0 -> 2.10.0), --dtype (fp32 -> bf16), --fused (given -> not there) and "
        "the shapes of mm ([[4,4]] -> [[8,4]])"
    )
    same = diff(base, base, Scope())
    assert not any("differ" in finding.title for finding in same.findings)


def test_ops_with_and_without_shapes_are_compared_by_name(tmp_path: Path) -> None:
    base, new = trace(tmp_path / "a", [], "2.9.0", [4, 4]), trace(tmp_path / "b", [], "2.9.0", [])
    result = diff(base, new, Scope())
    assert [row["verdict"] for row in result.rows if row["key"] == "aten::mm"] == ["same", "same"]
    assert any("without shapes" in note for note in result.notes)
