"""diff: the planted slowdown is named, the same program twice is the same, odd pairs are still compared."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import DATA, kernel_event, open_trace, slice_event, write_kineto
from rankscope.analysis import REPORTS as REPORTS_OF_A_RUN
from rankscope.analysis.core.result import Result, Row
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.diff.compare import Rules, adjusted_p, compare
from rankscope.analysis.diff.samples import REPORTS, STEP, Measure, Samples, collect
from rankscope.analysis.diff.two_runs import COLUMNS, by_unit, diff, findings, slower_rows
from rankscope.cli import main
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope_bench.synthetic import Plan, Slower, write

pytestmark = pytest.mark.slow

GELU = "aten::gelu [[8,1024,4096],[]]"


def synthetic(folder: Path, events: int = 7_000, **plan: Any) -> Run:
    write(Plan(ranks=1, events_per_rank=events, step_noise_pct=1.0, **plan), folder)
    return Run(ingest([folder]))


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> list[Samples]:
    """The same program captured fifteen times: 105 pairs."""
    folder = tmp_path_factory.mktemp("captures")
    return [
        collect(synthetic(folder / str(seed), seed=seed), Scope(), REPORTS, by_step=True)
        for seed in range(15)
    ]


def called(rows: Sequence[Row]) -> Sequence[Row]:
    return [row for row in rows if row["verdict"] != "same"]


@pytest.mark.thorough
def test_two_captures_of_the_same_code_call_nothing(captures: list[Samples]) -> None:
    pairs = list(combinations(captures, 2))
    assert len(pairs) >= 100
    alarms = [rows for pair in pairs if (rows := called(compare(*pair, Rules()).rows))]
    assert len(alarms) < 0.05 * len(pairs)
    rows = compare(*pairs[0], Rules()).rows
    assert {row["report"] for row in rows} == set(REPORTS) - {"collectives"}  # one rank has nobody to talk to
    assert rows[0]["report"] == "steps"  # the headline
    assert len(rows) > 60


@pytest.mark.thorough
def test_nothing_is_called_with_three_steps_either(captures: list[Samples]) -> None:
    def short(samples: Samples) -> Samples:
        values = {measure: one[:3] for measure, one in samples.values.items()}
        return Samples(samples.steps[:3], samples.ranks, values)

    pairs = [compare(short(a), short(b), Rules()) for a, b in combinations(captures, 2)]
    assert sum(bool(called(pair.rows)) for pair in pairs) < 0.05 * len(pairs)
    assert all(pair.few and any("too few" in note for note in pair.notes) for pair in pairs)


@pytest.mark.thorough
@pytest.mark.parametrize(("factor", "verdict"), [(1.03, "slower"), (0.5, "faster")])
def test_a_planted_change_of_one_op_is_found_and_named(tmp_path: Path, factor: float, verdict: str) -> None:
    base = synthetic(tmp_path / "base", 40_000, seed=101, steps=12)
    new = synthetic(tmp_path / "new", 40_000, seed=102, steps=12, slower=(Slower("GeluCUDAKernel", factor),))
    result = diff(base, new, Scope())
    ops = [row for row in result.rows if row["report"] == "ops" and row["verdict"] != "same"]
    assert [(row["key"], row["verdict"]) for row in ops] == [(GELU, verdict)]
    assert ops[0]["change_pct"] == pytest.approx(100 * (factor - 1), abs=1.5)
    assert ops[0]["p_value"] <= 0.01
    assert {row["report"] for row in called(result.rows)} <= {
        "ops",
        "kernels",
        "families",
        "breakdown",
        "steps",
    }
    finding = next(finding for finding in result.findings if GELU in finding.title)
    assert finding.cost_ns == max(ops[0]["new"] - ops[0]["base"], 0)
    assert [row["key"] for row in slower_rows(result, 2.0) if row["report"] == "ops"] == (
        [GELU] if verdict == "slower" else []
    )


def trace(path: Path, kernel_us: float, steps: int = 6, kernel: str = "gemm_f32", noise: float = 0.1) -> Run:
    """Steps of one op that launches one kernel; every other one a little longer."""
    events: list[Any] = []
    for step in range(steps):
        t = 1000.0 + 1000 * step
        events.append(slice_event(f"ProfilerStep#{step}", t, 900, cat="user_annotation"))
        events.append(
            slice_event("aten::mm", t + 10, 50, args={"External id": step + 1, "Input Dims": [[4, 4]]})
        )
        launch = {"correlation": step + 1, "External id": step + 1}
        events.append(slice_event("cudaLaunchKernel", t + 20, 5, cat="cuda_runtime", args=launch))
        took = kernel_us + noise * (step % 2)
        events.append(kernel_event(kernel, t + 40, took, step + 1, **{"External id": step + 1}))
    return open_trace(write_kineto(path, events))


def test_an_op_is_compared_though_its_kernel_has_another_name(tmp_path: Path) -> None:
    result = diff(
        trace(tmp_path / "a.json", 400), trace(tmp_path / "b.json", 50, kernel="nvjet_bf16"), Scope()
    )
    rows = {(row["report"], row["key"]): row for row in result.rows}
    op = rows["ops", "aten::mm [[4,4]]"]
    assert (op["base"], op["new"], op["verdict"]) == (400_050, 50_050, "faster")
    assert rows["kernels", "gemm_f32"]["verdict"] == "gone"
    assert rows["kernels", "gemm_f32"]["new"] is None and rows["kernels", "gemm_f32"]["p_value"] is None
    assert rows["kernels", "nvjet_bf16"]["verdict"] == "new"
    assert rows["families", "matrix product"]["verdict"] == "faster"
    said = [f"{finding.title}: {finding.evidence}" for finding in result.findings]
    assert any("kernels gone: gemm_f32; new kernels: nvjet_bf16" in text for text in said)
    assert any("(new kernels: 1, gone: 1)" in text for text in said)


def test_a_change_below_the_limit_is_not_called(tmp_path: Path) -> None:
    base, new = trace(tmp_path / "a.json", 400, noise=0.01), trace(tmp_path / "b.json", 402, noise=0.01)
    assert called(diff(base, new, Scope()).rows) == []
    small = diff(base, new, Scope(), Rules(min_change_pct=0.2))
    assert {row["key"] for row in called(small.rows)} >= {"aten::mm [[4,4]]", "gemm_f32"}


def test_a_warm_up_step_is_left_out_and_said(tmp_path: Path) -> None:
    values = {Measure("steps", "step"): [50.0, 10, 10, 11, 10, 11, 10]}
    slow = {Measure("steps", "step"): [10.0, 20, 21, 20, 21, 20, 21]}
    base = Samples([*range(7)], 1, values, slow_first=(0,))
    found = compare(base, Samples([*range(7)], 1, slow), Rules())
    assert found.rows[0]["base"] == 10 and found.rows[0]["verdict"] == "slower"
    assert any("base: step 0 is left out. It is the first of a recording" in note for note in found.notes)


def timed(*values: float) -> Samples:
    return Samples([*range(len(values))], 1, {STEP: list(values)})


@pytest.mark.thorough
def test_the_step_time_is_tested_alone(captures: list[Samples]) -> None:
    """Its p does not depend on how many other rows there are; theirs is corrected among themselves."""
    base, new = captures[:2]
    changed = new.values | {STEP: [value * 1.015 for value in new.values[STEP]]}
    row = compare(base, replace(new, values=changed), Rules()).rows[0]
    alone = adjusted_p(np.array([base.values[STEP]]), np.array([changed[STEP]]))[0]
    both = [one for one in changed if one in base.values]
    first, second = (np.array([values[one] for one in both]) for values in (base.values, changed))
    among_all = adjusted_p(first, second)[both.index(STEP)]
    assert row["p_value"] == pytest.approx(alone, abs=1e-4) and alone < among_all
    others = [one for one in compare(base, new, Rules()).rows if one["report"] != "steps"]
    without = [
        one for one in compare(base, replace(new, values=changed), Rules()).rows if one["report"] != "steps"
    ]
    assert others == without


def test_a_large_change_with_three_steps_is_likely() -> None:
    found = compare(timed(100e6, 130e6, 110e6), timed(160e6, 210e6, 176e6), Rules())
    assert found.likely and found.rows[0]["verdict"] == "same" and found.rows[0]["p_value"] == 0.1
    (finding,) = findings(found)
    assert finding.severity == "warning" and finding.cost_ns is None
    assert finding.title == "A step takes 66.0 ms longer (+60.0 %, 3 steps: likely; record 6 to be sure)"
    assert finding.hint.endswith("rankscope profile --active 6")
    change = finding.fact("change_pct")
    assert change is not None and change.value == pytest.approx(60)
    assert change.row == {"report": "steps", "key": "step"}
    (faster,) = findings(compare(timed(160e6, 210e6, 176e6), timed(100e6, 130e6, 110e6), Rules()))
    assert faster.severity == "info"
    assert faster.title == "A step takes 66.0 ms less (-37.5 %, 3 steps: likely; record 6 to be sure)"


def test_what_is_not_likely() -> None:
    base = timed(100e6, 130e6, 110e6)
    small = compare(base, timed(102e6, 131e6, 111e6), Rules())
    assert not small.likely and next(findings(small)).severity == "ok"
    overlapping = compare(base, timed(90e6, 180e6, 160e6), Rules())
    finding = next(findings(overlapping))
    assert not overlapping.likely and finding.severity == "info"
    assert (
        finding.title == "A step takes 50.0 ms longer (+45.5 %, 3 steps: perhaps noise; record 6 to be sure)"
    )


def test_no_large_change_is_called_no_change() -> None:
    """A change of a half is not 'ok', nor 'same' in the table."""
    found = compare(timed(210e6, 230e6, 205e6), timed(100e6, 95e6, 130e6), Rules())
    (finding,) = findings(found)
    assert finding.title == "A step takes 110 ms less (2.1x faster, 3 steps: likely; record 6 to be sure)"
    for likely, shown in ((True, "likely"), (False, "unclear")):
        (table,) = by_unit(Result("diff", "", "", COLUMNS, found.rows, facts={"likely": likely}))
        assert found.rows[0]["verdict"] == "same" and table.rows[0]["verdict"] == shown
    limited = compare(timed(*[100e6] * 6), timed(*[115e6] * 6), Rules(min_change_pct=20))
    assert next(findings(limited)).title == (
        "The step time changed by +15.0 %, less than the 20 % that count here"
    )


def test_steps_that_vary_are_likely_slower_too() -> None:
    found = compare(timed(100, 140, 120, 160, 110, 150), timed(150, 190, 140, 200, 145, 180), Rules())
    assert found.rows[0]["verdict"] == "same" and 0.01 < found.rows[0]["p_value"] <= 0.05
    assert " 6 steps that vary: likely; record 13 to be sure)" in next(findings(found)).title


def test_the_step_time_is_that_of_the_summary(open_real: Callable[[Path], Run]) -> None:
    """Host and device together, median over the steps; not the range on the host, nor the span of the GPU's work."""
    base, new = (open_real(DATA / f"seqpar-nccl1-{name}") for name in ("fp32", "bf16"))
    row = diff(base, new, Scope(), Rules(("steps",))).rows[0]
    expected = [
        REPORTS_OF_A_RUN["summary"].analyse(run, Scope(), None).facts["step_ns"] for run in (base, new)
    ]
    assert [row["base"], row["new"]] == expected
    assert row["change_pct"] == pytest.approx(100 * (5.546 / 85.529 - 1), abs=0.01)


def test_the_gate_counts_likely_only_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, kernels in (("a", (1000, 1300, 1100)), ("b", (1600, 2100, 1760))):
        events: list[Any] = []
        at = 0.0
        for step, took in enumerate(kernels):
            events.append(slice_event(f"ProfilerStep#{step}", at, took, cat="user_annotation"))
            events.append(slice_event("aten::mm", at, took))
            at += took
        write_kineto(tmp_path / f"{name}.json", events)
    words = ["diff", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "-q", "--fail-over", "10%"]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert "steps: step: likely +60.0 %, not counted" in printed.err
    assert "A step takes 660 µs longer (+60.0 %, 3 steps: likely; record 6 to be sure)" in " ".join(
        printed.out.split()
    )
    assert main([*words, "--fail-on-likely", "--format", "junit"]) == 3
    printed = capsys.readouterr()
    assert "rankscope: steps: step: +60.0 %, over 10%" in printed.err
    suite = ET.fromstring(printed.out.encode())
    assert suite.get("failures") == "1"
    assert "the step time likely changed, by +60.0 %" in (suite.findtext("system-out") or "")


def test_odd_pairs_are_still_compared(tmp_path: Path) -> None:
    one = trace(tmp_path / "a.json", 400)
    no_steps = open_trace(
        write_kineto(tmp_path / "n.json", [kernel_event("gemm_f32", 5, 900), slice_event("aten::mm", 1, 2)])
    )
    result = diff(one, no_steps, Scope())
    assert any("new has no steps" in note for note in result.notes)
    assert {row["report"]: row["verdict"] for row in result.rows}["families"] == "slower"
    few = diff(trace(tmp_path / "f.json", 400, steps=2), trace(tmp_path / "g.json", 600, steps=2), Scope())
    assert any("2 against 2 steps are too few" in note for note in few.notes)
    assert {row["key"]: row["verdict"] for row in few.rows}["aten::mm [[4,4]]"] == "slower"
    host = open_trace(write_kineto(tmp_path / "h.json", [slice_event("aten::mm", 1, 2000)]))
    assert any("no GPU events" in note for note in diff(host, host, Scope()).notes)
    assert called(diff(host, host, Scope()).rows) == []


@pytest.mark.thorough
def test_more_ranks_than_before(tmp_path: Path) -> None:
    write(Plan(ranks=2, events_per_rank=5_000, jitter=False), tmp_path / "two")
    write(Plan(ranks=4, events_per_rank=5_000, jitter=False), tmp_path / "four")
    result = diff(Run(ingest([tmp_path / "two"])), Run(ingest([tmp_path / "four"])), Scope())
    assert "base has 2 ranks, new has 4: figures are means per rank" in result.notes
    ops = [row for row in result.rows if row["report"] == "ops"]
    assert ops and {row["change_pct"] for row in ops} == {0.0}  # the work of a rank is the same


@pytest.mark.thorough
def test_real_ranks_one_of_them_slowed_down(open_real: Callable[[Path], Run]) -> None:
    result = diff(open_real(DATA / "seqpar-gloo4"), open_real(DATA / "seqpar-gloo4-slow2"), Scope())
    assert result.findings[0].severity == "critical"
    assert result.findings[0].cost_ns == pytest.approx(13.5e6, rel=0.01)
    assert any("aten::mm [[8192,8192],[8192,8192]] is new" in finding.title for finding in result.findings)
    gloo = next(row for row in result.rows if row["key"].startswith("reduce_scatter"))
    assert gloo["verdict"] == "slower"
    assert len(by_unit(result)) == 2
    same = diff(open_real(DATA / "ddp-gloo4"), open_real(DATA / "ddp-gloo4"), Scope())
    assert called(same.rows) == [] and same.findings[0].severity == "ok"


def test_the_command_gates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace(tmp_path / "a.json", 400)
    trace(tmp_path / "b.json", 500)
    words = ["diff", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "-q"]
    assert main([*words, "--fail-over", "30%"]) == 0
    assert main([*words, "--fail-over", "3%", "--format", "junit"]) == 3
    printed = capsys.readouterr()
    assert "rankscope: ops: aten::mm [[4,4]]: +25.0 %, over 3%" in printed.err
    suite = ET.fromstring(printed.out[printed.out.index("<?xml") :].encode())
    failed = {case.get("name") for case in suite if case.find("failure") is not None}
    assert suite.get("failures") == str(len(failed)) and "aten::mm [[4,4]]" in failed
    assert "step" not in failed
    assert main([*words, "--format", "json", "-r", "ops"]) == 0
    document = json.loads(capsys.readouterr().out)
    names = ["report", "key", "base", "new", "change_pct", "p_value", "verdict"]
    assert [column["name"] for column in document["columns"]] == names
    assert {row["report"] for row in document["rows"]} == {"ops"}
    assert main([*words, "--format", "markdown"]) == 0
    assert "ops: aten::mm" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-r", "colour"], "'colour' cannot be compared"),
        (["--fail-over", "lots"], "'lots' is not a percentage"),
        (["--min-change", "-1"], "'-1' is not a percentage"),
    ],
)
def test_wrong_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["diff", str(tmp_path), str(tmp_path), *words]) == 2
    assert message in capsys.readouterr().err
