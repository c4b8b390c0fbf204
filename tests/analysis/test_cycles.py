"""A rank with several cycles of the profiler: time between them was not recorded, and is idle in no report.

A recorded run is compared with itself twice in a row, 10 s apart: shares stay, sums double.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from conftest import DATA, open_trace
from rankscope.analysis import REPORTS
from rankscope.analysis.across_ranks.heatmap import time_maps
from rankscope.analysis.core.scope import Scope
from rankscope.timeline.run import Run
from rankscope.views.charts.heatmap import rank_heatmap

pytestmark = pytest.mark.slow

APART_US = 10_000_000
RANKS = (1, 2)


class Case(NamedTuple):
    once: Run
    twice: Run
    scope: Scope

    def rows(self, report: str) -> tuple[list[Any], list[Any]]:
        pair = [REPORTS[report].analyse(run, self.scope, None).rows for run in (self.once, self.twice)]
        return list(pair[0]), list(pair[1])

    def facts(self, report: str) -> dict[str, Any]:
        return dict(REPORTS[report].analyse(self.twice, self.scope, None).facts)


def write_cycles(folder: Path, cycles: int, *, steps: bool) -> Path:
    for rank in RANKS:
        text = gzip.decompress((DATA / "seqpar-gloo4-slow2" / f"rank-{rank}-of-4.json.gz").read_bytes())
        for cycle in range(cycles):
            content = json.loads(text)
            events = [event for event in content["traceEvents"] if steps or not _is_step(event)]
            for event in events:
                if "ts" in event:
                    event["ts"] += cycle * APART_US
                if _is_step(event):
                    event["name"] = f"ProfilerStep#{int(event['name'][13:]) + 20 * cycle}"
            name = f"rank-{rank}.cycle-{cycle}.json"
            folder.mkdir(exist_ok=True)
            (folder / name).write_text(
                json.dumps({**content, "traceEvents": events, "trace_id": f"{rank} {cycle}"})
            )
    return folder


def _is_step(event: dict[str, Any]) -> bool:
    return str(event.get("name", "")).startswith("ProfilerStep#")


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, tuple[Run, Run]]:
    folder = tmp_path_factory.mktemp("cycles")
    return {
        steps: (
            open_trace(write_cycles(folder / f"one-{steps}", 1, steps=steps)),
            open_trace(write_cycles(folder / f"two-{steps}", 2, steps=steps)),
        )
        for steps in (True, False)
    }


@pytest.fixture(params=["steps", "file", "no steps"])
def case(request: pytest.FixtureRequest, opened: dict[bool, tuple[Run, Run]]) -> Case:
    once, twice = opened[request.param != "no steps"]
    return Case(once, twice, Scope(whole_file=request.param == "file"))


def doubled(once: Any, twice: Any, columns: tuple[str, ...]) -> bool:
    """Shares and averages are the same, sums are twice as large; times are rounded to ns once in each file."""
    return all(
        twice[name]
        == pytest.approx(once[name] * (2 if name.endswith(("_ns", "gaps")) else 1), rel=1e-3, abs=50)
        for name in columns
    )


@pytest.mark.parametrize(
    ("report", "columns"),
    [
        ("breakdown", ("span_ns", "compute_ns", "exposed_comm_ns", "idle_ns")),
        ("idle", ("host_bound_ns", "launch_latency_ns", "sync_ns", "other_ns")),
        ("idle.gaps", ("idle_ns", "idle_pct", "idle.gaps")),
        ("breakdown.phases", ("host_ns", "host_pct", "device_ns")),
        ("idle.launches", ("depth_avg", "empty_pct")),
        ("stragglers", ("caused_wait_ns", "host_ns", "copy_ns")),
        ("summary", ("compute_pct", "exposed_comm_pct", "idle_pct")),
    ],
)
def test_the_time_between_cycles_is_in_no_report(case: Case, report: str, columns: tuple[str, ...]) -> None:
    once, twice = case.rows(report)
    totals = [[row for row in rows if row.get("step") is None] for rows in (once, twice)]
    assert totals[0] and len(totals[0]) == len(totals[1])
    for a, b in zip(*totals, strict=True):
        assert doubled(a, b, columns), (a, b)


def test_the_critical_path_leaves_it_out(case: Case) -> None:
    sums = []
    for rows in case.rows("critical"):
        total: Counter[str] = Counter()
        for row in rows:
            total[row["class"]] += row["ns"]
        sums.append(total)
        assert sum(row["pct"] for row in rows) == pytest.approx(100)
    once, twice = sums
    assert "unrecorded" not in twice
    assert twice.total() == pytest.approx(2 * once.total(), rel=0.01)
    assert twice["compute"] == pytest.approx(2 * once["compute"], rel=0.01)
    assert case.facts("critical")["unrecorded_ns"] == pytest.approx(1e3 * APART_US - once.total(), rel=0.01)
    assert case.facts("breakdown")["unrecorded_ns"] == pytest.approx(1e3 * APART_US - once.total(), rel=0.01)


def test_costs_of_findings_are_the_same_per_step(case: Case) -> None:
    once, twice = case.rows("findings")
    per = 1 if case.scope.in_run(case.once).steps is not None or case.scope.whole_file else 2
    for a, b in zip(once, twice, strict=True):
        assert (a["severity"], a["ranks"]) == (b["severity"], b["ranks"])
        if a["cost_ns"]:
            assert b["cost_ns"] == pytest.approx(per * a["cost_ns"], rel=0.1)


def test_the_heat_map_leaves_it_blank(case: Case) -> None:
    scope = case.scope.in_run(case.twice)
    once, twice = time_maps(case.once, case.scope.in_run(case.once)), time_maps(case.twice, scope)
    for rank in RANKS:
        assert twice[rank].idle_ns == pytest.approx(2 * once[rank].idle_ns, rel=0.02)
        assert len(twice[rank].recorded.start) == 2
    chart = rank_heatmap(case.twice, scope)
    assert "blank: not recorded" in chart.subtitle
    assert "blank" not in rank_heatmap(case.once, case.scope.in_run(case.once)).subtitle


def test_steps_that_are_inferred_go_on_counting(tmp_path: Path) -> None:
    """Without ProfilerStep#N each file counts its steps from 0; the run does not have step 0 twice."""
    text = gzip.decompress((DATA / "ddp-gloo4" / "rank-0.json.gz").read_bytes())
    for cycle in range(2):
        content = json.loads(text)
        events = [event for event in content["traceEvents"] if not _is_step(event)]
        for event in events:
            if "ts" in event:
                event["ts"] += cycle * APART_US
        (tmp_path / f"rank-0.cycle-{cycle}.json").write_text(
            json.dumps({**content, "traceEvents": events, "trace_id": str(cycle)})
        )
    run = open_trace(tmp_path)
    found = run.rows("SELECT segment, list(step ORDER BY step) FROM steps GROUP BY 1 ORDER BY 1")
    assert found == [(0, [0, 1, 2]), (1, [3, 4, 5])]
    assert run.rows("SELECT max(step) FROM gpu WHERE segment = 1") == [(5,)]
    assert run.rows("SELECT min(step) FROM collectives WHERE segment = 1") == [(3,)]
