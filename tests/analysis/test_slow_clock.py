"""A low clock as the cause of a late rank: said where it is true, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from analysis.explained import cause, explained
from gpu_logs import SECOND, Sample, query_csv, write
from rankscope.analysis import REPORTS
from rankscope.analysis.core.result import Result, Why
from rankscope.analysis.core.scope import Scope
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope_bench.synthetic.cluster import COMPUTE, Fault, Job, RankRun, simulate
from rankscope_bench.synthetic.cluster_trace import write_traces

START = 1_794_701_458_600_000_000
"""When the simulated jobs begin: 600 ms after a whole second."""
JOB = Job(data=3, steps=5, layers=2, seed=3)
OWN_NS = JOB.layers * 3 * JOB.forward_ns
THROTTLED = Fault("throttle", (1,), round(0.3 * OWN_NS))
LOW = 1350
USUAL = 1755
"""1755 / 1350 = 1.3: the kernels of a throttled rank take 1.3 times as long."""
Clock = Callable[[int, int, list[RankRun]], int]
"""From time and GPU to the clock."""


def slow_on_1(time_ns: int, gpu: int, runs: list[RankRun]) -> int:
    return LOW if gpu == 1 else USUAL


def computes(run: RankRun, time_ns: int) -> bool:
    """Whether compute kernels cover half of the millisecond from this time, short gaps between them included."""
    spans: list[list[int]] = []
    for begin, end in sorted((work.start, work.end) for work in run.works if work.stream == COMPUTE):
        if spans and begin - spans[-1][1] <= 1_000_000:
            spans[-1][1] = max(spans[-1][1], end)
        else:
            spans.append([begin, end])
    at = time_ns - START
    return sum(max(0, min(end, at + 1_000_000) - max(begin, at)) for begin, end in spans) >= 500_000


def folder_with(
    folder: Path,
    fault: Fault | None,
    clock: Clock = slow_on_1,
    every_ns: int = 2_000_000,
    reasons: Callable[[int, int], int] = lambda number, gpu: 0,
    change: Callable[[str], str] = lambda text: text,
) -> tuple[list[RankRun], list[Sample]]:
    runs = simulate(Job(data=3, steps=5, layers=2, seed=3, faults=(fault,) if fault else ()))
    write_traces(JOB, runs, folder)
    end = START + max(run.steps[-1][1] for run in runs)
    samples = [
        Sample(time, gpu, clock(time, gpu, runs), reasons=reasons(number, gpu))
        for number, time in enumerate(range(START - 10 * every_ns, end + 10 * every_ns, every_ns))
        for gpu in range(3)
    ]
    write(folder / "smi.csv", change(query_csv(samples)))
    return runs, samples


def report(folder: Path, name: str) -> Result:
    return REPORTS[name].analyse(Run(ingest([folder])), Scope(), None)


def why_late(folder: Path) -> tuple[int, Why]:
    return explained(Run(ingest([folder])))


@pytest.mark.slow
def test_a_clock_23_percent_lower_is_the_cause(tmp_path: Path) -> None:
    """In two of three samples the GPU is too hot."""
    folder_with(tmp_path, THROTTLED, reasons=lambda number, gpu: 0x20 * (gpu == 1 and number % 3 > 0))
    rank, answer = why_late(tmp_path)
    assert rank == 1
    assert re.match(
        r"its GPU runs at 1,350 MHz, the others at 1,755 MHz, thermal slowdown 6\d % of the time: its kernels take",
        answer.text,
    )
    assert "cooling" in answer.advice and answer.report == "gpu"
    clocks = [fact.value for fact in answer.facts if fact.quantity == "sm_clock_mhz"]
    assert clocks == [LOW, USUAL]
    assert cause(answer) == "compute"


@pytest.mark.slow
def test_a_limit_that_all_gpus_have_is_not_named(tmp_path: Path) -> None:
    folder_with(tmp_path, THROTTLED, reasons=lambda number, gpu: 0x4)
    assert why_late(tmp_path)[1].text.startswith(
        "its GPU runs at 1,350 MHz, the others at 1,755 MHz: its kernels take"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        Fault("compute", (1,), round(0.3 * OWN_NS)),  # one kernel more, the others as on the other ranks
        Fault("host", (1,), 3_000_000),
        Fault("throttle", (1,), round(0.8 * OWN_NS)),  # much slower than the clock explains
        Fault("throttle", (2,), round(0.3 * OWN_NS)),  # another rank
    ],
    ids=["more work", "host", "much slower", "another rank"],
)
def test_a_low_clock_that_is_not_the_cause_is_not_named(fault: Fault, tmp_path: Path) -> None:
    folder_with(tmp_path, fault)
    rank, answer = why_late(tmp_path)
    assert (rank,) == fault.ranks and "clocked" not in answer.text
    assert "1,350" in report(tmp_path, "gpu").findings[0].title, "the fact is in the report"


@pytest.mark.slow
def test_equal_clocks_are_no_cause(tmp_path: Path) -> None:
    folder_with(tmp_path, THROTTLED, lambda time, gpu, runs: USUAL - 20 * gpu)
    assert "clocked" not in why_late(tmp_path)[1].text
    assert report(tmp_path, "gpu").findings == ()


def after_1980(mhz: int) -> Clock:
    """1,980 MHz before the job, then this clock."""
    return lambda time, gpu, runs: 1980 if time < START else mhz


@pytest.mark.slow
def test_a_clock_that_is_low_on_all_ranks(tmp_path: Path) -> None:
    folder_with(tmp_path, None, after_1980(900))
    (finding,) = report(tmp_path, "gpu").findings
    expected = "The SM clock of ranks 0-2 is locked at 900 MHz while they compute, 55 % below 1,980 MHz"
    assert finding.title == expected and finding.severity == "warning" and "-rgc" in finding.hint
    assert "clock while it computes: always 900 MHz" in finding.evidence


@pytest.mark.slow
def test_a_low_clock_by_the_limit_of_power(tmp_path: Path) -> None:
    """Such a GPU is healthy. What the driver reports counts more than the log."""

    def limits(text: str) -> str:
        text = text.replace("fan.speed [%]", "clocks.max.sm [MHz]").replace("[Not Supported]", "2000 MHz")
        return text.replace("temperature.memory", "power.limit [W]").replace(", N/A,", ", 700.00 W,")

    folder_with(tmp_path, None, after_1980(1500), reasons=lambda number, gpu: 0x4, change=limits)
    (finding,) = report(tmp_path, "gpu").findings
    assert finding.title.endswith(
        "at 1,500 MHz while they compute, 25 % below 2,000 MHz, power cap 100 % of the time"
    )
    assert finding.severity == "info" and "power: 652 W of 700 W" in finding.evidence


@pytest.mark.slow
def test_a_clock_near_its_highest_is_no_finding(tmp_path: Path) -> None:
    folder_with(tmp_path, None, after_1980(1850))
    assert not report(tmp_path, "gpu").findings


@pytest.mark.slow
def test_the_clock_of_an_idle_gpu_is_not_compared(tmp_path: Path) -> None:
    """GPU 1 is slow only between its compute kernels, and before and after the steps."""

    def idle_low(time: int, gpu: int, runs: list[RankRun]) -> int:
        return LOW if gpu == 1 and not computes(runs[1], time) else USUAL

    folder_with(tmp_path, THROTTLED, idle_low)
    assert "clocked" not in why_late(tmp_path)[1].text
    rows = {row["rank"]: row for row in report(tmp_path, "gpu").rows}
    assert rows[1]["sm_clock_mhz"] == USUAL and rows[1]["samples"] > 3


@pytest.mark.slow
def test_too_few_samples_make_no_claim(tmp_path: Path) -> None:
    folder_with(tmp_path, THROTTLED, every_ns=30_000_000)
    assert "clocked" not in why_late(tmp_path)[1].text
    result = report(tmp_path, "gpu")
    assert result.findings == () and any("fewer than 3 samples" in note for note in result.notes)


@pytest.mark.slow
def test_samples_outside_the_traces_are_left_out(tmp_path: Path) -> None:
    """One sample every ten seconds: the log covers the traces, and none of its samples does."""
    folder_with(tmp_path, THROTTLED, every_ns=10 * SECOND)
    assert "clocked" not in why_late(tmp_path)[1].text
    assert [row["samples"] for row in report(tmp_path, "gpu").rows] == [0, 0, 0]


@pytest.mark.slow
def test_another_model_is_not_compared(tmp_path: Path) -> None:
    folder_with(
        tmp_path,
        THROTTLED,
        change=lambda text: text.replace("GPU-0000-1, NVIDIA H200", "GPU-0000-1, NVIDIA H100"),
    )
    assert "clocked" not in why_late(tmp_path)[1].text
    assert report(tmp_path, "gpu").findings == ()


@pytest.mark.slow
def test_times_in_whole_seconds_need_whole_seconds_of_work(tmp_path: Path) -> None:
    """As dcgmi with `date +%s` writes them: when in its second a sample was taken is not known."""
    folder_with(tmp_path, THROTTLED, every_ns=SECOND // 10, change=_whole_seconds)
    assert "clocked" not in why_late(tmp_path)[1].text
    assert {row["samples"] for row in report(tmp_path, "gpu").rows} == {0}


def _whole_seconds(text: str) -> str:
    head, *lines = text.splitlines()
    return "\n".join([head, *(f"{line[:20]}000{line[23:]}" for line in lines)]) + "\n"


@pytest.mark.slow
def test_figures_are_those_of_a_plain_count(tmp_path: Path) -> None:
    chance = np.random.default_rng(4)
    clocks = {(gpu, number): int(chance.integers(1000, 2000)) for gpu in range(3) for number in range(2000)}
    runs, samples = folder_with(
        tmp_path, None, lambda time, gpu, runs: clocks[gpu, (time - START) // 2_000_000 % 2000]
    )
    rows = {row["rank"]: row for row in report(tmp_path, "gpu").rows}
    for rank, run in enumerate(runs):
        own = [one for one in samples if one.gpu == rank and computes(run, one.time_ns)]
        values = [one.sm_mhz for one in own]
        assert rows[rank]["samples"] == len(own)
        assert rows[rank]["sm_clock_mhz"] == pytest.approx(sum(values) / len(values), abs=0.001)
        assert (rows[rank]["sm_clock_min_mhz"], rows[rank]["sm_clock_max_mhz"]) == (min(values), max(values))
        assert (rows[rank]["power_w"], rows[rank]["temperature_c"], rows[rank]["thermal_pct"]) == (
            651.5,
            60,
            0,
        )


def test_a_run_without_a_log_says_how_to_record_one(tmp_path: Path) -> None:
    write_traces(JOB, simulate(JOB), tmp_path)
    result = report(tmp_path, "gpu")
    assert not result.rows and "nvidia-smi --query-gpu=timestamp,index" in result.notes[0]
