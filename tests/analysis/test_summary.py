"""The summary and the findings: the verdict, the order, and a run that lacks everything."""

from __future__ import annotations

import csv
import inspect
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conftest import DATA, kernel_event, open_trace, slice_event, write_kineto
from rankscope.analysis import REPORTS
from rankscope.analysis.core.result import Fact, Finding
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.findings import collect, findings
from rankscope.analysis.questions import QUESTIONS
from rankscope.analysis.summary import summary
from rankscope.cli import main
from rankscope.text.run_words import RunWords
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope.views.columns import fields
from rankscope.views.summary import Screen, screen
from rankscope_bench.synthetic import Plan, Straggler, write

OpenReal = Callable[[Path], Run]


def shown(run: Run, width: int = 80) -> str:
    result = summary(run, Scope())
    kernels = REPORTS["kernels"].analyse(run, Scope(), None)
    return screen(
        Screen(RunWords(("RUN",)), "subject", result, kernels, collect(run, Scope())), width, color=False
    )


def test_the_verdict_comes_first(open_real: OpenReal) -> None:
    run = open_real(DATA / "gpt-h200-stack")
    result = summary(run, Scope())
    (row,) = result.rows
    whole = REPORTS["breakdown"].analyse(run, Scope(), None).rows[0]
    assert row["idle_pct"] == pytest.approx(100 * whole["idle_ns"] / whole["span_ns"])
    assert sum(
        row[f"{part}_pct"] for part in ("compute", "exposed_comm", "exposed_copy", "idle")
    ) == pytest.approx(100)
    assert row["peak_allocated_bytes"] == 5_477_374_464 and row["steps"] == 3
    assert result.title.startswith("A step takes 28.")
    assert (
        f"{row['compute_pct']:.0f} % compute" in result.title
        and f"MFU {row['mfu_pct']:.1f} %" in result.title
    )
    first, second = shown(run).replace(" of\n", " of ").split("\n")[:2]
    assert first == f"{result.facts['verdict']}" and second.startswith(result.title[:40])


@pytest.mark.slow
def test_one_screen_for_few_ranks_and_for_many(tmp_path: Path, open_real: OpenReal) -> None:
    write(Plan(ranks=6, events_per_rank=3_000, straggler=Straggler(2, "compute", 4_000_000)), tmp_path)
    many = shown(Run(ingest([tmp_path])))
    assert all(f"\n{word}" in many for word in ("lowest", "median", "highest"))
    for text in (many, shown(open_real(DATA / "gpt-h200-stack"))):
        assert len(text.splitlines()) <= 32
        assert max(map(len, text.splitlines())) <= 80
    assert "rankscope stats RUN -r list" in many


@pytest.mark.slow
def test_findings_are_ordered_by_severity_and_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = (
        Finding("info", "cheap", facts=(Fact("example", "e"),), cost_ns=1),
        Finding("info", "a remark", facts=(Fact("example", "e"),), cost_ns=500),
        Finding(
            "warning", "dear", facts=(Fact("example", "e"),), ranks=(1,), span=(2, 3), advice="h", cost_ns=100
        ),
        Finding("critical", "hangs", facts=(Fact("example", "e"),)),
        Finding("ok", "fine", facts=(Fact("example", "e"),)),
    )
    roofline = REPORTS["roofline"]

    def planted_report(run: Run, scope: Scope, by: str | None) -> Any:
        named = tuple(replace(finding, report="roofline") for finding in planted)
        return replace(roofline.analyse(run, scope, by), findings=named)

    monkeypatch.setitem(QUESTIONS, "roofline", replace(roofline, analyse=planted_report))
    run = open_trace(write_kineto(tmp_path / "t.json", [slice_event("aten::add", 0, 1)]))
    mine = [found for found in collect(run, Scope()) if found.report == "roofline"]
    assert [found.title for found in mine] == ["hangs", "a remark", "dear", "cheap"]
    rows = [row for row in findings(run, Scope()).rows if row["report"] == "roofline"]
    assert rows[2] == {
        "kind": "health", "severity": "warning", "cost_ns": 100, "alone_ns": None, "subject": None, "steps": None,
        "report": "roofline",
        "title": "dear", "evidence": "example: e", "hint": "h", "ranks": (1,), "start_ns": 2, "end_ns": 3,
    }  # fmt: skip
    kernels = REPORTS["kernels"].analyse(run, Scope(), None)
    text = screen(
        Screen(RunWords(("RUN",)), "s", summary(run, Scope()), kernels, planted[3:1:-1]),
        80,
        False,
    )
    assert text.startswith("hangs.\n1.0 µs were recorded") and "2. warning, 100 ns in total: dear" in text, (
        text
    )


def test_waiting_is_blamed_on_who_is_late_and_counted_once(open_real: OpenReal) -> None:
    """Of 14.3 ms of exposed communication a step 11.3 are waiting for rank 2 (docs/definitions.md)."""
    found = collect(open_real(DATA / "seqpar-gloo4-slow2"), Scope())
    exposed = next(one for one in found if one.report == "overlap")
    assert found[0].kind == "fault" and found[0].ranks == (2,) and exposed.kind == "limit"
    assert 10_000_000 < (found[0].cost_ns or 0) < 11_000_000 and (exposed.cost_ns or 0) // 100_000 == 24


def test_reports_with_findings_say_so() -> None:
    """The summary asks only reports that are marked; one whose module makes findings must be."""
    for report in REPORTS.values():
        module = inspect.getmodule(report.analyse)
        assert module is not None
        # Finding("ok", …) is a remark, and the summary passes over it.
        makes = re.search(r'\bFinding\(\s*(?!"ok")\S', inspect.getsource(module))
        assert report.finds or not makes, f"{report.name}: set finds=True in REPORTS"


BARE = {
    "nothing at all": [],
    "an op": [slice_event("aten::add", 0, 1)],
    "a kernel alone": [kernel_event("gemm", 0, 1)],
    "steps alone": [slice_event("ProfilerStep#1", 0, 5, cat="user_annotation")],
    "empty things": [slice_event("ProfilerStep#1", 0, 0, cat="user_annotation"), kernel_event("gemm", 0, 0)],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BARE)
def test_a_run_that_lacks_everything(name: str, tmp_path: Path) -> None:
    run = open_trace(write_kineto(tmp_path / "t.json", BARE[name]))
    text = shown(run)
    assert "nan" not in text.lower() and text.endswith("\n")
    if name in ("an op", "a kernel alone"):
        assert "without steps" in text
        assert ("--record-shapes" in text and "--profile-memory" in text) is (name == "a kernel alone")
    if not collect(run, Scope()):
        assert any("nothing found" in note for note in findings(run, Scope()).notes)


@pytest.mark.slow
def test_every_format_and_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """float32 on an H200: a limit, which is no problem."""
    dims = [[4096, 4096], [4096, 4096]]
    events = [
        slice_event("ProfilerStep#1", 0, 100, cat="user_annotation"),
        slice_event("aten::mm", 10, 30, args={"Input Dims": dims, "Input type": ["float", "float"]}),
        slice_event("cudaLaunchKernel", 20, 1, cat="cuda_runtime", args={"correlation": 1}),
        kernel_event("ampere_sgemm_128x64", 50, 3000, 1),
    ]
    path = write_kineto(tmp_path / "t.json", events, deviceProperties=[{"id": 0, "name": "NVIDIA H200"}])

    def run(*options: str) -> tuple[int, str]:
        code = main(["stats", "-q", str(path), *options])
        return code, capsys.readouterr().out

    code, out = run("--fail-on", "info")
    assert code == 0 and "Limits, at most per step" in out and "ampere_sgemm" in out
    assert "tensor cores" in " ".join(run("-r", "findings")[1].split())
    slow = str(DATA / "seqpar-gloo4-slow2")
    for report in ("findings", "faults", "findings,kernels"):
        assert main(["stats", "-q", slow, "-r", report, "--fail-on", "critical"]) == 3
    assert main(["stats", "-q", slow, "-r", "kernels,stragglers", "--fail-on", "info"]) == 0
    assert main(["stats", "-q", slow, "--fail-on", "critical"]) == 3
    assert "1. critical: rank 2" in capsys.readouterr().out
    both = json.loads(run("--format", "json")[1])
    assert both["name"] == "summary" and both["findings"]
    assert [one["name"] for one in both["others"]] == ["kernels"]
    rows = list(csv.DictReader(io.StringIO(run("-r", "findings", "--format", "csv")[1])))
    assert [row["report"] for row in rows].count("roofline") == 1 and "," in rows[0]["title"] + ","
    assert "**limit**" in run("-r", "findings", "--format", "markdown")[1]
    assert "What was found" in run("-r", "findings")[1]
    assert run("--peak", "nonsense")[0] == 2


def test_a_snapshot_alone_has_its_peak(open_real: OpenReal) -> None:
    run = open_real(DATA / "memory" / "gpt-h200.pickle.gz")
    text = shown(run)
    assert text.startswith("No trace, but 1 memory snapshot") and "no GPU" not in text and "MFU" not in text
    assert "Rank  Steps  Memory (GB)" in text and "   0      0        6.433" in text


def test_the_table_of_findings_has_their_cost(open_real: OpenReal) -> None:
    result = findings(open_real(DATA / "gpt-h200-stack"), Scope())
    shown_fields = {field.name: field.cells for field in fields(result)}
    assert [*shown_fields] == ["severity", "cost_ns", "report", "title"]
    costs = dict(zip(shown_fields["report"], shown_fields["cost_ns"], strict=True))
    assert costs["overhead"] == "-" and costs["idle"] == "12.698"
