"""Reasons to doubt a run: in the first line of the summary, in its JSON and in the report."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conftest import DATA, kernel_event, kineto_text, slice_event, write_kineto
from rankscope.analysis import REPORTS
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.health.doctor import doctor
from rankscope.analysis.health.doubts import doubts
from rankscope.analysis.summary import summary
from rankscope.cli import main
from rankscope.timeline.run import Run, open_run
from rankscope.views.report.content import Request, build
from rankscope.views.report.html_report import html_page
from rankscope.views.report.markdown_report import markdown_page
from rankscope_bench.blame.planting import job_of, plant
from rankscope_bench.synthetic.cluster_trace import write_traces

NOON = 1_760_000_000 * 10**9


def events(steps: tuple[int, ...] = (1000, 1000, 1000), kernels: tuple[int, ...] = (4, 4, 4)) -> list[Any]:
    """Steps of these lengths in µs, each with this number of kernels."""
    found: list[Any] = []
    begin = correlation = 0
    for number, (length, count) in enumerate(zip(steps, kernels, strict=True), 1):
        found.append(slice_event(f"ProfilerStep#{number}", begin, length, cat="user_annotation"))
        for kernel in range(count):
            correlation += 1
            at = begin + 100 * kernel
            found.append(
                slice_event("cudaLaunchKernel", at, 5, cat="cuda_runtime", args={"correlation": correlation})
            )
            found.append(kernel_event("gemm", at + 10, 80, correlation=correlation))
        begin += length
    return found


def header(rank: int, world: int, at: int = NOON) -> dict[str, Any]:
    return {"baseTimeNanoseconds": at, "distributedInfo": {"rank": rank, "world_size": world}}


def texts(run: Run, scope: Scope | None = None) -> list[str]:
    return [doubt.title for doubt in doubts(run, scope or Scope())]


def test_a_complete_run_has_none(tmp_path: Path) -> None:
    write_kineto(tmp_path / "trace.json", events(), **header(0, 1))
    assert texts(open_run([tmp_path])) == []


def test_missing_ranks_and_clocks(tmp_path: Path) -> None:
    for rank in (0, 5):
        write_kineto(tmp_path / f"rank{rank}.json", events(), **header(rank, 8))
    run = open_run([tmp_path])
    assert texts(run) == ["2 of 8 ranks", "clocks of rank 5 not aligned"]
    assert "no trace of ranks 1-4,6-7" in doubts(run, Scope())[0].advice
    assert texts(run.with_options(clocks="raw")) == ["2 of 8 ranks"]


def test_the_world_size_may_be_in_the_manifest(tmp_path: Path) -> None:
    write_kineto(tmp_path / "rank-00000.json", events(), baseTimeNanoseconds=NOON)
    (tmp_path / "rank-00000.rankscope.json").write_text(json.dumps({"rank": 0, "world_size": 4}))
    assert texts(open_run([tmp_path])) == ["1 of 4 ranks"]


def test_a_cut_file(tmp_path: Path) -> None:
    whole = kineto_text(events(), **header(0, 1))
    (tmp_path / "trace.json").write_text(whole[: whole.rindex("gemm")])
    (doubt,) = doubts(open_run([tmp_path]), Scope())
    assert doubt.title == "recording cut on rank 0"
    assert doubt.advice.startswith("the file ends before the end of its list of events (rank 0)")


@pytest.mark.parametrize("share", [0.3, 0.7, 0.9])
def test_what_a_cut_file_lacks_is_not_known(share: float, tmp_path: Path) -> None:
    """Its three steps take 5.5 ms; with 70 % of the file it seemed to be 17 us, at 240 % of the peak."""
    (packed,) = (DATA / "seqpar-nccl1-bf16").glob("*.json.gz")
    text = gzip.decompress(packed.read_bytes())
    (tmp_path / "rank-0.json").write_bytes(text[: int(share * len(text))])
    run = open_run([tmp_path])
    overview = REPORTS["summary"].analyse(run, Scope(), None)
    (row,) = overview.rows
    assert overview.title == "The recording is cut: where the time goes is not known"
    assert row["step_ns"] is row["mfu_pct"] is row["idle_pct"] is overview.facts["mean_step_ns"] is None
    assert overview.findings == () and "nsys" not in " ".join(overview.notes)
    assert "rank 0" in REPORTS["mfu"].analyse(run, Scope(), None).unanswered
    assert REPORTS["kernels"].analyse(run, Scope(), None).rows or share < 0.5


@pytest.mark.slow
def test_waits_for_a_rank_whose_file_is_cut_are_no_transfer(tmp_path: Path) -> None:
    planted = plant(replace(job_of("dp4"), steps=4), "compute", 20.0, random.Random(1))
    write_traces(planted.job, planted.runs, tmp_path)
    assert "waiting for another rank" in REPORTS["summary"].analyse(open_run([tmp_path]), Scope(), None).title
    file = sorted(tmp_path.glob("*.json*"))[planted.culprits[0]]
    file.write_bytes(file.read_bytes()[: 2 * file.stat().st_size // 3])
    overview = REPORTS["summary"].analyse(open_run([tmp_path]), Scope(), None)
    assert "exposed communication" in overview.title and "transfer" not in overview.title
    assert [finding for finding in overview.findings if finding.cost_ns is not None] == []
    assert "critical" not in {finding.report for finding in overview.findings}


def test_an_incomplete_last_step(tmp_path: Path) -> None:
    write_kineto(tmp_path / "trace.json", events(kernels=(4, 4, 2)), **header(0, 1))
    run = open_run([tmp_path])
    assert texts(run) == ["last step incomplete on rank 0"]
    assert texts(run, Scope(steps=(1, 2))) == []


def test_a_step_with_less_work_is_no_truncated_step(tmp_path: Path) -> None:
    """A rank whose experts get no tokens in some steps."""
    for name, kernels, cut in (
        ("between", (4, 1, 4, 4), 0),
        ("also last", (4, 1, 4, 1), 0),
        ("last", (4, 4, 4, 1), 1),
    ):
        steps = (1000,) * len(kernels)
        write_kineto(tmp_path / name / "trace.json", events(steps, kernels), **header(0, 1))
        run = open_run([tmp_path / name])
        rows = {row["check"]: row["value"] for row in doctor(run, Scope()).rows}
        assert rows["truncated steps"] == str(cut) and len(texts(run)) == cut, name


def test_warm_up_inside(tmp_path: Path) -> None:
    write_kineto(tmp_path / "trace.json", events(steps=(5100, 1000, 1000)), **header(0, 1))
    run = open_run([tmp_path])
    assert texts(run) == ["warm-up inside: step 1 took 5.1x the median"]
    assert texts(run, Scope(steps=(2, 3))) == []


def test_ranks_recorded_at_different_times(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_kineto(tmp_path / f"rank{rank}.json", events(), **header(rank, 2, NOON + rank * 1800 * 10**9))
    assert texts(open_run([tmp_path])) == [
        "ranks not recorded at the same time",
        "clocks of rank 1 not aligned",
    ]


def test_events_that_are_not_understood(tmp_path: Path) -> None:
    others = [slice_event("task", 10 * n, 5, cat="task", tid=9) for n in range(60)]
    write_kineto(tmp_path / "trace.json", [*events(), *others], **header(0, 1))
    (doubt,) = doubts(open_run([tmp_path]), Scope())
    assert doubt.title == "31 % of the events understood"
    assert '60 of category "task"' in doubt.advice


@pytest.mark.slow
def test_where_they_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_kineto(tmp_path / "trace.json", events(), **header(0, 8))
    assert main(["stats", str(tmp_path), "-q"]) == 0
    first = "In doubt: 1 of 8 ranks.\nNo fault found among the 1 of 8 ranks recorded."
    assert capsys.readouterr().out.startswith(first)
    assert main(["stats", str(tmp_path), "-q", "--format", "json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["name"] == "summary" and first["notes"][0].startswith(
        "in doubt: 1 of 8 ranks: no trace of ranks 1-7"
    )
    run = open_run([tmp_path])
    assert summary(run, Scope()).notes[0].startswith("in doubt: 1 of 8 ranks")
    content = build(Request(run, Scope(), "run"))
    page = html_page(content)
    assert page.index("In doubt: 1 of 8 ranks.") < page.index("<h1>")
    assert "In doubt: 1 of 8 ranks." in markdown_page(content)
