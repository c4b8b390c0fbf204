"""What ingest makes of events: links, steps, tracks, flows, counters, every kind of event."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import DATA, kernel_event, open_trace, slice_event, write_kineto
from rankscope.model import COLLECTIVES, COUNTERS
from rankscope.readers.columns import NO_ARGS, joined_texts, text_spans
from rankscope.text.json_values import all_arguments, arguments
from rankscope.timeline.run import Run
from rankscope.timeline.sql_views import VIEWS, describe


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One step: module -> op -> launch -> kernel, with a flow, counters, async and begin/end events."""
    host: dict[str, Any] = {"pid": 10, "tid": 11}
    events: list[Any] = [
        slice_event("ProfilerStep#4", 100, 100, cat="user_annotation", **host),
        slice_event("train.py(12): loop", 100, 90, cat="python_function", **host),
        slice_event("nn.Module: Linear_0", 101, 50, cat="python_function", **host),
        slice_event("torch/nn/linear.py(9): forward", 102, 48, cat="python_function", **host),
        slice_event("aten::linear", 103, 40, args={"External id": 5, "Input Dims": [[2, 3], [4, 3]]}, **host),
        slice_event("aten::mm", 104, 30, args={"External id": 6}, **host),
        slice_event(
            "cudaLaunchKernel", 110, 4, cat="cuda_runtime", args={"correlation": 9, "External id": 6}, **host
        ),
        kernel_event("gemm", 300, 20.5, correlation=9),
        kernel_event("orphan", 250, 5, correlation=77, stream=8),
        kernel_event("by external id", 150, 5, correlation=78, stream=8, **{"External id": 5}),
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 9, "ts": 110, **host},
        {"ph": "f", "cat": "ac2g", "name": "ac2g", "id": 9, "pid": 0, "tid": 7, "ts": 300, "bp": "e"},
        {"ph": "f", "cat": "ac2g", "name": "ac2g", "id": 55, "pid": 0, "tid": 7, "ts": 300, "bp": "e"},
        {"ph": "C", "name": "power", "pid": 0, "tid": 0, "ts": 120, "args": {"watts": 300, "limit": "700"}},
        {"ph": "B", "cat": "x", "name": "outer", "ts": 400, **host},
        {"ph": "B", "cat": "x", "name": "inner", "ts": 410, **host},
        {"ph": "E", "ts": 420, **host},
        {"ph": "E", "ts": 430, **host},
        {"ph": "b", "cat": "net", "name": "request", "id": "0x1", "ts": 440, **host},
        {"ph": "e", "cat": "net", "name": "request", "id": "0x1", "ts": 445, **host},
        {"ph": "i", "cat": "", "name": "mark", "s": "t", "ts": 130, **host},
        {"ph": "M", "name": "thread_name", "ts": 0, "args": {"name": "thread 11 (main)"}, **host},
        {"ph": "M", "name": "process_name", "ts": 0, "pid": 10, "tid": 0, "args": {"name": "python"}},
        {"ph": "P", "name": "sample", "ts": 130, **host},
    ]
    path = tmp_path_factory.mktemp("run") / "trace.json"
    return open_trace(write_kineto(path, events, baseTimeNanoseconds=1_000_000_000_000_000_000))


def names(run: Run, sql: str) -> list[Any]:
    return run.rows(sql)


@pytest.mark.slow
def test_every_event_is_kept(run: Run) -> None:
    assert run.rows("SELECT count(*), count(DISTINCT id) FROM events") == [(24, 24)]
    assert run.rows("SELECT args->>'watts' FROM events WHERE ph = 'C'") == [("300",)]


def test_kernel_to_launch_to_op_to_module_to_line(run: Run) -> None:
    sql = """
        SELECT l.name, o.name, m.name, p.name FROM gpu g
        JOIN slices l ON l.id = g.launch JOIN slices o ON o.id = g.op
        JOIN slices m ON m.id = g.module JOIN slices p ON p.id = g.python WHERE g.name = 'gemm'
    """
    assert run.rows(sql) == [("cudaLaunchKernel", "aten::mm", "nn.Module: Linear_0", "train.py(12): loop")]


def test_without_a_launch_the_external_id_tells_the_op(run: Run) -> None:
    rows = run.rows(
        "SELECT g.launch, o.name FROM gpu g JOIN slices o ON o.id = g.op WHERE g.name = 'by external id'"
    )
    assert rows == [(None, "aten::linear")]
    assert run.rows("SELECT launch, op FROM gpu WHERE name = 'orphan'") == [(None, None)]


def test_device_activity_belongs_to_the_step_of_its_launch(run: Run) -> None:
    """The kernel without a launch starts before the first one launched in a step, so it is backlog."""
    rows = run.rows("SELECT name, step FROM gpu ORDER BY name")
    assert rows == [("by external id", None), ("gemm", 4), ("orphan", None)]


def test_parents_depths_and_self_time(run: Run) -> None:
    sql = """
        SELECT s.depth, p.name, s.self_ns FROM slices s JOIN slices p ON p.id = s.parent
        WHERE s.name = 'aten::linear'
    """
    assert run.rows(sql) == [(4, "torch/nn/linear.py(9): forward", 10_000)]


def test_tracks_have_real_names(run: Run) -> None:
    rows = run.rows("SELECT kind, label, process, slices, rows FROM tracks WHERE slices > 0 ORDER BY track")
    assert rows == [
        ("async", "net (async)", "python", 1, 1),
        ("stream", "GPU 0 stream 7", None, 1, 1),
        ("stream", "GPU 0 stream 8", None, 2, 1),
        ("thread", "thread 11 (main)", "python", 9, 7),
    ]


def linked(folder: Path, *flows: tuple[str, int]) -> list[Any]:
    """The links of flow events of one id: phase and time."""
    events: list[Any] = [slice_event(f"at {at}", at, 5) for at in range(0, 100, 10)]
    for phase, at in flows:
        events.append({"ph": phase, "cat": "c", "name": "c", "id": 9, "ts": at + 1, "pid": 1, "tid": 1})
    return open_trace(write_kineto(folder / "trace.json", events)).rows(
        "SELECT s.name, t.name FROM links l LEFT JOIN slices s ON s.id = l.source "
        "LEFT JOIN slices t ON t.id = l.target ORDER BY coalesce(target_ns, source_ns)"
    )


@pytest.mark.slow
def test_a_flow_goes_to_the_next_in_time(tmp_path: Path) -> None:
    """An id that is used again is another flow; one start may have several ends."""
    steps = linked(tmp_path, ("s", 0), ("t", 10), ("f", 20))
    assert steps == [("at 0", "at 10"), ("at 10", "at 20")]
    again = linked(tmp_path, ("f", 30), ("s", 0), ("f", 10), ("s", 20))
    assert again == [("at 0", "at 10"), ("at 20", "at 30")]
    several = linked(tmp_path, ("s", 0), ("f", 10), ("f", 20), ("f", 30))
    assert several == [("at 0", "at 10"), ("at 0", "at 20"), ("at 0", "at 30")]
    early = linked(tmp_path, ("f", 0), ("s", 10))
    assert early == [(None, "at 0"), ("at 10", None)]


@pytest.mark.slow
def test_a_flow_id_that_is_used_often_gives_few_links(tmp_path: Path) -> None:
    events = [
        {"ph": phase, "cat": "c", "name": "c", "id": 9, "ts": at, "pid": 1, "tid": 1}
        for at in range(20_000)
        for phase in "sf"
    ]
    run = open_trace(write_kineto(tmp_path / "trace.json", [slice_event("op", 0, 30_000), *events]))
    assert run.rows("SELECT count(*), count(*) FILTER (target_ns < source_ns) FROM links") == [(20_000, 0)]


def test_flows_bind_to_slices(run: Run) -> None:
    sql = """
        SELECT l.flow, s.name, t.name FROM links l LEFT JOIN slices s ON s.id = l.source
        LEFT JOIN slices t ON t.id = l.target ORDER BY l.flow
    """
    assert run.rows(sql) == [("55", None, "gemm"), ("9", "cudaLaunchKernel", "gemm")]


def test_begin_end_and_async_events_become_slices(run: Run) -> None:
    rows = run.rows(
        "SELECT name, dur_ns FROM slices WHERE name IN ('outer', 'inner', 'request') ORDER BY name"
    )
    assert rows == [("inner", 10_000), ("outer", 30_000), ("request", 5_000)]


def test_counters_and_instants(run: Run) -> None:
    rows = run.rows("SELECT name, series, value, ts_ns FROM counters ORDER BY series")
    assert rows == [("power", "limit", 700.0, 20_000), ("power", "watts", 300.0, 20_000)]
    assert run.rows("SELECT name, step, ts_ns FROM instants") == [("mark", 4, 30_000)]


def test_times_count_from_the_runs_start(run: Run) -> None:
    assert run.rows("SELECT min(start_ns) FROM slices") == [(0,)]
    assert run.start_unix_ns == 1_000_000_000_000_100_000


def test_views_have_the_documented_columns(run: Run) -> None:
    for view in VIEWS:
        actual = [row[0] for row in run.rows(f"DESCRIBE {view.name}")]
        assert actual == [field.name for field in describe(view)], view.name


def test_ranks_stand_on_one_time_axis(open_real: Callable[[Path], Run]) -> None:
    run = open_real(DATA / "ddp-gloo4")
    starts = dict(run.rows("SELECT rank, min(start_ns) FROM slices GROUP BY rank"))
    origins = {entry.rank: entry.unix_origin_ns for entry in run.segments}
    assert min(starts.values()) == 0
    assert all(starts[r] - starts[0] == origins[r] - origins[0] for r in run.ranks)


def test_links_of_a_real_trace(open_real: Callable[[Path], Run]) -> None:
    run = open_real(DATA / "gpt-h200-stack")
    assert run.rows("SELECT count(*), count(launch), count(op) FROM gpu") == [(972, 972, 972)]
    agree = run.rows("""
        SELECT count(*) FROM gpu g JOIN events e ON e.id = g.id JOIN events o ON o.id = g.op
        WHERE o.external_id = e.external_id
    """)
    assert agree == [(972,)]
    by_flow = run.rows("SELECT count(*) FROM gpu g JOIN links l ON l.target = g.id AND l.source = g.launch")
    assert by_flow == [(972,)]


def test_what_a_kernel_does_not_tell_is_taken_from_its_op(tmp_path: Path) -> None:
    told = {"Collective name": "send", "Process Group Name": "pp", "Dst Rank": 3, "Seq": 7, "dtype": "Float"}
    other = {"Collective name": "recv", "Src Rank": 5, "In split size": "[]", "Out split size": "[1, 2]"}
    sent: dict[str, Any] = {"Collective name": "send", "Seq": 8}
    received: dict[str, Any] = {**other, "Src Rank": 6}
    trace = write_kineto(
        tmp_path / "trace.json",
        [
            slice_event("record_param_comms", 0, 10, args=told),
            slice_event("cudaLaunchKernel", 1, 2, cat="cuda_runtime", args={"correlation": 1}),
            slice_event("record_param_comms", 20, 10, args=other),
            slice_event("cudaLaunchKernel", 21, 2, cat="cuda_runtime", args={"correlation": 2}),
            kernel_event("ncclDevKernel_SendRecv", 5, 5, correlation=1, **sent),
            kernel_event("ncclDevKernel_SendRecv", 25, 5, correlation=2, **received),
        ],
    )
    found = open_trace(trace).rows(
        "SELECT kind, group_name, seq, peer, dtype, in_splits, out_splits FROM collectives ORDER BY start_ns"
    )
    assert found == [
        ("send", "pp", 8, 3, "float32", None, None),
        ("recv", None, None, 6, None, None, "[1, 2]"),
    ]


def test_a_table_without_rows_is_not_opened(run: Run) -> None:
    (entry,) = run.segments
    assert entry.manifest["rows"]["collectives"] == 0
    assert entry.manifest["rows"]["counters"] == 2
    assert entry.manifest["rows"]["slices"] == entry.manifest["slices"]
    assert (run.has(COLLECTIVES), run.has(COUNTERS)) == (False, True)
    assert run.rows("SELECT count(*), sum(dur_ns) FROM collectives") == [(0, None)]
    assert not len(run.collectives.rank)


@pytest.mark.parametrize(
    "odd", ['{"a":1', '"b":2}', "7", "[1,2]", "NaN", '{"a":' + "9" * 5000 + "}", '{"a":1,"a":2}']
)
def test_arguments_parsed_together_are_those_parsed_alone(odd: str) -> None:
    texts = ['{"watts":300}', None, odd, '{"watts":1.5}', odd]
    assert repr(all_arguments(texts)) == repr([arguments(text) for text in texts])


def test_joined_texts_are_found_again() -> None:
    texts = [b"a", None, b"", "é".encode() * 200, b"x" * 70_000, None, b"end"]
    data, offsets = joined_texts(texts)
    present = offsets != NO_ARGS
    assert present.tolist() == [text is not None for text in texts]
    begins, ends = (column.tolist() for column in text_spans(data, offsets[present]))
    read = [data[begin:end] for begin, end in zip(begins, ends, strict=True)]
    assert read == [text for text in texts if text is not None]
    assert begins == [4, *(end + 4 for end in ends[:-1])] and ends[-1] == len(data)
    assert joined_texts([])[0] == b"" and joined_texts([None])[1].tolist() == [NO_ARGS]


def test_hardware_counters_of_kineto(tmp_path: Path) -> None:
    """As libkineto's output_json.cpp writes samples of CUPTI: the quantity is the name, the value has no name."""
    events: list[Any] = [kernel_event("k", 0, 100)]
    counter = {"ph": "C", "cat": "hardware_counters", "name": "sm__cycles_active.avg.pct", "tid": 0}
    events += [
        counter | {"pid": f"GPU {gpu} Counters", "ts": 10.0 * i, "args": {"": 12.5 * i + gpu}}
        for i in range(3)
        for gpu in (0, 1)
    ]
    events.append({"ph": "C", "name": "queue", "pid": 1, "tid": 0, "ts": 5.0, "args": {"requests": 3}})
    run = open_trace(write_kineto(tmp_path / "trace.json", events))
    assert run.rows("SELECT name, series, ts_ns, value FROM counters ORDER BY ALL") == [
        *(("GPU 0 Counters", "sm__cycles_active.avg.pct", 10_000 * i, 12.5 * i) for i in range(3)),
        *(("GPU 1 Counters", "sm__cycles_active.avg.pct", 10_000 * i, 12.5 * i + 1) for i in range(3)),
        ("queue", "requests", 5000, 3.0),
    ]
