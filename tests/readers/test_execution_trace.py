"""Execution traces of PyTorch and Chakra: recognised, linked to the trace of their rank, never taken for one."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import open_trace, slice_event, write_kineto
from execution_traces import Node, chakra_bytes, json_text, old_json_text, write_both
from rankscope import native
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.health.doctor import doctor
from rankscope.analysis.within_rank.ops import ops
from rankscope.cli import main
from rankscope.errors import NotATraceError
from rankscope.readers.columns import text_spans
from rankscope.readers.execution_trace import ExecutionTrace, is_execution_trace
from rankscope.store.ingest import IngestProgress
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

pytestmark = pytest.mark.usefixtures("without_workers")

NODES = [Node(i + 1, "aten::mm", [[i + 2, 3], [3, 5]]) for i in range(8)] + [Node(9, "aten::relu", [[4]])]
OPS = [
    slice_event(node.name, 10.0 * node.record, 5.0, args={"Record function id": node.record})
    for node in NODES
]
WRITERS: dict[str, Callable[[list[Node]], bytes]] = {
    "json": lambda nodes: json_text(nodes).encode(),
    "json 1.0.1": lambda nodes: old_json_text(nodes).encode(),
    "chakra": chakra_bytes,
}


def read(path: Path) -> tuple[ExecutionTrace, list[tuple[int, str]]]:
    trace = ExecutionTrace(path)
    batches = [*trace.batches()]
    names = [ops.names[code].partition("(")[0] for ops in batches for code in ops.name.tolist()]
    return trace, [*zip((record for ops in batches for record in ops.record.tolist()), names, strict=True)]


def companions(run: Run) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run.segments[0].manifest["companions"]
    return found


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
@pytest.mark.parametrize("is_compressed", [False, True])
def test_every_node_is_read(
    tmp_path: Path, writer: Callable[[list[Node]], bytes], is_compressed: bool
) -> None:
    content = writer(NODES)
    assert is_execution_trace(content)
    path = tmp_path / "any name"
    path.write_bytes(gzip.compress(content) if is_compressed else content)
    trace, found = read(path)
    assert found == [(node.record, node.name) for node in NODES]
    assert not trace.report.damage and not trace.report.events_lost


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_shapes_are_added_to_the_trace(tmp_path: Path, writer: Callable[[list[Node]], bytes]) -> None:
    write_kineto(tmp_path / "rank0.json", OPS)
    (tmp_path / "chakra").mkdir()
    (tmp_path / "chakra" / "et_rank0.json").write_bytes(writer(NODES))
    run = open_trace(tmp_path)
    assert run.rows("SELECT count(*), sum(record) FROM executed_ops") == [(9, 45)]
    (mm,) = (row for row in ops(run, Scope()).rows if row["name"] == "aten::mm")
    assert mm["flops"] == sum(2 * (i + 2) * 3 * 5 for i in range(8))
    shapes = {row["shape"] for row in ops(run, Scope(), "shape").rows}
    assert shapes == {json.dumps(node.shapes, separators=(",", ":")) for node in NODES}
    (record,) = companions(run)
    assert record["used"].startswith("9 of 9 ops linked by record function id") and not record["unused"]
    (row,) = (row for row in doctor(run, Scope()).rows if row["check"] == "files that add to the traces")
    assert row["value"] == "1 of 1 used" and row["verdict"] == "ok"


def test_shapes_of_the_trace_itself_are_kept(tmp_path: Path) -> None:
    own = [slice_event("aten::mm", 1.0, 5.0, args={"Record function id": 1, "Input Dims": [[2, 2], [2, 2]]})]
    write_kineto(tmp_path / "rank0.json", own)
    (tmp_path / "et_rank0.json").write_text(json_text(NODES))
    assert ops(open_trace(tmp_path), Scope()).rows[0]["flops"] == 2 * 2 * 2 * 2


def test_what_is_of_another_recording_is_not_linked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_kineto(tmp_path / "rank0.json", OPS)
    (tmp_path / "et_rank0.json").write_text(json_text([Node(i + 1, f"aten::other{i}") for i in range(9)]))
    said: list[str] = []
    run = Run(ingest([tmp_path], progress=IngestProgress(say=said.append)))
    assert not run.rows("SELECT * FROM executed_ops") and len(run.rows("SELECT * FROM slices")) == 9
    (message,) = said
    assert message.count("\n") == 2 and "0 are of the same op" in message
    assert main(["ingest", str(tmp_path), "-q"]) == 0  # it is no error of the run


def test_what_one_file_of_a_rank_uses_is_not_reported_for_the_others(tmp_path: Path) -> None:
    """A rank may have several files: windows of the profiler, a memory snapshot. One that has no record function ids
    is no reason for a complaint where another is linked."""
    write_kineto(tmp_path / "rank0.json", OPS)
    write_kineto(tmp_path / "rank0_later.json", [slice_event("aten::mm", 5000.0, 5.0)])
    snapshot = {"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": 8, "time_us": 7}]]}
    (tmp_path / "rank0.pickle").write_bytes(pickle.dumps(snapshot))
    (tmp_path / "et_rank0.json").write_text(json_text(NODES))
    said: list[str] = []
    run = Run(ingest([tmp_path], progress=IngestProgress(say=said.append)))
    assert len(run.segments) == 3 and not said
    assert run.rows("SELECT count(*), sum(record) FROM executed_ops") == [(9, 45)]
    (row,) = (row for row in doctor(run, Scope()).rows if row["check"] == "files that add to the traces")
    assert row["value"] == "1 of 1 used" and row["verdict"] == "ok"
    # A window that is read later has nothing to say about it either.
    write_kineto(tmp_path / "rank0_last.json", [slice_event("aten::mm", 9000.0, 5.0)])
    ingest([tmp_path], progress=IngestProgress(say=said.append))
    assert not said


def test_the_trace_of_the_profiler_tells_why_nothing_is_linked(tmp_path: Path) -> None:
    snapshot = {"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": 8, "time_us": 7}]]}
    (tmp_path / "a_rank0.pickle").write_bytes(pickle.dumps(snapshot))
    write_kineto(tmp_path / "rank0.json", OPS)
    (tmp_path / "et_rank0.json").write_text(json_text([Node(i + 1, f"aten::other{i}") for i in range(9)]))
    said: list[str] = []
    run = Run(ingest([tmp_path], progress=IngestProgress(say=said.append)))
    (message,) = said
    assert "0 are of the same op" in message
    (row,) = (row for row in doctor(run, Scope()).rows if row["check"] == "files that add to the traces")
    assert row["value"] == "0 of 1 used"


def test_a_recorded_pair(shared: Path, tmp_path: Path, dataset: Callable[[str], Path]) -> None:
    """torch 2.11, with a memory snapshot of the same rank beside them."""
    folder = shared / "et" / "encoder-h200"
    if not folder.is_dir():
        pytest.skip("needs ../shared/data/et/encoder-h200, which is too large for the repository")
    for file in folder.iterdir():
        shutil.copyfile(file, tmp_path / file.name)
    shutil.copy(dataset("leak-h200") / "snapshot_rank0.pickle", tmp_path)
    said: list[str] = []
    run = Run(ingest([tmp_path], progress=IngestProgress(say=said.append)))
    assert not said
    assert run.rows("SELECT count(*) FROM executed_ops") == [(5799,)]


def test_of_several_ranks_the_name_must_tell(tmp_path: Path) -> None:
    for rank in range(2):
        write_kineto(tmp_path / f"rank{rank}.json", OPS)
    (tmp_path / "chakra").mkdir()
    (tmp_path / "chakra" / "trace.json").write_text(json_text(NODES))
    (tmp_path / "chakra" / "settings.json").write_text("{}")  # no file of which anything is expected
    said: list[str] = []
    run = Run(ingest([tmp_path], progress=IngestProgress(say=said.append)))
    (message,) = said
    assert message.count("\n") == 2 and "does not say which" in message and "more" not in message
    assert not run.rows("SELECT * FROM executed_ops")


def test_an_execution_trace_that_comes_later_is_added(tmp_path: Path) -> None:
    write_kineto(tmp_path / "rank0.json", OPS)
    assert not open_trace(tmp_path).rows("SELECT * FROM executed_ops")
    (tmp_path / "et_rank0.json").write_text(json_text(NODES))
    assert len(open_trace(tmp_path).rows("SELECT * FROM executed_ops")) == 9
    assert not ingest([tmp_path]).read  # nothing has changed since


@pytest.mark.slow
@pytest.mark.parametrize("name", ["chakra", "execution_trace"])
def test_megatrons_layout(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """pytorch_profile beside chakra: the folder above opens the traces, and the hint is never a folder without any."""
    write_both(tmp_path / name, NODES)
    profile = tmp_path / "pytorch_profile"
    profile.mkdir()
    for rank in range(2):
        info = {"rank": rank, "world_size": 2}
        write_kineto(profile / f"rank{rank}.json", OPS, distributedInfo=info)
    assert main(["stats", str(tmp_path), "-r", "ops", "--by", "rank", "--format", "csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("aten::mm" in line for line in lines) == 2
    found = Run(ingest([profile]))
    assert [len(entry.manifest["companions"]) for entry in found.segments] == [1, 1]
    assert found.rows("SELECT rank, count(*) FROM executed_ops GROUP BY rank ORDER BY rank") == [
        (0, 9),
        (1, 9),
    ]
    assert main(["stats", str(tmp_path / name)]) == 1
    error = capsys.readouterr().err
    assert f"Open the profiler's traces: {profile}" in error and error.count("\n") == 3


def test_execution_traces_alone_are_an_error_in_three_parts(tmp_path: Path) -> None:
    write_both(tmp_path / "et", NODES)
    for path in (
        tmp_path,
        tmp_path / "et",
        tmp_path / "et" / "et_rank0.json",
        tmp_path / "et" / "chakra_rank1.et",
    ):
        with pytest.raises(NotATraceError) as caught:
            open_trace(path)
        error = caught.value
        assert error.message and error.why and error.hint and "Did you mean" not in error.hint


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_a_file_cut_at_any_byte(tmp_path: Path, writer: Callable[[list[Node]], bytes]) -> None:
    content = writer(NODES[:3])
    path = tmp_path / "cut"
    names = [(node.record, node.name) for node in NODES[:3]]
    for size in range(1, len(content), 5):
        path.write_bytes(content[:size])
        trace, found = read(path)
        assert found == names[: len(found)]
        # Between two messages of Chakra nothing shows that more should follow.
        assert len(found) == 3 or trace.report.damage or trace.report.events_lost or writer is chakra_bytes


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_garbage_costs_some_nodes_at_most(tmp_path: Path, writer: Callable[[list[Node]], bytes]) -> None:
    chance = random.Random(4)
    for _ in range(40):
        content = bytearray(writer(NODES))
        at = chance.randrange(80, len(content))
        content[at : at + 3] = chance.randbytes(3)
        (tmp_path / "damaged").write_bytes(content)
        assert len(read(tmp_path / "damaged")[1]) >= len(NODES) - 2 or writer is chakra_bytes


_VALUES = (
    (7, "Int"), (-3, "Int"), (2.5e-7, "Double"), (True, "Bool"), (None, "None"), ("text", "String"),
    ([1, 2], "GenericList[Int,Int]"), ([7, 8, 0, 64, 4, "cuda:0"], "Tensor(float)"), (5, "Tensor("),
    ([[7, 8, 0, 1, 4, "cpu"]], "GenericList[Tensor(int)]"), ({"a": [1]}, "Other"),
)  # fmt: skip


def _random_node(chance: random.Random, number: int) -> dict[str, Any]:
    """A node of either layout: fields in any order, some missing, repeated or of other types."""
    chosen = chance.choices(_VALUES, k=chance.randrange(5))
    values = [value for value, _ in chosen]
    types = [kind for _, kind in chosen][: chance.randrange(1, 6)]
    shapes = [[chance.randrange(9)] for _ in chosen][: chance.randrange(1, 6)]

    def mostly(usual: Any, *others: Any) -> Any:
        return usual if chance.random() < 0.97 else chance.choice(others)

    record = mostly(number, 0, -1, "5", 1.5, True, 1 << 63, 10**17)
    name = mostly("aten::mm", "é", '"\n', "", 7, "## process_group:init ##")
    node: dict[str, Any] = {"id": mostly(number, "x", 10**30), "name": name}
    attribute = {"name": "rf_id", "type": "uint64", "value": record}
    if chance.random() < 0.5:
        node |= {
            "inputs": {"values": values, "shapes": shapes, "types": types},
            "attrs": [{"name": "x"}, attribute],
        }
    else:
        node |= {"rf_id": record, "inputs": values, "input_shapes": shapes, "input_types": types}
    if chance.random() < 0.05:
        node |= {"attrs": chance.choice(([attribute], [attribute, attribute], 3, [1], {}))}
    if chance.random() < 0.1:
        node |= {
            "inputs": chance.choice(({}, None, [], {"values": 3}, {"shapes": [[1]], "input_types": ["Int"]}))
        }
    rest = list(node.items())[1:]
    chance.shuffle(rest)
    return dict([("id", node["id"]), *rest])


def test_the_part_in_c_reads_as_python_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(5)
    path = tmp_path / "et.json"
    read_in_c = 0
    for _ in range(60):
        space = chance.choice(((",", ":"), (", ", ": "), (" ,\n", " :\t")))
        nodes = [
            json.dumps(_random_node(chance, n), separators=space, ensure_ascii=False) for n in range(1, 30)
        ]
        content = bytearray(('{"schema": "1.1.1", "nodes": [' + ",\n ".join(nodes) + "]}").encode())
        for at in chance.sample(range(40, len(content)), chance.randrange(3)):
            content[at] = chance.randrange(256)
        path.write_bytes(content)
        with monkeypatch.context() as patch:
            patch.setattr("rankscope.native.functions", None)
            expected = _all_ops(path)
        assert _all_ops(path) == expected
        read_in_c += native.functions.scan_nodes(bytes(content[content.index(b"[") + 1 :]))[1]
    assert read_in_c > 200


def _all_ops(path: Path) -> tuple[list[Any], int, str, int]:
    trace = ExecutionTrace(path)
    rows: list[Any] = []
    for batch in trace.batches():
        spans = zip(
            *(column.tolist() for column in text_spans(batch.values, batch.values_offset)), strict=True
        )
        values = [json.loads(bytes(batch.values[begin:end]) or "null") for begin, end in spans]
        names = [batch.names[code] for code in batch.name.tolist()]
        inputs = [batch.input_texts[code] for code in batch.inputs.tolist()]
        rows += zip(batch.record.tolist(), batch.node.tolist(), names, inputs, values, strict=True)
    return rows, trace.nodes, trace.report.damage, trace.report.events_lost


HOSTILE = {
    "wrong types": '{"schema": "1.0.2", "nodes": [{"id": "x", "name": 7, "attrs": 3}, {"id": 1, "name": "a", "attrs": '
    '[{"name": "rf_id", "value": "1"}, 5]}, {"id": [1], "inputs": 4}]}',
    "huge numbers": '{"schema": "1.0.2", "nodes": [{"id": 1e400, "name": "a", "attrs": [{"name": "rf_id", "value": '
    + "9" * 400
    + "}]}]}",
    "negative ids": '{"schema": "1.0.2", "nodes": [{"id": -1, "name": "a", "attrs": [{"name": "rf_id", "value": '
    "-5}]}]}",
    "deep nesting": '{"schema": "1.0.2", "nodes": [{"id": 1, "inputs": '
    + "[" * 100_000
    + "]" * 100_000
    + "}]}",
    "no list": '{"schema": "1.0.2", "nodes": [' + "7, " * 1000,
    "a name of 10 MB": '{"schema": "1.0.2", "nodes": [{"id": 1, "name": "' + "x" * (10 << 20) + '"}]}',
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_nodes_are_no_ops(tmp_path: Path, content: str) -> None:
    (tmp_path / "et.json").write_text(content)
    assert read(tmp_path / "et.json")[1] == []


def test_values_that_are_no_json(tmp_path: Path) -> None:
    """Infinite values as C++ prints them, NaN, and half a character."""
    content = json_text(NODES)
    for odd in ("-inf", "nan", "NaN", '"\\ud800"'):
        content = content.replace('[7, 8, 0, 64, 4, "cuda:0"]', f"[7, {odd}]", 1)
    write_kineto(tmp_path / "rank0.json", OPS)
    (tmp_path / "et_rank0.json").write_text(content)
    assert len(read(tmp_path / "et_rank0.json")[1]) == 9
    assert len(open_trace(tmp_path).rows("SELECT * FROM executed_ops")) in (8, 9)


def test_a_message_that_is_too_long_ends_the_file(tmp_path: Path) -> None:
    (tmp_path / "et").write_bytes(chakra_bytes(NODES) + b"\xff" * 9 + b"\x01")
    trace, found = read(tmp_path / "et")
    assert len(found) == len(NODES) and "cannot be a node" in trace.report.damage


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"\x00" * 50, b"\x05hello", b'{"schema": "1"}', b"\x0a\x02\x08\x01"]
)
def test_other_files_are_not_taken_for_execution_traces(content: bytes) -> None:
    assert not is_execution_trace(content)


PROGRAM = """
import sys, torch
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
observer = ExecutionTraceObserver()
observer.register_callback(sys.argv[1] + "/et_rank0.json")
with profile(activities=[ProfilerActivity.CPU], execution_trace_observer=observer, record_shapes=True) as profiler:
    for _ in range(2):
        model(torch.randn(16, 32)).sum().backward()
        profiler.step()
profiler.export_chrome_trace(sys.argv[1] + "/rank0.json")
"""


@pytest.mark.thorough
def test_what_torch_writes(tmp_path: Path) -> None:
    """Every op is linked, and the shapes of the execution trace are those that Kineto recorded."""
    pytest.importorskip("torch")
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], check=True, capture_output=True)
    run = open_trace(tmp_path)
    recorded = run.rows(
        "SELECT e.args->>'Input Dims', e.args->>'Input type', x.shapes, x.types FROM events e "
        "LEFT JOIN executed_ops x USING (rank, segment, id) WHERE e.args->>'Record function id' IS NOT NULL"
    )
    assert len(recorded) > 50
    for dims, types, shapes, kinds in recorded:
        assert shapes is not None
        if dims is not None:
            assert json.loads(dims) == json.loads(shapes)
            assert json.loads(types) == json.loads(kinds)


def test_damaged_companions_do_not_stop_the_run(tmp_path: Path) -> None:
    write_kineto(tmp_path / "rank0.json", OPS)
    content = json_text(NODES).encode()
    (tmp_path / "et_rank0.json").write_bytes(content[: len(content) // 2])
    run = open_trace(tmp_path)
    (record,) = companions(run)
    assert "ends in the middle" in record["used"]
    assert 0 < len(run.rows("SELECT * FROM executed_ops")) < 9
