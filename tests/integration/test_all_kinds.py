"""One folder with every kind of file of one rank: it opens as one run, and nothing is counted twice."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from rankscope.analysis import REPORTS
from rankscope.analysis.core.result import Result
from rankscope.analysis.core.scope import Scope
from rankscope.store.ingest import Ingested, Options, ingest
from rankscope.store.run import Run


@pytest.fixture(scope="module")
def folder(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one H200: the same model under torch.profiler, nsys and a memory snapshot; products under ncu; a hang."""
    target = tmp_path_factory.mktemp("all")
    for source, name in {
        "kineto/gpt-h200/gpt.pt.trace.json.gz": "rank-0.pt.trace.json.gz",
        "nsys/gpt-h200/gpt.sqlite": "rank-0.sqlite",
        "ncu/gemm_bf16.raw.csv": "rank-0.raw.csv",
        "ncu/gemm_bf16.details.csv": "rank-0.details.csv",
        "memory/gpt-h200.pickle.gz": "memory-0-of-2.pickle.gz",
        "public/flight-recorder/gpu_error_1st/_dump_0": "_dump_0",
        "public/flight-recorder/gpu_error_1st/_dump_1": "_dump_1",
    }.items():
        shutil.copy(shared / source, target / name)
    (target / "notes.csv").write_text("a,b\n1,2\n")
    return target


@pytest.fixture(scope="module")
def ingested(folder: Path) -> Ingested:
    return ingest([folder])


def test_one_run(folder: Path, ingested: Ingested) -> None:
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


def test_time_counts_once(shared: Path, ingested: Ingested, tmp_path: Path) -> None:
    alone = {
        "": Run(ingest([shared / "kineto" / "gpt-h200" / "gpt.pt.trace.json.gz"], Options(cache=tmp_path))),
        "nsys": Run(ingest([shared / "nsys" / "gpt-h200" / "gpt.sqlite"], Options(cache=tmp_path))),
    }
    for prefer, lone in alone.items():
        run = Run(ingested, prefer=prefer)
        for name in ("breakdown", "kernels", "api", "memcpy", "ops"):
            together = REPORTS[name].analyse(run, Scope(), None)
            assert exact(together) == exact(REPORTS[name].analyse(lone, Scope(), None)), (name, prefer)
            assert any("another tool's file" in note for note in together.notes)


def test_memory_counts_once(ingested: Ingested) -> None:
    run = Run(ingested)
    rows = {row["device"]: row for row in REPORTS["memory"].analyse(run, Scope(), None).rows}
    assert rows["GPU 0"]["growth_bytes"] is not None  # the trace's, which knows the steps
    held = [row for row in REPORTS["allocators"].analyse(run, Scope(), None).rows if row["device"] == "GPU 0"]
    assert sum(row["bytes"] for row in held) == 6_432_652_760  # the snapshot's, not both


def test_each_kind_speaks(ingested: Ingested) -> None:
    run = Run(ingested)
    assert len(REPORTS["ncu"].analyse(run, Scope(), None).rows) == 4
    assert {row["state"] for row in REPORTS["flight"].analyse(run, Scope(), None).rows} == {"waiting"}
    assert len(REPORTS["fragments"].analyse(run, Scope(), None).rows) == 2


def test_every_report_of_it(ingested: Ingested) -> None:
    run = Run(ingested)
    for name, report in REPORTS.items():
        for key in (None, *report.keys):
            result = report.analyse(run, Scope(), key)
            assert result.rows or result.notes, name
            numbers = [value for row in result.rows for value in row.values() if isinstance(value, float)]
            assert all(map(math.isfinite, numbers)), name
