"""Flight-recorder dumps as each version of torch writes them: rank 1 does not join the sixth collective."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from flight_dumps import T0, Tables
from rankscope.analysis.core.result import Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.questions import QUESTIONS
from rankscope.readers import find_reader
from rankscope.timeline.run import Run

FRAMES = [{"name": "forward", "filename": "/home/me/train.py", "line": 30}]
NAMES = ("all_reduce", "_all_gather_base", "all_reduce", "all_reduce", "reduce_scatter_tensor", "all_reduce")
GROUP = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}


def entry(seq: int, state: str, **more: Any) -> dict[str, Any]:
    """What all versions have."""
    return {
        "frames": FRAMES, "pg_id": 0, "profiling_name": f"nccl:{NAMES[seq - 1]}", "input_sizes": [[256]],
        "output_sizes": [[256]], "state": state, "retired": state == "completed", **more,
    }  # fmt: skip


def torch_2_2(seq: int, state: str) -> dict[str, Any]:
    return entry(seq, state, seq_id=seq, time_created_us=(T0 + seq * 10**6) // 1000)


def version_1(seq: int, state: str) -> dict[str, Any]:
    done = T0 + seq * 10**6 + 500 if state == "completed" else None
    return entry(
        seq, state, record_id=seq, process_group="0", seq_id=seq, op_id=seq, time_created_ns=T0 + seq * 10**6,
        time_discovered_started_ns=done, time_discovered_completed_ns=done, duration_ms=0.5,
    )  # fmt: skip


def version_2(seq: int, state: str) -> dict[str, Any]:
    old = version_1(seq, state)
    del old["seq_id"]
    return {
        **old,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "is_p2p": False,
    }


def version_2_3(seq: int, state: str) -> dict[str, Any]:
    types = {"input_dtypes": ["Float"], "output_dtypes": ["Float"], "timeout_ms": 600_000}
    return {**version_2(seq, state), **types}


def version_2_10(seq: int, state: str) -> dict[str, Any]:
    return {**version_2_3(seq, state), "thread_name": "python3", "thread_id": "139872"}


def as_json(seq: int, state: str) -> dict[str, Any]:
    """No stacks, pairs as lists, 0 for a time that is not known."""
    made = {**version_2_10(seq, state), "process_group": ["0", "default_pg"]}
    del made["frames"]
    return {key: 0 if value is None else value for key, value in made.items()}


def gloo(seq: int, state: str) -> dict[str, Any]:
    """Its entries stay scheduled, also those that are finished."""
    made = version_2_10(seq, state)
    times = {"time_discovered_started_ns": None, "time_discovered_completed_ns": None, "duration_ms": None}
    return {**made, **times, "profiling_name": f"gloo:{NAMES[seq - 1]}", "state": "scheduled"}


def status(seq: int) -> dict[str, Any]:
    return {
        "0": {"last_enqueued_collective": seq, "last_started_collective": seq, "last_completed_collective": 5}
    }


def text_status(seq: int) -> dict[str, Any]:
    return {number: {key: str(value) for key, value in one.items()} for number, one in status(seq).items()}


Made = Callable[[list[dict[str, Any]], int], Any]
VERSIONS: dict[str, tuple[Callable[[int, str], dict[str, Any]], Made, Callable[[Any], bytes]]] = {
    "torch 2.2": (torch_2_2, lambda entries, seq: entries, lambda value: pickle.dumps(value, 2)),
    **{
        name: (made, dump, lambda value: pickle.dumps(value, 2))
        for name, made, dump in (
            ("1.5", version_1, lambda entries, seq: {"entries": entries, "version": "1.5"}),
            ("2.1", version_2, lambda entries, seq: {"version": "2.1", "pg_config": GROUP, "entries": entries}),
            (
                "2.3",
                version_2_3,
                lambda entries, seq: {
                    "version": "2.3", "pg_config": GROUP, "pg_status": status(seq), "entries": entries,
                    "nccl_comm_state": {"0x1": {"rank": "0"}},
                },
            ),
            (
                "2.4 of hccl",
                version_2_3,
                lambda entries, seq: {
                    "version": "2.4", "hccl_version": "8.0", "pg_config": GROUP, "pg_status": status(seq),
                    "entries": entries, "hccl_comm_state": {},
                },
            ),
            (
                "2.10",
                version_2_10,
                lambda entries, seq: {
                    "version": "2.10", "pg_config": GROUP, "comm_lib_version": "2.28.3", "pg_status": status(seq),
                    "entries": entries,
                },
            ),
            (
                "2.10 of gloo",
                gloo,
                lambda entries, seq: {
                    "version": "2.10", "pg_config": GROUP, "comm_lib_version": "", "pg_status": status(seq),
                    "entries": entries,
                },
            ),
            (
                "7.0",
                version_2_10,
                lambda entries, seq: {
                    "version": "7.0", "pg_config": GROUP, "pg_status": status(seq), "entries": entries, "shiny": [1],
                },
            ),
        )
    },
    "2.10 as JSON": (
        as_json,
        lambda entries, seq: {
            "version": "2.10", "comm_lib_version": "2.28.3", "pg_config": GROUP, "pg_status": text_status(seq),
            "entries": entries,
        },
        lambda value: json.dumps(value).encode(),
    ),
}  # fmt: skip


def flight(folder: Path) -> tuple[Tables, Result]:
    run = Tables({rank: folder / f"_dump_{rank}" for rank in range(2)})
    return run, QUESTIONS["hang.flight_recorder"].analyse(cast(Run, run), Scope(), None)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_missing_rank_is_found(version: str, tmp_path: Path) -> None:
    made, dump, write = VERSIONS[version]
    done = [made(seq, "completed") for seq in range(1, 6)]
    (tmp_path / "_dump_0").write_bytes(write(dump([*done, made(6, "started")], 6)))
    (tmp_path / "_dump_1").write_bytes(write(dump(done, 5)))
    run, result = flight(tmp_path)
    assert result.findings[0].ranks == (1,)
    (row,) = result.rows
    assert (row["seq"], row["kind"], row["state"], row["missing_ranks"]) == (
        6,
        "all_reduce",
        "not joined",
        [1],
    )
    rows = run.rows(
        "SELECT seq, kind, created_ns - min(created_ns) OVER () FROM flight WHERE rank = 0 ORDER BY seq"
    )
    assert rows == [(seq, name, (seq - 1) * 10**6) for seq, name in enumerate(NAMES, 1)]
    ((sources, sizes),) = run.rows("SELECT list(DISTINCT source), list(DISTINCT bytes) FROM flight")
    assert sources == (["train.py(30): forward"] if "JSON" not in version else [None])
    assert sizes == ([1024] if version not in ("torch 2.2", "1.5", "2.1") else [None])
    assert any("version 7.0" in note for note in result.notes) == (version == "7.0")


def test_a_rank_that_called_nothing_has_no_entries_in_json(tmp_path: Path) -> None:
    """torch leaves the list out; the rank is missing all the same."""
    _, dump, write = VERSIONS["2.10 as JSON"]
    (tmp_path / "_dump_0").write_bytes(write(dump([as_json(1, "started")], 1)))
    silent = dump([], 0)
    del silent["entries"]
    (tmp_path / "_dump_1").write_bytes(write({**silent, "pg_status": {}}))
    assert find_reader(tmp_path / "_dump_1").name == "flight"
    _, result = flight(tmp_path)
    assert [row["missing_ranks"] for row in result.rows] == [[1]]
    assert not any("no dump of rank" in note for note in result.notes)


def test_a_retired_entry_that_did_not_complete_has_timed_out(tmp_path: Path) -> None:
    made, dump, write = VERSIONS["2.10"]
    for rank in range(2):
        entries = [made(1, "completed"), {**made(2, "started"), "retired": True}]
        (tmp_path / f"_dump_{rank}").write_bytes(write(dump(entries, 2)))
    run, _ = flight(tmp_path)
    assert run.rows("SELECT DISTINCT seq, state FROM flight ORDER BY seq") == [
        (1, "completed"),
        (2, "started"),
    ]
