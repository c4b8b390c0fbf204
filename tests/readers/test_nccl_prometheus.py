"""NCCL Inspector's Prometheus text: its gauges come back, and what it cannot tell is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from nccl_files import prometheus_text
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.questions import QUESTIONS
from rankscope.errors import RankError, ReadError
from rankscope.readers import find_reader, identities, looks_like_a_trace
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

ROWS = [
    ("AllReduce", "4-5GB", 678.263, 9498.47),
    ("AllGather", "1-2MB", 41.5, 100.25),
    ("Send", "512-513MB", 464.9, 1154.87),
]


def write(folder: Path, gpu: int, text: str) -> Path:
    path = folder / f"nccl_inspector_metrics_{gpu:08d}-0000.prom"
    path.write_text(text)
    return path


def test_the_gauges_come_back(tmp_path: Path) -> None:
    run = Run(ingest([write(tmp_path, 3, prometheus_text(3, ROWS))]))
    assert [entry.rank for entry in run.segments] == [3]
    found = QUESTIONS["collectives.nccl"].analyse(run, Scope(), None)
    assert [
        (row["kind"], row["size_range"], row["busbw_gb_s"], row["dur_ns"], row["count"]) for row in found.rows
    ] == [
        ("all_reduce", "4-5GB", 678.263, 9_498_470, None),
        ("send", "512-513MB", 464.9, 1_154_870, None),
        ("all_gather", "1-2MB", 41.5, 100_250, None),
    ]
    assert any("cannot say who arrives late" in note for note in found.notes)
    assert run.rows("SELECT DISTINCT algorithm, protocol FROM nccl WHERE kind = 'all_reduce'") == [
        ("RING", "LL")
    ]
    title = QUESTIONS["stragglers"].analyse(run, Scope(), None)
    assert not title.rows


def test_a_page_of_several_gpus_and_other_metrics(tmp_path: Path) -> None:
    text = "# HELP node_load1 1m load average.\nnode_load1 0.5\n" + "".join(
        prometheus_text(gpu, ROWS) for gpu in (0, 1)
    )
    run = Run(ingest([write(tmp_path, 0, text)]))
    assert run.rows("SELECT rank, count(*) FROM nccl GROUP BY rank ORDER BY rank") == [(0, 3), (1, 3)]


def test_gpus_of_several_nodes_are_no_ranks(tmp_path: Path) -> None:
    for gpu in range(2):
        write(tmp_path, gpu, prometheus_text(gpu, ROWS, nodes=2, ranks=16))
    with pytest.raises(RankError, match="cannot tell the rank"):
        ingest([tmp_path])


def test_bad_lines_are_counted(tmp_path: Path) -> None:
    good = prometheus_text(0, ROWS)
    name = "nccl_bus_bandwidth_gbs"
    bad = [
        f"{name}{{",
        f"{name}{{}} x",
        f'{name}{{a="b"}} NaN',
        f"{name}{{{'x' * 1_000_000}",
        f"{name}{{}} -1",
        f"{name}{{}} 1e300",
    ]
    run = Run(ingest([write(tmp_path, 0, good + "\n".join(bad))]))
    assert run.rows("SELECT count(*) FROM nccl") == [(3,)]
    assert run.segments[0].manifest["reading"]["events_lost"] == len(bad)
    path = write(tmp_path, 1, f"{name}{{\x00\xff")
    assert find_reader(path).name == "nccl_prometheus" and looks_like_a_trace(path)
    assert [identity.rank for identity in identities(find_reader(path), path)] == [None]
    with pytest.raises(ReadError, match="no metrics of NCCL") as caught:
        ingest([path])
    assert caught.value.why and caught.value.hint
