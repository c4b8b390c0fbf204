"""One quantity, one figure: identities between all reports, the report page and the viewer, on every run there is."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import DATA
from rankscope.agents.small_answers import small_answer
from rankscope.analysis import REPORTS
from rankscope.analysis.across_ranks.heatmap import rank_times
from rankscope.analysis.core.intervals import length
from rankscope.analysis.core.result import Result, Row
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import run_step
from rankscope.analysis.critical_path.whatif import whatif
from rankscope.analysis.graph.graph import graph_of
from rankscope.store.ingest import Options
from rankscope.text.run_words import RunWords
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope.units import format_ns
from rankscope.viewer.reports import report as viewer_report
from rankscope.viewer.scenes import findings as viewer_findings
from rankscope.viewer.session import Session
from rankscope.views.envelope import Question, csv_text, json_text
from rankscope.views.report.content import Request, build
from rankscope.views.summary import Screen, screen
from rankscope_bench.synthetic import Plan, Straggler, write
from rankscope_bench.synthetic.cluster import Fault, Job, simulate
from rankscope_bench.synthetic.cluster_trace import write_traces

pytestmark = pytest.mark.slow

OF_THE_FILE = (
    "clocks",
    "hang.flight_recorder",
    "memory.fragmentation",
    "layout.groups",
    "hang",
    "layout",
    "collectives.nccl",
    "ncu",
    "telemetry",
)
"""Reports on what does not depend on steps."""
PARTS = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")
RECORDED = (
    "checkpoint-cpu/plain.pt.trace.json.gz", "captured-h200", "checkpoint-cpu/reentrant.pt.trace.json.gz",
    "ddp-gloo4", "gpt-graph-h200", "gpt-h200", "gpt-h200-stack", "hf-trainer-h200", "nsys/gpt-h200",
    "jax/mlp-h200", "proton/matmul-h200", "graph-captured-h200",
    "nsys/seqpar-gloo2", "batched-p2p-h200", "seqpar-gloo4", "seqpar-gloo4-slow2",
    "seqpar-nccl1-bf16", "seqpar-nccl1-fp32", "clocks-h200-free", "clocks-h200-900mhz", "ordinary/tensor-data",
    "demo/run",
)  # fmt: skip
PUBLIC = (
    "public/hta/nccl_data.json.gz", "public/hta/ns_resolution.pt.trace.json.gz", "public/hta/sampled_rank-0.json.gz",
    "public/hta/sampled_rank-1.json.gz", "public/tracelens/h100_qwen.json.gz",
    "public/pipit/saxpy-mpi-cuda_nsys_perlmutter0.sqlite",
)  # fmt: skip


def _simulated(job: Job, folder: Path) -> None:
    write_traces(job, simulate(job), folder)


SYNTHETIC: dict[str, Callable[[Path], object]] = {
    "straggler": lambda folder: write(
        Plan(ranks=3, events_per_rank=3_000, steps=3, straggler=Straggler(1, "host", 3_000_000)), folder
    ),
    "pipeline": lambda folder: _simulated(
        Job(stages=2, data=2, faults=(Fault("compute", (1,), 2_000_000),)), folder
    ),
    "tensor": lambda folder: _simulated(
        Job(data=2, tensor=2, faults=(Fault("link", (1,), 2_000_000),)), folder
    ),
}


@pytest.fixture(scope="module")
def opened(dataset: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """A run by its name above; each is read once."""
    runs: dict[str, Run] = {}
    stores = tmp_path_factory.mktemp("stores")

    def find(name: str) -> Run:
        if name not in runs:
            if name in SYNTHETIC:
                source = tmp_path_factory.mktemp(name)
                SYNTHETIC[name](source)
            else:
                source = dataset(name)
            runs[name] = Run(ingest([source], Options(cache=stores / name.replace("/", "-"))))
        return runs[name]

    return find


@pytest.mark.parametrize("name", [*RECORDED, *PUBLIC, *SYNTHETIC])
def test_identities(name: str, opened: Callable[[str], Run]) -> None:
    check(opened(name), whole_file=False)


@pytest.mark.parametrize("name", ["gpt-h200", "nsys/gpt-h200", "seqpar-gloo4-slow2"])
def test_identities_of_the_whole_file(name: str, opened: Callable[[str], Run]) -> None:
    check(opened(name), whole_file=True)


def check(run: Run, whole_file: bool) -> None:
    scope = Scope(whole_file=whole_file).in_run(run)
    results = {report: REPORTS[report].analyse(run, scope, None) for report in REPORTS}
    for result in results.values():
        assert result.window == scope.window or result.name in OF_THE_FILE, result.name
    classes_add_up(run, scope, results)
    one_step_time(run, scope, results)
    idle_is_idle(run, scope, results)
    overlap_is_the_breakdown(results)
    heat_map_is_the_breakdown(run, scope, results)
    path_is_the_window(run, scope, results)


def whole(result: Result) -> list[Row]:
    return [row for row in result.rows if row["step"] is None]


def classes_add_up(run: Run, scope: Scope, results: dict[str, Result]) -> None:
    """Classes to the span, steps to the rank's row, none negative; waiting is a part of exposed communication."""
    rows = results["breakdown"].rows
    for row in rows:
        assert sum(row[part] for part in PARTS) == row["span_ns"]
        assert all(row[part] >= 0 for part in PARTS)
        assert 0 <= row["exposed_wait_ns"] <= row["exposed_comm_ns"] <= row["comm_ns"]
    steps = {(row["rank"], row["step"]): row["time_ns"] for row in results["steps"].rows}
    for total in whole(results["breakdown"]):
        own = [row for row in rows if row["rank"] == total["rank"] and row["step"] is not None]
        if scope.steps is None:
            assert own == []
            continue
        for column in (*PARTS, "span_ns", "comm_ns", "exposed_wait_ns"):
            assert sum(row[column] for row in own) == total[column]
        assert {row["step"]: row["span_ns"] for row in own} == {
            step: time for (rank, step), time in steps.items() if rank == total["rank"]
        }


def one_step_time(run: Run, scope: Scope, results: dict[str, Result]) -> None:
    """The headline, the summary's rows, whatif and MFU use the same steps."""
    summary, steps = results["summary"], results["steps"].rows
    for row in summary.rows:
        times = [one["time_ns"] for one in steps if one["rank"] == row["rank"]]
        if times:
            assert min(times) <= row["step_ns"] <= max(times)
            assert row["steps"] == len(times)
    if steps:
        by_step: dict[int, list[int]] = {}
        for one in steps:
            by_step.setdefault(one["step"], []).append(one["time_ns"])
        means = [float(np.mean(times)) for times in by_step.values()]
        assert summary.facts["step_ns"] == run_step(run, scope).ns
        assert min(means) - 1 <= summary.facts["step_ns"] <= max(means) + 1
        assert format_ns(summary.facts["step_ns"], 1) in summary.title
    total = {row["rank"]: row["dur_ns"] for row in results["mfu"].rows if row["step"] is None}
    if scope.steps is not None:
        spans = {row["rank"]: row["span_ns"] for row in whole(results["breakdown"])}
        assert all(spans[rank] == time for rank, time in total.items() if rank in spans)
        replay = whatif(run, scope).rows
        mean = float(np.mean([one["time_ns"] for one in steps]))
        assert all(abs(row["base_ns"] - mean) <= 1 for row in replay)
        assert all(row["saved_ns"] <= row["base_ns"] for row in replay)


def idle_is_idle(run: Run, scope: Scope, results: dict[str, Result]) -> None:
    """With one device, the causes add up to the breakdown's idle; gaps by place do too; data waits are equal."""
    devices = Counter(row["rank"] for row in results["idle"].rows)
    idle = {row["rank"]: row["idle_ns"] for row in whole(results["breakdown"])}
    for row in results["idle"].rows:
        if devices[row["rank"]] == 1:
            assert sum(value for column, value in row.items() if column.endswith("_ns")) == idle[row["rank"]]
    if results["idle"].rows and set(devices.values()) == {1}:
        assert sum(row["idle_ns"] for row in results["idle.gaps"].rows) == sum(idle[rank] for rank in devices)
        waits: Counter[int] = Counter()
        for row in results["dataloader"].rows:
            waits[row["rank"]] += row["gpu_idle_ns"] or 0
        assert all(
            waits[row["rank"]] == row["dataloader_ns"] for row in results["idle"].rows if waits[row["rank"]]
        )


def overlap_is_the_breakdown(results: dict[str, Result]) -> None:
    broken = {row["rank"]: row for row in whole(results["breakdown"])}
    for row in whole(results["overlap"]):
        if row["collective"] is None:
            assert row["comm_ns"] == broken[row["rank"]]["comm_ns"]
            assert row["exposed_ns"] == broken[row["rank"]]["exposed_comm_ns"]
            assert row["overlap_pct"] == pytest.approx(broken[row["rank"]]["overlap_pct"])


def heat_map_is_the_breakdown(run: Run, scope: Scope, results: dict[str, Result]) -> None:
    broken = {row["rank"]: row for row in whole(results["breakdown"])}
    if scope.steps is None:
        return
    for one in rank_times(run, scope, scope.ranks_in(run)):
        if one.rank in broken and not one.on_host:
            for part, column in (
                ("compute", "compute_ns"),
                ("comm", "exposed_comm_ns"),
                ("copy", "exposed_copy_ns"),
            ):
                assert length(getattr(one, part)) == broken[one.rank][column]


def path_is_the_window(run: Run, scope: Scope, results: dict[str, Result]) -> None:
    rows = results["critical"].rows
    low, high = graph_of(run, scope).window
    if rows:
        assert sum(row["ns"] for row in rows) == high - low
        assert sum(row["pct"] for row in rows) == pytest.approx(100)
    if rows and scope.steps is not None:
        steps = results["steps"].rows
        assert low == min(row["end_ns"] - row["time_ns"] for row in steps)
        assert high == max(row["end_ns"] for row in steps)


IN_ALL_OUTPUTS = ("seqpar-gloo4-slow2", "gpt-graph-h200", "ddp-gloo4", "pipeline")
"""The others take long."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in IN_ALL_OUTPUTS else pytest.mark.thorough)
        for name in (*RECORDED, *PUBLIC, *SYNTHETIC)
    ],
)
def test_page_and_viewer_have_the_same_figures(name: str, opened: Callable[[str], Run]) -> None:
    run = opened(name)
    summary = REPORTS["summary"].analyse(run, Scope(), None)
    content = build(Request(run, Scope(), name))
    if summary.facts["step_ns"] is not None:
        assert content.figures[0].value == format_ns(summary.facts["step_ns"], 1)
    shown = list(content.findings)
    assert [finding.title for finding in shown] == [finding.title for finding in summary.findings]
    assert [finding.cost_ns for finding in shown] == [finding.cost_ns for finding in summary.findings]
    session = Session(run, name)
    answer: Any = viewer_findings(session, {})
    assert [one["title"] for one in answer["findings"]] == [finding.title for finding in summary.findings]
    # Cost, ranks and share of every finding: JSON, CSV, viewer, tools, page and terminal.
    step = summary.facts["mean_step_ns"]
    expected = [stated(finding.to_dict(), step) for finding in summary.findings]
    listed = REPORTS["findings"].analyse(run, Scope(), None)
    documents = json_text([listed], Question({"RUN": RunWords((name,))}, whole_run=True))
    assert [stated(one, step) for one in json.loads(documents)["findings"]] == expected
    rows = list(csv.DictReader(io.StringIO(csv_text([listed]))))
    assert [(row["severity"], row["cost_ns"], row["alone_ns"]) for row in rows] == [
        (severity, *("" if value is None else str(value) for value in (cost, alone)))
        for severity, cost, alone, *_ in expected
    ]
    assert [
        stated(one, answer_of_viewer(session)["facts"]["mean_step_ns"]) for one in answer["findings"]
    ] == expected
    small = small_answer(listed, Question({"RUN": RunWords((name,))}, whole_run=True))["findings"]
    assert [stated(one, step) for one in small] == expected[: len(small)]
    assert [stated(one.to_dict(), content.step_ns) for one in shown] == expected
    text = screen(
        Screen(RunWords(("RUN",)), "", summary, REPORTS["kernels"].analyse(run, Scope(), None), shown),
        400,
        False,
    )
    for finding in shown[:3]:
        assert finding.severity == "limit" or f"{finding.severity}: " in text
    for report in ("summary", "breakdown", "steps"):
        mine = REPORTS[report].analyse(run, Scope(), None)
        theirs: Any = viewer_report(session, {"name": report})
        assert theirs["rows"] == [dict(row) for row in mine.rows] and theirs["facts"] == dict(mine.facts)


def stated(finding: Mapping[str, Any], step_ns: float | None) -> tuple[Any, ...]:
    cost = finding["cost_ns"]
    share = cost / step_ns if cost is not None and step_ns else None
    assert share is None or share <= 1 + 1e-6
    return (
        finding["severity"],
        cost,
        finding["alone_ns"],
        finding["kind"],
        tuple(finding["ranks"]),
        share,
    )


def answer_of_viewer(session: Session) -> Any:
    return viewer_report(session, {"name": "summary"})


def test_every_recorded_run_is_checked() -> None:
    named = {Path(name).parts[0] for name in RECORDED}
    assert named >= {path.name for path in DATA.iterdir() if path.is_dir()} - {"leak-h200", "memory", "ncu"}
