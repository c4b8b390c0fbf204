"""The peers' own figures for the same files: HTA 0.5.0 run for real, TraceLens's csv (docs/definitions.md)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import kernel_event, open_trace, slice_event, write_kineto
from rankscope.analysis.compat import COMPAT
from rankscope.analysis.core.scope import Scope
from rankscope.cli import main
from rankscope.timeline.run import Run

OpenReal = Callable[[Path], Run]
Dataset = Callable[[str], Path]
HTA = COMPAT["hta"]["breakdown"].analyse
TRACELENS = COMPAT["tracelens"]["breakdown"].analyse


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "figures"),
    [
        ("public/hta/nccl_data.json.gz", [338781, 75169, 21636, 435586, 14.31]),
        ("public/hta/sampled_rank-0.json.gz", [321378, 106252, 172428, 600058, 11.81]),
        ("public/hta/ns_resolution.pt.trace.json.gz", [10113, 372150, 2371, 384634, None]),
        ("seqpar-nccl1-bf16/rank-0-of-1.json.gz", [28, 10921, 129, 11078, None]),
    ],
)
def test_hta(file: str, figures: list[float | None], dataset: Dataset, open_real: OpenReal) -> None:
    result = HTA(open_real(dataset(file)), Scope(), None)
    (row,) = result.rows
    assert list(row.values())[1:] == figures
    assert "rounds starts up" in result.notes[0]


def test_where_hta_stops_we_say_so(shared: Path, open_real: OpenReal) -> None:
    """HTA 0.5.0 fails its own assertion on this file; the figures behind it are still given."""
    result = HTA(open_real(shared / "public/tracelens/h100_qwen.json.gz"), Scope(), None)
    assert result.rows[0]["non_compute_time_us"] < 0
    assert "HTA itself fails on this trace" in result.notes[1]


def test_tracelens(shared: Path, open_real: OpenReal) -> None:
    result = TRACELENS(open_real(shared / "public/tracelens/h100_qwen.json.gz"), Scope(), None)
    times = {row["type"]: row["time_ms"] for row in result.rows}
    names = ("computation_time", "exposed_memcpy_time", "busy_time", "idle_time", "total_time")
    assert [round(times[name], 4) for name in names] == [31.9031, 0.0024, 31.9055, 2.9869, 34.8924]
    assert sum(row["percent"] for row in result.rows[:3]) == pytest.approx(result.rows[3]["percent"])


def test_without_a_gpu_both_say_so(tmp_path: Path) -> None:
    run = open_trace(write_kineto(tmp_path / "rank-0.json", [slice_event("aten::mm", 1, 2)]))
    for analyse in (HTA, TRACELENS):
        result = analyse(run, Scope(), None)
        assert result.rows == () and "would have no result" in result.notes[0]


@pytest.mark.slow
def test_several_ranks_are_told_apart(tmp_path: Path) -> None:
    launch = slice_event("cudaLaunchKernel", 1, 2, cat="cuda_runtime", args={"correlation": 5})
    for rank in (0, 1):
        write_kineto(tmp_path / f"rank-{rank}.json", [launch, kernel_event("k", 5, 3, correlation=5)])
    rows = TRACELENS(open_trace(tmp_path), Scope(), None).rows
    assert [(row["rank"], row["time_ms"]) for row in rows if row["type"] == "total_time"] == [
        (0, 0.003),
        (1, 0.003),
    ]


def test_an_unknown_peer_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", str(tmp_path), "--compat", "vtune"]) == 2
    assert "Supported: hta, tracelens" in capsys.readouterr().err
