"""Hangs made on purpose, whose suspect ranks are known; and a real one."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from conftest import open_trace, slice_event, write_kineto
from flight_dumps import T0, Tables, dump, op
from rankscope.analysis import REPORTS
from rankscope.analysis.core.result import Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.errors import ReadError
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

pytestmark = pytest.mark.usefixtures("without_workers")


def analyse(folder: Path, dumps: dict[int, dict[str, Any]]) -> Result:
    paths = {rank: folder / f"_dump_{rank}" for rank in dumps}
    for rank, content in dumps.items():
        paths[rank].write_bytes(pickle.dumps(content, 2))
    return REPORTS["hang.flight_recorder"].analyse(cast(Run, Tables(paths)), Scope(), None)


def only(result: Result) -> Finding:
    (finding,) = result.findings
    return finding


WORLD = {"0": [0, 1, 2, 3]}


def done(seq: int) -> dict[str, Any]:
    return op("0", seq, state="completed")


def test_one_never_joined(tmp_path: Path) -> None:
    waits = dump([done(5), op("0", 6, state="started")], WORLD)
    result = analyse(tmp_path, {0: waits, 1: waits, 2: dump([done(4), done(5)], WORLD), 3: waits})
    assert only(result).severity == "critical" and only(result).ranks == (2,)
    timeout = only(result).fact("timeout_ns")
    assert "did not join" in only(result).evidence and only(result).cost_ns is None
    assert timeout is not None and timeout.value == 600 * 10**9
    row = result.rows[0]
    assert {key: row[key] for key in ("group", "seq", "kind", "missing_ranks", "state", "waiting_ranks", "bytes")} == {
        "group": "0", "seq": 6, "kind": "all_reduce", "missing_ranks": [2], "state": "not joined",
        "waiting_ranks": [0, 1, 3], "bytes": 4096,
    }  # fmt: skip
    assert row["last_completed"] == "5 (0-3)"


def test_a_dump_of_unfinished_operations_only(tmp_path: Path) -> None:
    """Rank 2 has none; that it did not ask for the next one is then told by its silence."""
    waits = dump([op("0", 6)], WORLD, {"0": (6, 5)})
    result = analyse(tmp_path, {0: waits, 1: waits, 2: dump([], WORLD, {"0": (5, 5)}), 3: waits})
    assert only(result).ranks == (2,) and result.rows[0]["missing_ranks"] == [2]


def test_a_victim_is_not_blamed(tmp_path: Path) -> None:
    """Rank 1 does not come to group 1 because it waits in group 2 for rank 3, which does not come anywhere."""
    groups = {"1": [0, 1], "2": [1, 3]}
    result = analyse(
        tmp_path,
        {
            0: dump([op("1", 4, state="completed"), op("1", 5)], groups),
            1: dump([op("1", 4, state="completed"), op("2", 8, state="completed"), op("2", 9)], groups),
            3: dump([op("2", 8, state="completed")], groups),
        },
    )
    assert only(result).ranks == (3,)
    assert {(row["group"], *row["missing_ranks"]) for row in result.rows} == {("1", 1), ("2", 3)}


def test_a_circle(tmp_path: Path) -> None:
    """Two groups with the same members, used in another order by each."""
    groups = {"1": [0, 1], "2": [0, 1]}
    before = [op("1", 4, state="completed"), op("2", 4, state="completed")]
    result = analyse(
        tmp_path, {0: dump([*before, op("1", 5)], groups), 1: dump([*before, op("2", 5)], groups)}
    )
    assert only(result).ranks == (0, 1) and "wait for each other" in only(result).title


def test_some_finished_what_others_did_not(tmp_path: Path) -> None:
    fine = dump([op("0", 7)], WORLD, {"0": (7, 6)})
    stopped = dump([op("0", 5), op("0", 6), op("0", 7)], WORLD, {"0": (7, 4)})
    result = analyse(tmp_path, {0: fine, 1: stopped, 2: fine, 3: fine})
    assert only(result).ranks == (1,)
    assert (result.rows[0]["seq"], result.rows[0]["state"]) == (5, "not finished")
    assert result.rows[0]["finished_ranks"] == [0, 2, 3]


@pytest.mark.parametrize(
    "odd",
    [{"kind": "broadcast"}, {"input_sizes": [[512]]}, {"input_dtypes": ["Half"]}],
    ids=lambda odd: next(iter(odd)),
)
def test_a_mismatch(tmp_path: Path, odd: dict[str, Any]) -> None:
    same, other = dump([op("0", 5)], WORLD), dump([op("0", 5, **odd)], WORLD)
    result = analyse(tmp_path, {0: same, 1: same, 2: same, 3: other})
    assert only(result).ranks == (3,) and only(result).title.split(": ")[1].startswith("mismatch")
    assert "rank 3: " in only(result).evidence


def test_uneven_parts_are_no_mismatch(tmp_path: Path) -> None:
    dumps = {r: dump([op("0", 5, kind="all_to_all", input_sizes=[[r + 1]])], WORLD) for r in range(4)}
    result = analyse(tmp_path, dumps)
    assert only(result).severity == "warning" and only(result).ranks == ()
    assert [row["state"] for row in result.rows] == ["waiting"]


def test_queued_on_one_device_only(tmp_path: Path) -> None:
    runs, queued = dump([op("0", 5, state="started")], WORLD), dump([op("0", 5)], WORLD)
    result = analyse(tmp_path, {0: runs, 1: runs, 2: queued, 3: runs})
    assert only(result).ranks == (2,) and result.rows[0]["state"] == "not started"


def test_a_rank_that_left_no_dump(tmp_path: Path) -> None:
    waits = dump([op("0", 5)], WORLD)
    result = analyse(tmp_path, {0: waits, 1: waits, 3: waits})
    assert only(result).ranks == (2,) and result.rows[0]["state"] == "no dump"
    assert any("no dump of rank 2" in note for note in result.notes)


def test_a_few_dumps_of_many_name_no_suspect(tmp_path: Path) -> None:
    result = analyse(tmp_path, {0: dump([op("0", 5)], WORLD)})
    assert only(result).ranks == () and result.rows[0]["state"] == "waiting"


def test_point_to_point(tmp_path: Path) -> None:
    """Rank 5 sends to rank 9 (numbers 0 and 1 in the group), which has posted no recv."""
    groups = {"3": [5, 9]}
    result = analyse(
        tmp_path,
        {
            5: dump([op("3", 17, kind="send 0->1")], groups),
            9: dump([op("3", 80, kind="recv 1<-0", state="completed")], groups),
        },
    )
    assert only(result).ranks == (9,)
    assert (result.rows[0]["kind"], result.rows[0]["seq"], result.rows[0]["state"]) == (
        "send 5->9",
        17,
        "no partner",
    )
    both = tmp_path / "both"
    both.mkdir()
    result = analyse(
        both,
        {5: dump([op("3", 17, kind="send 0->1")], groups), 9: dump([op("3", 80, kind="recv 1<-0")], groups)},
    )
    assert only(result).severity == "ok"


def test_nothing_is_wrong(tmp_path: Path) -> None:
    result = analyse(tmp_path, {rank: dump([done(4), done(5)], WORLD) for rank in range(4)})
    assert result.rows == () and only(result).severity == "ok"


@pytest.mark.slow
def test_without_dumps_the_variables_are_named(tmp_path: Path) -> None:
    run = open_trace(write_kineto(tmp_path / "rank-0.json", [slice_event("aten::mm", 1, 2)]))
    result = REPORTS["hang.flight_recorder"].analyse(run, Scope(), None)
    assert result.rows == () and result.findings == ()
    assert any("TORCH_NCCL_DUMP_ON_TIMEOUT=1" in note for note in result.notes)


@pytest.mark.slow
def test_json_dumps_and_the_timeline(tmp_path: Path) -> None:
    stack = [{"filename": "/job/train.py", "line": 12, "name": "backward"}]
    content = dump([done(4), op("0", 5, frames=stack)], WORLD)
    (tmp_path / "nccl_trace_rank_1").write_text(json.dumps(content))
    run = open_trace(tmp_path)
    assert run.ranks == [1]
    assert run.rows("SELECT name, dur_ns, category, start_ns FROM slices") == [
        ("all_reduce 4", 500, "flight", 0)
    ]
    assert run.rows("SELECT name, ts_ns FROM instants") == [("all_reduce 5", 1_000_000)]
    assert run.rows("SELECT label FROM tracks") == [("NCCL group 0 G0",)]
    assert run.start_unix_ns == T0 + 4_000_000
    assert run.rows("SELECT source, created_ns FROM flight WHERE seq = 5") == [
        ("train.py(12): backward", 1_000_000)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("content", [b'{"entries": [], "pg_config": {', b'{"entries": 3, "pg_config": {}}'])
def test_damaged_json(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rank-0.json"
    path.write_bytes(content)
    with pytest.raises(ReadError):
        ingest([path])


def test_wrong_types_everywhere(tmp_path: Path) -> None:
    entry = {key: [[["x"]]] for key in op("0", 1)} | {"process_group": 3, "duration_ms": float("nan")}
    content = {
        "entries": [entry, 5, {}],
        "pg_config": {"0": 1, "1": {"ranks": 7}},
        "pg_status": [1],
        "nccl_version": 2,
    }
    assert analyse(tmp_path, {0: content}).rows == ()


@pytest.mark.thorough
def test_the_real_hang(shared: Path, open_real: Callable[[Path], Run]) -> None:
    folder = shared / "public" / "flight-recorder" / "gpu_error_1st"
    injected = json.loads((folder / "fault_injection.log").read_text().splitlines()[0].partition(": ")[2])
    result = REPORTS["hang.flight_recorder"].analyse(open_real(folder), Scope(), None)
    finding = only(result)
    assert finding.severity == "critical" and list(finding.ranks) == injected == [12, 14]
    assert "ranks 12,14 did not finish what ranks 13,15 finished" in finding.evidence
    assert finding.span is not None and finding.span[0] < finding.span[1]
    blamed = [row for row in result.rows if row["state"] == "not finished"]
    assert {rank for row in blamed for rank in row["missing_ranks"]} == {12, 14}
    assert (blamed[0]["group"], blamed[0]["seq"]) == ("58", 6870)
    # Every other group waits with all of its members in.
    others = {"0", *(str(number) for number in range(36, 41)), "55", "71"}
    assert all(row["missing_ranks"] == [] for row in result.rows if row["group"] in others)
