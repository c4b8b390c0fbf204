"""diff: what the base's faults were predicted to cost, and what came once they are fixed."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rankscope.analysis.core.result import Finding
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.diff.two_runs import diff
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope.views.charts import chart_of
from rankscope.views.junit import junit
from rankscope_bench.synthetic.cluster import Fault, Job, simulate, step_ns
from rankscope_bench.synthetic.cluster_trace import write_traces

MS = 1_000_000
JOB = Job(data=4, layers=2, kernels=2, steps=6, seed=3)
DATA_2, DATA_3 = Fault("dataloader", (2,), 8 * MS), Fault("dataloader", (2,), 3 * MS)
COMPUTE_1 = Fault("compute", (1,), 6 * MS)

Runs = Callable[..., Run]


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The run of a job with these faults, simulated once."""
    known: dict[tuple[Fault, ...], Run] = {}

    def simulated(*faults: Fault) -> Run:
        if faults not in known:
            job = replace(JOB, faults=faults)
            folder = tmp_path_factory.mktemp("promise")
            write_traces(job, simulate(job), folder)
            known[faults] = Run(ingest([folder]))
        return known[faults]

    return simulated


def step(*faults: Fault) -> float:
    return step_ns(simulate(replace(JOB, faults=faults)))


def kept(base: Run, new: Run) -> Finding | None:
    found = [finding for finding in diff(base, new, Scope()).findings if finding.fact("predicted_pct")]
    assert len(found) <= 1
    return found[0] if found else None


def value(finding: Finding, quantity: str) -> float:
    fact = finding.fact(quantity)
    assert fact is not None and isinstance(fact.value, (int, float))
    return float(fact.value)


def test_a_fault_that_is_gone_has_saved_what_was_predicted(run_of: Runs) -> None:
    result = diff(run_of(DATA_2), run_of(), Scope())
    finding = result.findings[0]  # before the step time itself: it is the answer
    truth = 100 * (step() / step(DATA_2) - 1)
    assert value(finding, "predicted_pct") == pytest.approx(truth, abs=1)
    assert value(finding, "measured_pct") == pytest.approx(truth, abs=1)
    assert finding.title == (
        f"Predicted {value(finding, 'predicted_pct'):+.1f} %, measured {value(finding, 'measured_pct'):+.1f} % "
        "with rank 2 (data loading) fixed"
    )
    assert value(finding, "measured_ns") == pytest.approx(value(finding, "predicted_ns"), rel=0.02)
    assert not finding.fact("difference"), "as predicted: nothing to explain"
    assert finding.hint.endswith("rankscope report BASE NEW --chart change -o change.svg")


def test_of_a_fault_that_is_smaller_only_the_difference_was_predicted(run_of: Runs) -> None:
    finding = kept(run_of(DATA_2), run_of(DATA_3))
    assert finding is not None and finding.title.endswith("with rank 2 (data loading) partly fixed")
    truth = 100 * (step(DATA_3) / step(DATA_2) - 1)
    assert value(finding, "predicted_pct") == pytest.approx(truth, abs=2)
    assert value(finding, "left_ns") == pytest.approx(step(DATA_3) - step(), rel=0.1)
    assert " are left" in finding.lines[0]


def test_another_fault_that_came_is_why_less_was_saved(run_of: Runs) -> None:
    base, new = (DATA_2,), (COMPUTE_1,)
    finding = kept(run_of(*base), run_of(*new))
    assert finding is not None and finding.title.endswith("rank 2 (data loading) fixed")
    assert value(finding, "measured_pct") > value(finding, "predicted_pct") + 10
    reason = finding.fact("difference")
    assert reason is not None and str(reason.value).startswith("a new fault costs time: rank 1, ")


def test_a_slower_run_says_what_came_instead(run_of: Runs) -> None:
    finding = kept(run_of(DATA_3), run_of(Fault("compute", (1,), 20 * MS)))
    assert finding is not None and value(finding, "measured_pct") > 0 > value(finding, "predicted_pct")
    assert finding.title.endswith("rank 2 (data loading) fixed, and a new fault: rank 1")


def test_what_is_faster_besides_is_why_more_was_saved(run_of: Runs) -> None:
    finding = kept(run_of(DATA_2, Fault("link", (1,), 9 * MS)), run_of())
    reason = finding and finding.fact("difference")
    assert reason and str(reason.value).endswith(" ms less than predicted is spent in transfers")


class InOneStep(Fault):
    def in_step(self, step: int) -> int:
        return self.ns * (step == 4)


def test_of_two_faults_each_has_its_share(run_of: Runs) -> None:
    finding = kept(run_of(DATA_2, InOneStep("host", (0, 1, 2, 3), 30 * MS)), run_of())
    assert finding is not None and " and " in finding.title and finding.title.endswith(" fixed")
    shares = [fact.value for fact in finding.facts if fact.quantity in ("predicted_ns", "measured_ns")]
    assert len(shares) == 4 and sum(shares[1::2]) == pytest.approx(sum(shares[::2]), rel=0.05)  # type: ignore[arg-type]


def test_where_nothing_was_predicted_nothing_is_said(run_of: Runs) -> None:
    assert kept(run_of(), run_of(DATA_2)) is None, "the base has no fault"
    assert kept(run_of(DATA_2), run_of(DATA_2)) is None, "it is still there"
    assert kept(run_of(DATA_2), run_of(DATA_2, Fault("compute", (1,), 30 * MS))) is None, "it is hidden"


def test_the_chart_and_junit_have_it(run_of: Runs) -> None:
    result = diff(run_of(DATA_2), run_of(), Scope())
    chart = chart_of(result)
    assert chart.title == result.findings[0].title
    assert all(f">{label}<" in chart.body for label in ("before", "predicted", "now"))
    suite = ET.fromstring(junit(result, ()))
    figures = {each.get("name"): float(each.get("value", "")) for each in suite.iter("property")}
    assert figures["predicted_pct"] == pytest.approx(value(result.findings[0], "predicted_pct"), abs=0.05)
    assert result.findings[0].title in str(suite.findtext("system-out"))
    slower = diff(run_of(), run_of(DATA_2), Scope())
    assert chart_of(slower).title == "A step, before and now" and "predicted" not in chart_of(slower).body
    assert "property" not in junit(slower, ())


def test_the_report_and_the_command_draw_it(
    run_of: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from rankscope.cli import main

    folders = []
    for name, faults in (("base", (DATA_2,)), ("new", ())):
        job = replace(JOB, faults=faults)
        write_traces(job, simulate(job), tmp_path / name)
        folders.append(str(tmp_path / name))
    picture = tmp_path / "change.svg"
    assert main(["report", *folders, "--chart", "change", "-o", str(picture)]) == 0
    assert "Predicted -" in picture.read_text(encoding="utf-8")
    assert main(["report", folders[0], "--chart", "change", "-o", str(picture), "-f"]) == 2
    assert "of two runs" in capsys.readouterr().err
    page = tmp_path / "report.html"
    assert main(["report", *folders, "-o", str(page)]) == 0
    assert "rank 2 (data loading) fixed" in page.read_text(encoding="utf-8")
