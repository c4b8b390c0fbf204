"""NCCL Inspector's JSON lines: planted figures come back, and damaged lines are counted."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from conftest import slice_event, write_kineto
from nccl_files import UNIX_US, WORLD, Op, bandwidths, inspector_line, write_inspector
from rankscope.analysis.core.notes import sessions
from rankscope.analysis.core.result import Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.questions import QUESTIONS
from rankscope.errors import RankError, RankscopeError, ReadError
from rankscope.readers import find_reader, identities, looks_like_a_trace
from rankscope.readers.nccl import inspector
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

LATE_US = 300


def report(name: str, run: Run) -> Result:
    return QUESTIONS[name].analyse(run, Scope(), None)


def program(rank: int, ranks: int = 4, steps: int = 5) -> list[Op]:
    """Rank 2 arrives late at every collective; all leave at the same time."""
    ops, at = [], 1000
    for step in range(steps):
        for function, size in (("AllReduce", 1 << 26), ("AllGather", 1 << 20), ("ReduceScatter", 1 << 22)):
            late = LATE_US * (rank == 2)
            ops.append(Op(function, step, size, 1000 - late, at + late, ranks=ranks))
            at += 2000
    return ops


def write_run(folder: Path, **options: Any) -> Run:
    for rank in range(4):
        write_inspector(folder, rank, program(rank), **options)
    return Run(ingest([folder]))


@pytest.fixture(scope="module")
def verbose(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return write_run(tmp_path_factory.mktemp("verbose"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return write_run(tmp_path_factory.mktemp("plain"), verbose=False)


@pytest.mark.slow
def test_every_operation_and_its_figures_come_back(verbose: Run) -> None:
    found = verbose.rows(
        "SELECT rank, function, seq, rank_bytes, duration_ns, algbw_gb_s, busbw_gb_s FROM nccl ORDER BY ALL"
    )
    expected = sorted(
        (
            rank,
            op.function,
            op.seq,
            op.bytes,
            op.took_us * 1000,
            *(round(value, 6) for value in bandwidths(op)),
        )
        for rank in range(4)
        for op in program(rank)
    )
    assert found == expected


@pytest.mark.slow(every_variation=True)
@pytest.mark.parametrize("verbose_lines", [True, False])
def test_reported_and_computed_bandwidth_agree(verbose_lines: bool, verbose: Run, plain: Run) -> None:
    run = verbose if verbose_lines else plain
    rows = {row["kind"]: row for row in report("collectives.nccl", run).rows}
    assert set(rows) == {"all_reduce", "all_gather", "reduce_scatter"}
    assert [row["differing"] for row in rows.values()] == [0, 0, 0]
    assert {row["count"] for row in rows.values()} == {5} and {row["ranks"] for row in rows.values()} == {4}
    sizes = {kind: row["bytes"] for kind, row in rows.items()}
    assert sizes == {"all_reduce": 1 << 26, "all_gather": 4 << 20, "reduce_scatter": 4 << 22}
    assert rows["all_reduce"]["dur_ns"] == 1_000_000 - LATE_US * 1000 // 4
    assert rows["all_reduce"]["transfer_ns"] == 1_000_000 - LATE_US * 1000
    assert rows["all_reduce"]["busbw_gb_s"] == pytest.approx((1 << 26) / 1e6 * 1.5, abs=1e-6)
    assert rows["all_reduce"]["computed_busbw_gb_s"] == pytest.approx((1 << 26) / 1e6 * 1.5)
    assert rows["all_reduce"]["transfer_busbw_gb_s"] == pytest.approx((1 << 26) / 7e5 * 1.5)


def test_a_bandwidth_that_differs_is_counted(tmp_path: Path) -> None:
    op = Op("AllReduce", 1, 1 << 20, 100)
    lines = [inspector_line(op, 0), inspector_line(Op("All2All", 1, 1 << 20, 100), 0)]
    lines[0]["coll_perf"]["coll_busbw_gbs"] *= 1.05
    path = tmp_path / "a.log"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = report("collectives.nccl", Run(ingest([path])))
    assert {row["kind"]: row["differing"] for row in found.rows} == {"all_reduce": 1, "all_to_all": 1}
    assert any(
        "differs from the computed one in 2 operations (all_reduce, all_to_all)" in n for n in found.notes
    )


def test_start_times_tell_who_is_late(verbose: Run) -> None:
    """Matched by communicator, function and sequence number: NCCL counts each function separately."""
    found = report("stragglers", verbose)
    rows = {row["rank"]: row for row in found.rows}
    assert {rank: row["last_count"] for rank, row in rows.items()} == {0: 0, 1: 0, 2: 15, 3: 0}
    assert rows[2]["caused_wait_ns"] == 3 * 15 * LATE_US * 1000
    assert rows[2]["cause"] is None and rows[2]["host_ns"] is None  # nothing else was recorded
    assert not found.findings
    collectives = {row["kind"]: row for row in report("collectives", verbose).rows}
    assert collectives["all_reduce"]["transfer_ns"] == (1000 - LATE_US) * 1000
    assert collectives["all_reduce"]["group"] == WORLD and collectives["all_reduce"]["members"] == "0-3"
    assert {row["hidden_pct"] for row in collectives.values()} == {None}


def test_without_start_times_nobody_is_called_late(plain: Run) -> None:
    for name in ("stragglers", "collectives"):
        found = report(name, plain)
        assert not found.rows and found.findings == ()
        assert any(note.startswith("cannot say who arrives late") for note in found.notes)
    assert any("cannot say who arrives late" in note for note in report("collectives.nccl", plain).notes)


def test_the_slices_are_on_the_wall_clock_and_in_no_class(verbose: Run) -> None:
    ((begin, count),) = verbose.rows("SELECT min(start_ns), count(*) FROM slices WHERE category = 'nccl'")
    assert begin == 0 and count == 60
    assert verbose.start_unix_ns == (UNIX_US + 1000) * 1000
    assert verbose.rows("SELECT count(*) FROM gpu") == [(0,)]
    assert not report("breakdown", verbose).rows
    assert {label for (label,) in verbose.rows("SELECT DISTINCT label FROM tracks")} == {
        f"NCCL communicator {WORLD}"
    }


@pytest.mark.slow
def test_beside_traces_nothing_counts_twice(tmp_path: Path) -> None:
    """The collectives of a run with traces are those of the traces; NCCL's are in its own report."""
    for rank in range(2):
        write_inspector(tmp_path, rank, [Op("AllReduce", 1, 1 << 20, 100, 50)])
        args = {
            "Collective name": "allreduce", "In msg nelems": 1 << 18, "dtype": "Float", "Group size": 2,
            "Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Seq": 1, "device": rank, "stream": 7,
        }  # fmt: skip
        event = slice_event("ncclDevKernel_AllReduce", 50.0, 100.0, cat="kernel", pid=rank, tid=7, args=args)
        write_kineto(
            tmp_path / f"rank-{rank}.json",
            [event],
            distributedInfo={"rank": rank, "world_size": 2},
            baseTimeNanoseconds=UNIX_US * 1000,
        )
    run = Run(ingest([tmp_path]))
    assert {entry.format for entry in run.segments} == {"kineto", "nccl_inspector"}
    assert len(run.collectives.rank) == 2
    assert [(row["dtype"], row["count"]) for row in report("collectives", run).rows] == [("float32", 1)]
    found = report("collectives.nccl", run)
    assert [(row["count"], row["trace_busbw_gb_s"]) for row in found.rows] == [
        (1, pytest.approx((1 << 20) / 1e5))
    ]
    assert any("from the traces" in note for note in found.notes)
    ((starts,),) = run.rows("SELECT count(DISTINCT start_ns) FROM slices WHERE name LIKE '%AllReduce'")
    assert starts == 1  # on one axis


def test_a_log_of_the_whole_job_does_not_join_recordings(tmp_path: Path) -> None:
    """Traces of two ranks, ten minutes apart, are not compared; a log that covers both changes nothing."""
    apart_us = 600_000_000
    for rank in range(2):
        event = slice_event("aten::mm", 0.0, 100.0, pid=rank, tid=1)
        base = (UNIX_US + rank * apart_us) * 1000
        info = {"rank": rank, "world_size": 2}
        write_kineto(tmp_path / f"rank-{rank}.json", [event], distributedInfo=info, baseTimeNanoseconds=base)
    write_inspector(tmp_path, 0, [Op("AllReduce", 1, 8192, 10, 0), Op("AllReduce", 2, 8192, 10, apart_us)])
    assert len(set(sessions(Run(ingest([tmp_path]))).values())) == 2


@pytest.mark.slow
def test_send_and_recv_match_in_the_communicator_of_the_job(tmp_path: Path) -> None:
    for rank in range(3):
        function, peer = ("Send", 1) if rank == 0 else ("Recv", 0)
        ops = [Op("AllReduce", 1, 1 << 20, 100, 10, ranks=3)]
        if rank < 2:
            ops += [Op(function, 1, 1 << 20, 50, 200, ranks=3, peer=peer)]
            ops += [Op(function, 1, 1 << 20, 50, 400, comm="0xbeef", peer=peer)]
        write_inspector(tmp_path, rank, ops)
    run = Run(ingest([tmp_path]))
    assert run.collectives.count == 2
    assert [(one.why, one.count) for one in run.collectives.unmatched] == [
        ("point-to-point without a recorded peer", 2)
    ]


def test_the_rank_is_that_in_the_largest_communicator(tmp_path: Path) -> None:
    ops = [Op("AllReduce", 1, 8192, 10, comm="0xaa", ranks=2), Op("AllReduce", 1, 8192, 10, ranks=16)]
    lines = [inspector_line(ops[0], 1), inspector_line(ops[1], 13)]
    path = tmp_path / "node-1-pid77.log"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (identity,) = identities(find_reader(path), path)
    assert (identity.rank, identity.rank_source, identity.world_size) == (13, "largest communicator", 16)


def test_a_process_with_several_gpus_has_several_ranks(tmp_path: Path) -> None:
    path = tmp_path / "node-0-pid1.log"
    ops = [(rank, Op("AllReduce", seq, 1 << 20, 100, 200 * seq)) for seq in range(3) for rank in range(2)]
    other = inspector_line(Op("AllReduce", 1, 1 << 20, 5, comm="0x1", ranks=1), 0)
    path.write_text(
        "".join(json.dumps(line) + "\n" for line in [*(inspector_line(op, r) for r, op in ops), other])
    )
    run = Run(ingest([path]))
    assert run.rows("SELECT rank, count(*) FROM nccl GROUP BY rank ORDER BY rank") == [(0, 3), (1, 3)]
    assert run.collectives.count == 3
    assert [entry.manifest["reading"]["events_lost"] for entry in run.segments] == [1, 0]


def test_two_processes_with_one_rank_are_refused(tmp_path: Path) -> None:
    """Without a communicator of the whole job, ranks of small ones collide: the user is asked."""
    for pid, comm in ((1, "0xa"), (2, "0xb")):
        line = json.dumps(inspector_line(Op("AllReduce", 1, 8192, 1000, comm=comm), 0))
        (tmp_path / f"node-0-pid{pid}.log").write_text(line + "\n" + line + "\n")
    with pytest.raises(RankError, match="both of rank 0"):
        ingest([tmp_path])


@pytest.mark.slow
def test_older_lines_have_no_name_and_newer_versions_are_read(tmp_path: Path) -> None:
    old = write_inspector(tmp_path / "old", 0, program(0), named=False)
    new = write_inspector(
        tmp_path / "new", 0, [Op("AllReduce", 1, 8192, 10, name="DP Group 0")], version="v9.1"
    )
    assert Run(ingest([old])).rows("SELECT DISTINCT communicator_name FROM nccl") == [(None,)]
    run = Run(ingest([new]))
    assert run.rows("SELECT communicator_name FROM nccl") == [("DP Group 0",)]
    assert any("v9.1" in note for note in report("collectives.nccl", run).notes)


# -- bad input


GOOD = [json.dumps(inspector_line(op, 0)).encode() for op in program(0)]


def read(path: Path, content: bytes) -> Run:
    path.write_bytes(content)
    return Run(ingest([path]))


def lost(run: Run) -> int:
    return int(run.segments[0].manifest["reading"]["events_lost"])


@pytest.mark.parametrize("gzipped", [False, True])
def test_a_file_that_ends_anywhere(tmp_path: Path, gzipped: bool) -> None:
    whole = b"".join(line + b"\n" for line in GOOD)
    content = gzip.compress(whole) if gzipped else whole
    run = read(tmp_path / "a.log", content[: int(len(content) * 0.77)])
    ((count,),) = run.rows("SELECT count(*) FROM nccl")
    assert lost(run) == 1 and 0 < count < len(GOOD)
    assert gzipped or count == whole[: int(len(whole) * 0.77)].count(b"\n")
    assert bool(run.segments[0].manifest["reading"]["damage"]) == gzipped


WRONG: dict[str, bytes] = {
    "garbage": b"\x00\xff\xfe{{{{",
    "an array": b"[1, 2]",
    "deep nesting": b"[" * 100_000,
    "half a line": GOOD[0][: len(GOOD[0]) // 2],
    "bad UTF-8": GOOD[0].replace(b"node-0", b"\xff\xfe"),
}


def test_bad_lines_are_counted_and_the_others_are_read(tmp_path: Path) -> None:
    run = read(tmp_path / "a.log", b"\n".join([GOOD[0], *WRONG.values(), *GOOD[1:]]))
    assert run.rows("SELECT count(*) FROM nccl") == [(len(GOOD),)]
    assert lost(run) == len(WRONG)
    assert run.segments[0].manifest["reading"]["examples"]


VALUES: tuple[Any, ...] = (None, "x", -1, 10**30, 1e308, [], {"a": 1}, True, 2**63)


@pytest.mark.slow
def test_values_of_other_types(tmp_path: Path) -> None:
    lines = [line.decode() for line in GOOD]
    for value in VALUES:
        for field in (
            "coll_sn",
            "coll_msg_size_bytes",
            "coll_exec_time_us",
            "coll_busbw_gbs",
            "event_trace_ts",
        ):
            changed = json.loads(lines[0])
            changed["coll_perf"][field] = value
            lines.append(json.dumps(changed))
    run = read(tmp_path / "a.log", "\n".join(lines).encode())
    assert run.rows("SELECT count(*) FROM nccl") == [(len(lines),)]
    for name in ("collectives.nccl", "collectives", "stragglers", "clocks"):
        report(name, run)


@pytest.mark.slow
def test_names_that_hurt(tmp_path: Path) -> None:
    lines = []
    for name in ("'; DROP TABLE nccl; --", "\x1b[2J\u202e", "a" * (1 << 20), '"quotes"\\'):
        line = inspector_line(Op("AllReduce", 1, 8192, 10, comm=name, name=name), 0)
        line["coll_perf"]["coll"] = name
        lines.append(json.dumps(line))
    run = read(tmp_path / "a.log", "\n".join(lines).encode())
    assert run.rows("SELECT count(*) FROM nccl") == [(4,)]
    assert {row["kind"] for row in report("collectives.nccl", run).rows} == {"other"}


def test_a_line_that_never_ends_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspector, "_BLOCK_BYTES", 1 << 16)
    monkeypatch.setattr(inspector, "_LONGEST_LINE", 1 << 16)
    run = read(tmp_path / "a.log", b"\n".join([GOOD[0], b"{" + b"a" * (1 << 20), *GOOD[1:]]))
    assert run.rows("SELECT count(*) FROM nccl") == [(len(GOOD),)]
    assert lost(run) >= 1


def test_nothing_readable_is_an_error_in_three_parts(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b'{"metadata": {"inspector_output_format_version": "v4.0"}, "header": ')
    with pytest.raises(ReadError) as caught:
        ingest([path])
    assert caught.value.why and caught.value.hint
    (tmp_path / "b.log").write_bytes(b"")
    with pytest.raises(RankscopeError):
        ingest([tmp_path / "b.log"])


def test_other_logs_are_not_traces(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 1 loss 3.2\n" * 10)
    path = write_inspector(tmp_path, 0, program(0))
    assert not looks_like_a_trace(tmp_path / "train.log") and looks_like_a_trace(path)
    assert [entry.source for entry in Run(ingest([tmp_path])).segments] == [path]
