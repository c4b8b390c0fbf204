"""Planted answers come back exactly, through the whole path: text, reader, store, analysis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankscope.analysis import REPORTS
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.health.doctor import doctor
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope_bench.synthetic import Defect, Plan, Straggler, write

pytestmark = pytest.mark.slow

PLANS = {
    "plain": Plan(ranks=2, events_per_rank=12_000),
    "straggler, clocks, gzip": Plan(
        ranks=4,
        events_per_rank=12_000,
        straggler=Straggler(2, "compute", 4_000_000),
        max_offset_ns=5_000_000,
        max_drift_ppm=50.0,
        gzip=True,
    ),
    "stacks, two groups, a rank missing": Plan(
        ranks=4, events_per_rank=20_000, with_stack=True, tensor_parallel=2, missing=(3,)
    ),
}


@pytest.fixture(scope="module", params=PLANS)
def planted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Run, Any]]:
    folder = tmp_path_factory.mktemp("synthetic")
    truth = write(PLANS[request.param], folder)
    yield Run(ingest([folder])), truth


def test_breakdown(planted: tuple[Run, Any]) -> None:
    run, truth = planted
    rows = {(row["rank"], row["step"]): row for row in REPORTS["breakdown"].analyse(run, Scope(), None).rows}
    expected = {(rank["rank"], part["step"]): part for rank in truth["ranks"] for part in rank["breakdown"]}
    assert set(rows) == set(expected)
    for key, part in expected.items():
        for name in ("span_ns", "compute_ns", "comm_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns"):
            assert rows[key][name] == part[name], (key, name)
        assert rows[key]["overlap_pct"] == pytest.approx(part["overlap_pct"])


def test_kernels_and_copies(planted: tuple[Run, Any]) -> None:
    run, truth = planted
    found = REPORTS["kernels"].analyse(run, Scope(), "rank").rows
    assert {(row["rank"], row["name"]): (row["instances"], row["total_ns"]) for row in found} == {
        (rank["rank"], kernel["name"]): (kernel["instances"], kernel["total_ns"])
        for rank in truth["ranks"]
        for kernel in rank["kernels"]
    }
    copies = REPORTS["memcpy"].analyse(run, Scope(), "rank").rows
    assert {(row["rank"], row["kind"]): (row["count"], row["total_ns"]) for row in copies} == {
        (rank["rank"], copy["name"]): (copy["instances"], copy["total_ns"])
        for rank in truth["ranks"]
        for copy in rank["copies"]
    }


def test_counts_links_steps_flops_and_memory(planted: tuple[Run, Any]) -> None:
    run, truth = planted
    shifts = {entry.rank: entry for entry in run.segments}
    flops: dict[int, dict[str, int]] = {rank: {} for rank in run.ranks}
    for row in REPORTS["ops"].analyse(run, Scope(), "rank").rows:
        if row["flops"] is not None:
            flops[row["rank"]][row["name"]] = row["flops"]
    memory = {
        row["rank"]: row
        for row in REPORTS["memory"].analyse(run, Scope(), None).rows
        if row["device"] != "CPU"
    }
    for rank in truth["ranks"]:
        number, entry = rank["rank"], shifts[rank["rank"]]
        where = f"WHERE rank = {number}"
        counts = [
            run.rows(f"SELECT count(*) FROM {view} {where}")[0][0]
            for view in ("events", "slices", "instants")
        ]
        assert counts == [rank["events"][kind] for kind in ("total", "slices", "instants")]
        assert run.rows(f"SELECT count(launch) FROM gpu {where}") == [(rank["launch_links"],)]
        shift = run.shift_ns(entry) - entry.manifest["origin_ns"]
        steps = run.rows(f"SELECT step, start_ns - {shift}, dur_ns FROM steps {where} ORDER BY step")
        assert steps == [(step["step"], step["start_ns"], step["dur_ns"]) for step in rank["steps"]]
        assert flops[number] == rank["flops"]
        assert memory[number]["peak_allocated_bytes"] == rank["peak_allocated_bytes"]
        assert memory[number]["at_ns"] - shift == rank["peak_at_ns"]


def test_every_flow_binds_to_a_slice(planted: tuple[Run, Any]) -> None:
    """As torch writes it, a runtime call that launches nothing has an arrival and no departure."""
    run, _ = planted
    assert run.rows("SELECT count(*) FROM links WHERE target IS NULL") == [(0,)]
    assert run.rows("SELECT count(*) FROM links WHERE kind = 'fwdbwd' AND source IS NULL") == [(0,)]
    launches = "SELECT count(*), count(*) FILTER (l.source = g.launch) FROM gpu g JOIN links l "
    ((all_arrows, right_arrows),) = run.rows(f"{launches} ON l.rank = g.rank AND l.target = g.id")
    assert all_arrows == right_arrows > 0


# what `doctor` must say of a file with a planted defect: check -> least verdict
DEFECTS = {
    "truncated": "files cut short",
    "truncated-gzip": "files cut short",
    "control-characters": "events repaired",
    "invalid-utf8": "events repaired",
    "lone-surrogate": "events repaired",
    "unescaped-quotes": "events repaired",
    "ts-zero": "events without a usable time",
    "negative-duration": "negative durations",
    "no-launch": "GPU events without their launch",
    "overlapping": "overlaps on one stream",
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_noticed(name: str, tmp_path: Path) -> None:
    plan = Plan(ranks=2, events_per_rank=8_000, defects=(Defect(name, 0),), gzip=name == "truncated-gzip")
    write(plan, tmp_path / "run")
    result = doctor(Run(ingest([tmp_path / "run"])), Scope())
    verdicts = {row["check"]: row["verdict"] for row in result.rows}
    assert verdicts.pop(DEFECTS[name]) != "ok"


@pytest.mark.parametrize("name", ["nan", "numbers-as-strings", "missing-fields", "one-line", "indented"])
def test_a_planted_defect_is_survived(name: str, tmp_path: Path) -> None:
    plan = Plan(ranks=2, events_per_rank=8_000, defects=(Defect(name, 0),))
    truth = write(plan, tmp_path / "run")
    run = Run(ingest([tmp_path / "run"]))
    damaged = truth["defects"][0]["damaged"]
    ((events,),) = run.rows("SELECT count(*) FROM events WHERE rank = 0")
    assert events >= 8_000 - damaged
    assert run.rows("SELECT count(*) FROM events WHERE rank = 1") == [(8_000,)]
    if name in ("one-line", "indented", "numbers-as-strings"):
        assert events == 8_000
        rows = {(r["rank"], r["step"]): r for r in REPORTS["breakdown"].analyse(run, Scope(), None).rows}
        assert rows[0, None]["compute_ns"] == truth["ranks"][0]["breakdown"][0]["compute_ns"]
