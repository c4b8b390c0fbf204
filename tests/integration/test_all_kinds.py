"""A folder with every kind of file of one rank opens as one run, and nothing is counted twice."""

from __future__ import annotations

import math
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import DATA
from flight_dumps import dump, op
from rankscope.analysis import REPORTS
from rankscope.analysis.core.result import Result
from rankscope.analysis.core.scope import Scope
from rankscope.store.ingest import Ingested, Options
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope.views.columns import fields

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(dataset: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recorded on one H200: a model under torch.profiler, nsys and a memory snapshot; GEMMs under ncu. And a hang."""
    target = tmp_path_factory.mktemp("all")
    for source, name in {
        "gpt-h200/gpt.pt.trace.json.gz": "rank-0.pt.trace.json.gz",
        "nsys/gpt-h200/gpt.sqlite": "rank-0.sqlite",
        "ncu/gemm_bf16.raw.csv": "rank-0.raw.csv",
        "ncu/gemm_bf16.details.csv": "rank-0.details.csv",
        "memory/gpt-h200.pickle.gz": "memory-0-of-2.pickle.gz",
    }.items():
        shutil.copy(dataset(source), target / name)
    hang = dump([op("0", 5, state="completed"), op("0", 6, state="started")], {"0": [0, 1]})
    for rank in (0, 1):
        (target / f"_dump_{rank}").write_bytes(pickle.dumps(hang, 2))
    (target / "notes.csv").write_text("a,b\n1,2\n")
    return target


@pytest.fixture(scope="module")
def ingested(folder: Path) -> Ingested:
    return ingest([folder])


def test_the_folder_opens_as_one_run(folder: Path, ingested: Ingested) -> None:
    assert ingested.problems == ()
    run = Run(ingested)
    assert run.ranks == [0, 1]
    formats = sorted((e.rank, e.format, e.source.name) for e in run.segments)
    assert formats == [
        (0, "flight", "_dump_0"),
        (0, "kineto", "rank-0.pt.trace.json.gz"),
        (0, "memory", "memory-0-of-2.pickle.gz"),
        (0, "ncu", "rank-0.raw.csv"),  # and not the details of the same report beside it
        (0, "nsys", "rank-0.sqlite"),
        (1, "flight", "_dump_1"),
    ]
    assert ingest([folder]).read == ()  # nothing to do the second time


def exact(result: Result) -> list[dict[str, Any]]:
    """Without the last digits of deviations, which depend on the order of the sum."""
    return [{key: value for key, value in row.items() if key != "stddev_ns"} for row in result.rows]


def test_time_counts_once(dataset: Callable[[str], Path], ingested: Ingested, tmp_path: Path) -> None:
    alone = {
        "": Run(ingest([DATA / "gpt-h200" / "gpt.pt.trace.json.gz"], Options(cache=tmp_path))),
        "nsys": Run(ingest([dataset("nsys/gpt-h200/gpt.sqlite")], Options(cache=tmp_path))),
    }
    for prefer, lone in alone.items():
        run = Run(ingested, prefer=prefer)
        for name in ("breakdown", "kernels", "ops.runtime_api", "memcpy", "ops"):
            together = REPORTS[name].analyse(run, Scope(), None)
            assert exact(together) == exact(REPORTS[name].analyse(lone, Scope(), None)), (name, prefer)
            assert any("another tool's file" in note for note in together.notes)


def test_memory_counts_once(ingested: Ingested) -> None:
    run = Run(ingested)
    rows = {row["device"]: row for row in REPORTS["memory"].analyse(run, Scope(), None).rows}
    assert rows["GPU 0"]["growth_bytes"] is not None  # the trace's, which knows the steps
    held = [
        row
        for row in REPORTS["memory.allocators"].analyse(run, Scope(), None).rows
        if row["device"] == "GPU 0"
    ]
    assert sum(row["bytes"] for row in held) == 6_432_652_760  # the snapshot's, not both


def test_each_kind_has_its_report(ingested: Ingested) -> None:
    run = Run(ingested)
    assert len(REPORTS["ncu"].analyse(run, Scope(), None).rows) == 4
    assert {row["state"] for row in REPORTS["hang.flight_recorder"].analyse(run, Scope(), None).rows} == {
        "waiting"
    }
    assert len(REPORTS["memory.fragmentation"].analyse(run, Scope(), None).rows) == 2


WITH_UNIT = re.compile(r"[+-]?[\d.,]+ (?:[numµ]?s|[kMGT]?B|%|GB/s|MHz|W|°C|[kMGTP]?FLOP(?:/s)?)")


def test_every_report_has_rows_or_notes(ingested: Ingested) -> None:
    run = Run(ingested)
    for name, report in REPORTS.items():
        for key in (None, *report.keys):
            result = report.analyse(run, Scope(), key)
            assert result.rows or result.notes, name
            numbers = [value for row in result.rows for value in row.values() if isinstance(value, float)]
            assert all(map(math.isfinite, numbers)), name
            cells = [cell for field in fields(result) for cell in field.cells]
            assert [cell for cell in cells if WITH_UNIT.fullmatch(cell)] == [], (
                "a column has one unit, in its heading"
            )
