"""Logs of a node's GPUs: whose GPU it is, and when, is told from the traces beside them."""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_logs import SECOND, Sample, evenly, prometheus, query_csv, write
from rankscope.errors import RankError, ReadError
from rankscope.readers.base import LOCAL, UNIX, LoggedDevice, NodeLog, NodePart
from rankscope.store.ingest import IngestProgress, Options
from rankscope.store.node_logs import shift_ns
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

START = 1_794_701_458 * SECOND
HOUR = 3600 * SECOND


def trace(
    folder: Path,
    rank: int,
    device: int = 0,
    host: str = "",
    seconds: int = 4,
    begin_ns: int = START,
    world: int = 2,
) -> Path:
    """A trace with two kernels, at its beginning and its end."""
    kernels = [
        {"ph": "X", "cat": "kernel", "name": "k", "pid": device, "tid": 7, "ts": at * 1e6, "dur": 1000.0,
         "args": {"device": device, "stream": 7}}
        for at in (0, seconds)
    ]  # fmt: skip
    content = {
        "baseTimeNanoseconds": begin_ns,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world},
        "traceEvents": kernels,
    }
    if host:
        content["host_name"] = host
    path = folder / f"rank-{rank}.json.gz"
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


def samples_of(folder: Path, **options: object) -> dict[int, dict[str, int]]:
    """By rank, the number of samples of each GPU."""
    run = Run(ingest([folder], Options(**options)))  # type: ignore[arg-type]
    rows = run.rows(
        "SELECT rank, name, count(*) FROM counters WHERE series = 'SM clock (MHz)' GROUP BY ALL ORDER BY ALL"
    )
    found: dict[int, dict[str, int]] = {}
    for rank, name, count in rows:
        found.setdefault(rank, {})[name] = count
    return found


def problems_of(folder: Path) -> list[str]:
    return [str(problem) for problem in ingest([folder]).problems]


def around(gpus: list[int], every_ns: int = SECOND) -> list[Sample]:
    return evenly(START - 10 * SECOND, START + 20 * SECOND, every_ns, gpus)


def test_each_rank_has_the_samples_of_its_device_and_its_time(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace(tmp_path, rank, device=rank)
    write(tmp_path / "smi.csv", query_csv(around([0, 1, 2])))
    assert samples_of(tmp_path) == {0: {"GPU 0": 5}, 1: {"GPU 1": 5}}


def test_processes_that_see_one_gpu_each_have_them_in_order(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace(tmp_path, rank, device=0)
    write(tmp_path / "smi.csv", query_csv(around([4, 6])))
    assert samples_of(tmp_path) == {0: {"GPU 4": 5}, 1: {"GPU 6": 5}}


def test_a_uuid_tells_the_gpu(tmp_path: Path) -> None:
    """As in reports of nsys, which have it without the GPU- before it."""
    path = trace(tmp_path, 0, device=0, world=1)
    content = json.loads(gzip.decompress(path.read_bytes()))
    content["deviceProperties"] = [{"id": 0, "name": "NVIDIA H200", "uuid": "0000-2"}]
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    write(tmp_path / "smi.csv", query_csv(around([0, 1, 2, 3])))
    assert samples_of(tmp_path) == {0: {"GPU 2": 5}}


def test_a_process_may_use_several_gpus(tmp_path: Path) -> None:
    path = trace(tmp_path, 0, device=1, world=1)
    content = json.loads(gzip.decompress(path.read_bytes()))
    first = content["traceEvents"][0]
    content["traceEvents"].append({**first, "pid": 2, "args": {"device": 2, "stream": 7}})
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    write(tmp_path / "smi.csv", query_csv(around([0, 1, 2, 3])))
    assert samples_of(tmp_path) == {0: {"GPU 1": 5, "GPU 2": 5}}


def test_gpus_that_cannot_be_told_apart_are_an_error(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace(tmp_path, rank, device=0)
    write(tmp_path / "smi.csv", query_csv(around([0, 1, 2])))
    (problem,) = problems_of(tmp_path)
    assert "cannot tell the ranks of the 3 GPUs" in problem and "ingest --rank" in problem
    assert samples_of(tmp_path) == {}


def test_the_rank_can_be_given(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace(tmp_path, rank, device=0)
    path = write(tmp_path / "smi.csv", query_csv(around([5])))
    assert samples_of(tmp_path, ranks={path: 1}) == {1: {"GPU 5": 5}}


def test_the_host_is_in_the_name_of_the_log(tmp_path: Path) -> None:
    for rank in range(4):
        trace(tmp_path, rank, device=rank % 2, host=f"node{1 + 9 * (rank // 2)}.cluster", world=4)
    write(tmp_path / "gpu-node1.csv", query_csv(around([0, 1], SECOND // 2)))
    write(tmp_path / "node10.txt", query_csv(around([0, 1])))
    assert samples_of(tmp_path) == {0: {"GPU 0": 9}, 1: {"GPU 1": 9}, 2: {"GPU 0": 5}, 3: {"GPU 1": 5}}
    write(tmp_path / "other.csv", query_csv(around([0, 1])))
    (problem,) = problems_of(tmp_path)
    assert "cannot tell the node" in problem and "node1, node10" in problem


def test_the_host_is_in_the_log(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace(tmp_path, rank, device=0, host=f"node{rank}")
    write(tmp_path / "a.prom", prometheus(around([0]), host="node1"))
    assert samples_of(tmp_path) == {1: {"GPU 0": 5}}


def test_a_log_without_numbers_is_of_the_only_rank(tmp_path: Path) -> None:
    trace(tmp_path, 0, device=0, world=1)
    write(tmp_path / "smi.csv", query_csv(around([3])).replace("index, uuid,", "serial, pci.device,"))
    assert samples_of(tmp_path) == {0: {"GPU": 5}}
    trace(tmp_path, 1, device=1, world=1)
    (problem,) = problems_of(tmp_path)
    assert "no rank used the GPUs" in problem


def test_a_log_without_traces_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "smi.csv", query_csv(around([0])))
    for given in (tmp_path, path):
        with pytest.raises(RankError, match="there is no trace"):
            ingest([given])


def test_a_log_of_another_day_is_reported_and_the_traces_are_read(tmp_path: Path) -> None:
    trace(tmp_path, 0, world=1)
    write(tmp_path / "smi.csv", query_csv(evenly(START + 100 * HOUR, START + 101 * HOUR, 60 * SECOND, [0])))
    (problem,) = problems_of(tmp_path)
    assert "no samples of the time of the traces" in problem and "UTC" in problem


def test_the_zone_is_said_and_the_store_is_not_read_again(tmp_path: Path) -> None:
    trace(tmp_path, 0, world=1)
    write(tmp_path / "smi.csv", query_csv(around([0]), zone_s=5 * 3600 + 2700))
    said: list[str] = []
    first = ingest([tmp_path], progress=IngestProgress(say=said.append))
    assert [entry.format for entry in first.read] == ["kineto", "gpu-counters"]
    assert any("UTC+05:45" in text for text in said)
    assert ingest([tmp_path]).read == ()


@pytest.mark.slow
def test_a_log_that_comes_later_is_added_and_one_that_goes_is_removed(tmp_path: Path) -> None:
    trace(tmp_path, 0, device=0)
    assert samples_of(tmp_path) == {}
    path = write(tmp_path / "smi.csv", query_csv(around([0, 1])))
    added = ingest([tmp_path])
    assert [entry.format for entry in added.read] == ["gpu-counters"]
    trace(tmp_path, 1, device=1)
    assert samples_of(tmp_path) == {0: {"GPU 0": 5}, 1: {"GPU 1": 5}}
    trace(tmp_path, 0, device=0, seconds=8)
    assert samples_of(tmp_path) == {0: {"GPU 0": 9}, 1: {"GPU 1": 5}}
    path.unlink()
    assert samples_of(tmp_path) == {}


@pytest.fixture
def in_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "XXX-3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def log(clock: str, first: int, last: int) -> NodeLog:
    return NodeLog((LoggedDevice(0),), clock, first, last)


def test_zones(tmp_path: Path, in_zone: None) -> None:
    path = write(tmp_path / "smi.csv", "")
    end = START + 4 * SECOND
    assert shift_ns(path, log(UNIX, START, end), START, end) == 0
    for quarters in (-48, -14, 0, 1, 23, 56):
        shift = -quarters * HOUR // 4
        local = log(LOCAL, START - shift - 60 * SECOND, end - shift + 60 * SECOND)
        assert shift_ns(path, local, START, end) == shift
    # Many zones fit a log of 20 hours: the file's time of change decides, then the zone of this machine.
    long = log(LOCAL, START - 8 * HOUR, START + 12 * HOUR)
    assert shift_ns(path, long, START, end) == -3 * HOUR
    changed = START + 12 * HOUR + 5 * HOUR + SECOND
    os.utime(path, ns=(changed, changed))
    assert shift_ns(path, long, START, end) == 5 * HOUR
    with pytest.raises(ReadError, match="no samples of the time"):
        shift_ns(path, log(UNIX, START + HOUR, START + 2 * HOUR), START, end)
    # Of half an hour, in a zone of whole hours far from here.
    half = log(LOCAL, START - 7 * HOUR - 600 * SECOND, START - 7 * HOUR + 1200 * SECOND)
    assert shift_ns(path, half, START, end) == 7 * HOUR
    far = log(LOCAL, START + 4 * HOUR, START + 8 * HOUR)
    with pytest.raises(ReadError, match="cannot tell the time zone"):
        shift_ns(path, far, START, end)


def test_parts_are_written_and_read() -> None:
    part = NodePart(("3", "GPU-0 x"), -7_200 * SECOND, START, START + 1)
    assert NodePart.parse(str(part)) == part
