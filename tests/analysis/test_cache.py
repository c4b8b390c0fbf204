"""The cache of a run: one answer a function, dropped when the run's view changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import kernel_event, slice_event, write_kineto
from rankscope.analysis import REPORTS
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.device_events import device_events
from rankscope.analysis.core.machine import Machine
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import host_windows, periods
from rankscope.devices import Ceilings
from rankscope.timeline.run import Run, open_run
from rankscope.timeline.sql_views import NUMBERED_NAMES, VIEWS

SHIFT_NS = 7_000_000


@pytest.fixture
def run(tmp_path: Path) -> Run:
    events = [
        slice_event("ProfilerStep#1", 0, 100, cat="user_annotation"),
        slice_event("ProfilerStep#2", 100, 100, cat="user_annotation"),
        slice_event("aten::mm", 10, 20),
        slice_event("cudaDeviceSynchronize", 150, 30, cat="cuda_runtime"),
        slice_event("cudaLaunchKernel", 12, 5, cat="cuda_runtime", args={"correlation": 1}),
        kernel_event("gemm", 20, 30, 1),
        slice_event("cudaLaunchKernel", 112, 5, cat="cuda_runtime", args={"correlation": 2}),
        kernel_event("gemm", 120, 30, 2),
    ]
    return open_run([write_kineto(tmp_path / "t.json", events)])


def test_an_answer_is_computed_once_for_the_same_arguments(run: Run) -> None:
    computed: list[int] = []

    @once_per_run
    def double(run: Run, number: int) -> int:
        computed.append(number)
        return 2 * number

    assert [double(run, number) for number in (1, 1, 2, 2, 1)] == [2, 2, 4, 4, 2]
    assert computed == [1, 2, 1]  # only the latest answer is kept


def test_answers_depend_on_the_machine(run: Run) -> None:
    ceilings = Ceilings(any_peak=1e12, source="--peak")
    plain, told = (
        REPORTS["roofline"].analyse(run, scope, None) for scope in (Scope(), Scope(machine=Machine(ceilings)))
    )
    assert plain is not told
    assert REPORTS["roofline"].analyse(run, Scope(machine=Machine(ceilings)), None) is told


TIMES: dict[str, Callable[[Run], Any]] = {
    "steps": lambda run: [row["start_ns"] for row in REPORTS["steps"].analyse(run, Scope(), None).rows],
    "periods": lambda run: periods(run, Scope()).start.tolist(),
    "step windows": lambda run: host_windows(run, 0, Scope()).start.tolist(),
    "device events": lambda run: device_events(run, 0, Scope()).start.tolist(),
}


@pytest.mark.parametrize("kind", TIMES)
def test_a_shifted_run_has_shifted_times(run: Run, kind: str) -> None:
    before = TIMES[kind](run)
    shifted = run.shift(SHIFT_NS)
    assert before and TIMES[kind](shifted) == [time + SHIFT_NS for time in before]
    assert TIMES[kind](shifted.shift(-SHIFT_NS)) == before == TIMES[kind](run)


def test_every_report_works_on_a_shifted_run_and_gives_the_same_durations(run: Run) -> None:
    def durations(run: Run) -> list[Any]:
        return [
            [
                {key: value for key, value in row.items() if key not in ("start_ns", "end_ns")}
                for row in result.rows
            ]
            for result in (report.analyse(run, Scope(), None) for report in REPORTS.values())
        ]

    before = durations(run)
    shifted = run.shift(SHIFT_NS)
    assert len(run.cache) and len(shifted.cache) == 0
    assert durations(shifted) == before


def test_another_view_of_the_run_has_its_own_cache(run: Run) -> None:
    periods(run, Scope())
    kept = len(run.cache)
    raw = run.with_options(clocks="raw")
    assert (raw.clock_mode, len(raw.cache), len(run.cache)) == ("raw", 0, kept)
    run.clocks  # noqa: B018 - measures with a copy of the run
    assert len(run.cache) == kept


def test_analyses_leave_no_table_behind(run: Run) -> None:
    tables = "SELECT table_name FROM information_schema.tables ORDER BY 1"
    run.collectives  # noqa: B018 - the store labels them in a table of its own
    run.define(*VIEWS, NUMBERED_NAMES)
    before = run.rows(tables)
    for report in REPORTS.values():
        report.analyse(run, Scope(), None)
    assert [name for (name,) in run.rows(tables) if (name,) not in before] == []
