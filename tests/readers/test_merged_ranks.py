"""Files as serving frameworks leave them: all ranks in one file, and ranks in names only."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from conftest import kernel_event, slice_event, write_kineto
from rankscope.readers.base import identity_from_name, rank_from_name, ranks_by_label
from rankscope.readers.kineto.reader import KINETO
from rankscope.store.ingest import IngestProgress, Options
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run


def trace_of(rank: int) -> dict[str, Any]:
    """The same ids, streams and process numbers on every rank, as separate processes have them."""
    events: list[dict[str, Any]] = [
        {
            "ph": "M",
            "name": "process_name",
            "pid": 4000 + rank,
            "tid": 0,
            "ts": 0,
            "args": {"name": "python"},
        },
        {"ph": "M", "name": "process_sort_index", "pid": 0, "tid": 0, "ts": 0, "args": {"sort_index": 5}},
    ]
    for i in range(4):
        at = 1000.0 * i
        host: dict[str, Any] = {"pid": 4000 + rank, "tid": 4000 + rank}
        events.append(slice_event("aten::mm", at, 60.0, args={"External id": i + 1}, **host))
        call = {"correlation": i + 1, "External id": i + 1}
        events.append(slice_event("cudaLaunchKernel", at + 10, 5.0, cat="cuda_runtime", args=call, **host))
        events.append({"ph": "s", "id": i + 1, "name": "ac2g", "cat": "ac2g", "ts": at + 10, **host})
        events.append(kernel_event(f"gemm_{rank}", at + 100, 100.0 + rank, correlation=i + 1))
        events.append(
            {
                "ph": "f",
                "id": i + 1,
                "name": "ac2g",
                "cat": "ac2g",
                "ts": at + 100,
                "pid": 0,
                "tid": 7,
                "bp": "e",
            }
        )
    info = {"backend": "nccl", "rank": rank, "world_size": 4}
    return {"schemaVersion": 1, "distributedInfo": info, "baseTimeNanoseconds": 10**18, "traceEvents": events}


def merged(path: Path, labels: dict[str, int]) -> Path:
    """As sglang/srt/utils/profile_merger.py does it: the label before each pid, the first file's other fields last."""
    whole: dict[str, Any] = {"traceEvents": []}
    for label, rank in labels.items():
        trace = trace_of(rank)
        for event in trace.pop("traceEvents"):
            whole["traceEvents"].append(event | {"pid": f"[{label}] {event['pid']}"})
        for key, value in trace.items():
            whole.setdefault(key, value)
    path.write_bytes(gzip.compress(json.dumps(whole).encode()))
    return path


LABELS = {"TP00": 0, "TP01": 1, "TP02": 2, "TP03": 3}


def test_a_merged_file_is_read_as_its_ranks(tmp_path: Path) -> None:
    path = merged(tmp_path / "merged-17.trace.json.gz", LABELS)
    run = Run(ingest([path]))
    assert run.ranks == [0, 1, 2, 3]
    assert run.rows("SELECT rank, name, op_name, device, count(*) FROM gpu GROUP BY ALL ORDER BY ALL") == [
        (rank, f"gemm_{rank}", "aten::mm", 0, 4) for rank in range(4)
    ]
    assert run.rows("SELECT DISTINCT rank, pid FROM tracks WHERE kind = 'thread' ORDER BY ALL") == [
        (rank, str(4000 + rank)) for rank in range(4)
    ]
    assert run.rows(
        "SELECT rank, count(*) FROM links WHERE source IS NOT NULL AND target IS NOT NULL GROUP BY 1"
    )
    assert {entry.world_size for entry in run.segments} == {4}


def test_each_rank_of_a_merged_file_is_what_its_own_file_is(tmp_path: Path) -> None:
    one = Run(ingest([merged(tmp_path / "merged-17.trace.json.gz", LABELS)]))
    for rank in range(4):
        trace = trace_of(rank)
        write_kineto(tmp_path / "parts" / f"rank-{rank}.json", trace.pop("traceEvents"), **trace)
    several = Run(ingest([tmp_path / "parts"]))
    for table in ("slices", "gpu", "tracks", "links", "steps"):
        # Ids are places in the file.
        columns = "* EXCLUDE (id, op, launch, parent)" if table in ("slices", "gpu") else "*"
        columns = "kind, flow, source_ns, target_ns, rank" if table == "links" else columns
        sql = f"SELECT {columns} FROM {table} ORDER BY ALL"
        assert one.rows(sql) == several.rows(sql), table


def test_a_merged_file_that_is_given_a_rank_is_that_rank(tmp_path: Path) -> None:
    path = merged(tmp_path / "merged-17.trace.json.gz", {"TP00": 0, "TP01": 1})
    run = Run(ingest([path], Options(ranks={path: 5})))
    assert run.rows("SELECT rank, count(*) FROM gpu GROUP BY 1") == [(5, 8)]


def test_a_merged_file_beside_the_files_of_its_ranks_is_not_read_twice(tmp_path: Path) -> None:
    merged(tmp_path / "merged-17.trace.json.gz", {"TP00": 0, "TP01": 1})
    for rank in range(2):
        trace = trace_of(rank)
        text = json.dumps(trace).encode()
        (tmp_path / f"17-TP-{rank}.trace.json.gz").write_bytes(gzip.compress(text))
    said: list[str] = []
    run = Run(ingest([tmp_path], progress=IngestProgress(say=said.append)))
    assert sorted(entry.source.name for entry in run.segments) == [
        "17-TP-0.trace.json.gz",
        "17-TP-1.trace.json.gz",
    ]
    assert run.rows("SELECT rank, count(*) FROM gpu GROUP BY 1 ORDER BY 1") == [(0, 4), (1, 4)]


@pytest.mark.parametrize(
    ("labels", "ranks"),
    [
        (["TP00", "TP01"], [0, 1]),
        (["TP03"], [3]),
        (
            ["TP00-DP00-EP00", "TP01-DP00-EP01", "TP02-DP01-EP02"],
            [0, 1, 2],
        ),  # data parallelism of the attention
        (["TP00-DP00", "TP00-DP01", "TP01-DP00", "TP01-DP01"], [0, 2, 1, 3]),  # two engines of two ranks
        (["TP00-PP00", "TP01-PP00", "TP00-PP01", "TP01-PP01"], [0, 1, 2, 3]),
    ],
)
def test_the_ranks_that_labels_mean(labels: list[str], ranks: list[int]) -> None:
    assert [ranks_by_label(labels)[label] for label in labels] == ranks


def test_names_of_serving_traces_give_the_rank(tmp_path: Path) -> None:
    """Without distributedInfo, one stage in each file."""
    for rank in range(2):
        events = trace_of(rank)["traceEvents"]
        write_kineto(tmp_path / f"1755-TP-{rank}-DECODE.trace.json", events)
    run = Run(ingest([tmp_path]))
    assert run.rows("SELECT rank, any_value(name) FROM gpu GROUP BY 1 ORDER BY 1") == [
        (0, "gemm_0"),
        (1, "gemm_1"),
    ]
    assert {entry.rank_source for entry in run.segments} == {"file name"}
    for pipeline in range(2):
        for tensor in range(2):
            (tmp_path / "pp" / f"9-TP-{tensor}-PP-{pipeline}-DECODE.trace.json.gz").parent.mkdir(
                exist_ok=True
            )
            (tmp_path / "pp" / f"9-TP-{tensor}-PP-{pipeline}-DECODE.trace.json.gz").touch()
    assert identity_from_name(tmp_path / "pp" / "9-TP-1-PP-1-DECODE.trace.json.gz").rank == 3


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        (
            "nccl_trace_rank_container-node02_5",
            5,
        ),  # torch/csrc/distributed/c10d/FlightRecorder: prefix and rank
        ("nccl_trace_rank_7", 7),
        ("comm_lib_trace_rank_3", 3),
        ("comm_lib_trace_rank_gpu-a100-17_12.json", 12),
        ("nccl_trace_rank_node02", None),
        ("my_trace_5", None),
    ],
)
def test_names_of_flight_recorder_dumps(name: str, rank: int | None) -> None:
    assert rank_from_name(Path(name)) == rank


def test_an_ordinary_trace_is_one_part(tmp_path: Path) -> None:
    events = [slice_event("pid [TP00] in a name", 0, 1), slice_event("b", 1, 1, args={"pid": "[TP00]"})]
    assert [each.part for each in KINETO.identify_parts(write_kineto(tmp_path / "rank-2.json", events))] == [
        ""
    ]
