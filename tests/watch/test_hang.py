"""A job that makes no step: the alarm, and the report that groups the ranks by their stacks."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flight_dumps import dump, op
from rankscope.analysis.health.hang import explain_hang, hang_in
from rankscope.capture.telemetry_ring import PHASES
from rankscope.cli import main
from rankscope.inapp.hang_evidence import own_frame
from rankscope.watch.alarms import AlarmBook
from rankscope.watch.hang import Verdict, failures, hangs, is_over, parse_stacks, read_stacks
from rankscope.watch.rings import read_rings
from simulated_telemetry import Job, read_state, telemetry, write_rings

STACK = """\
# 2026-11-16T22:00:00Z process {pid}: no step for 30 s
Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 629 in wait

Current thread 0x00007f0000000002 (most recent call first):
  File "/x/site-packages/rankscope/inapp/telemetry.py", line 250 in write_stacks

Thread 0x00007f0000000003 (most recent call first):
{frames}
  File "/home/me/train.py", line 90 in <module>

"""
WAITING = """\
  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 3013 in all_reduce
  File "/home/me/train.py", line 41 in train_step"""
READING = """\
  File "/home/me/data.py", line 7 in read_lock
  File "/home/me/train.py", line 38 in train_step"""


def hung(run: Path, phases: tuple[str, ...], ago_s: float = 700.0, steps: int = 20) -> None:
    """A job that made its last step `ago_s` seconds ago and is alive."""
    job = Job(len(phases), steps=steps)
    now = time.time_ns()
    ended = now - int(ago_s * 1e9)
    write_rings(run, job, telemetry(job), phases=phases, ended_unix_ns=ended, alive_unix_ns=now)


def test_no_alarm_before_the_time_and_none_after_the_end(tmp_path: Path) -> None:
    hung(tmp_path, ("training",) * 2, ago_s=500)
    rings = read_rings(tmp_path)
    assert hangs(rings, time.time_ns()) == []
    assert len(hangs(rings, time.time_ns(), 100)) == 1
    hung(tmp_path, ("ended",) * 2)
    assert hangs(read_rings(tmp_path), time.time_ns()) == []


@pytest.mark.parametrize(
    ("phases", "ranks", "cause"),
    [
        (("collective", "data loading", "collective", "collective"), (1,), "data loading"),
        (("backward", "backward", "training", "collective"), (2,), "host"),
        (("collective",) * 4, (0, 1, 2, 3), "unknown"),
    ],
)
def test_the_odd_rank_by_what_it_does(
    tmp_path: Path, phases: tuple[str, ...], ranks: tuple[int, ...], cause: str
) -> None:
    hung(tmp_path, phases)
    (alarm,) = hangs(read_rings(tmp_path), time.time_ns())
    assert (alarm.kind, alarm.ranks, alarm.cause, alarm.severity) == ("hang", ranks, cause, "critical")
    assert alarm.text.startswith("4 of 4 ranks have made no step for 7")


def test_the_rank_that_is_behind_and_the_rank_that_is_lost(tmp_path: Path) -> None:
    hung(tmp_path, ("collective",) * 4)
    behind = [
        ring if ring.rank != 1 else replace(ring, records=ring.records[:-1]) for ring in read_rings(tmp_path)
    ]
    (alarm,) = hangs(behind, time.time_ns())
    assert (
        alarm.ranks == (1,)
        and "step 19: in collective; the others are in collective after step 20" in alarm.text
    )
    silent = time.time_ns() - 300 * 10**9
    lost = [
        ring if ring.rank != 3 else replace(ring, header=ring.header._replace(alive_unix_ns=silent))
        for ring in read_rings(tmp_path)
    ]
    (alarm,) = hangs(lost, time.time_ns())
    assert alarm.ranks == (3,) and "no longer writes" in alarm.text


def test_ranks_that_stopped_a_little_later_belong_to_the_hang(tmp_path: Path) -> None:
    hung(tmp_path, ("collective", "training", "collective"), ago_s=601)
    rings = read_rings(tmp_path)
    earlier = rings[1].header._replace(alive_unix_ns=rings[1].header.alive_unix_ns - 2 * 10**9)
    rings[1] = replace(rings[1], header=earlier)
    (alarm,) = hangs(rings, time.time_ns())
    assert alarm.ranks == (1,) and alarm.text.startswith("3 of 3 ranks have made no step for 601 s")


def test_stacks_are_read_dump_by_dump() -> None:
    first, second = (STACK.format(pid=7, frames=frames) for frames in (READING, WAITING))
    dumps = parse_stacks(first + second)
    assert [len(one.threads) for one in dumps] == [3, 3]
    assert "process 7: no step for 30 s" in dumps[1].heading
    assert [str(frame) for frame in dumps[1].main] == [
        "distributed_c10d.py:3013 all_reduce",
        "train.py:41 train_step",
        "train.py:90 <module>",
    ]
    assert str(own_frame(dumps[1].main)) == "train.py:41 train_step"
    assert own_frame(()) is None
    assert parse_stacks("") == [] and parse_stacks("# only a heading\n") == []


def test_ranks_are_grouped_by_their_stacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hung(tmp_path, ("collective", "collective", "training", "collective"))
    for rank in range(4):
        text = STACK.format(pid=rank, frames=READING if rank == 2 else WAITING)
        (tmp_path / "telemetry" / f"stacks-rank-{rank:05d}.txt").write_text(text)
    assert sorted(read_stacks(tmp_path)) == [0, 1, 2, 3]
    result = hang_in(tmp_path)
    assert [(row["ranks"], row["where"], row["phase"]) for row in result.rows] == [
        ([0, 1, 3], "train.py:41 train_step", "collective"),
        ([2], "data.py:7 read_lock", "training"),
    ]
    (finding,) = result.findings
    assert finding.severity == "critical" and finding.ranks == (2,)
    assert any(fact.value == "data.py:7 read_lock" for fact in finding.facts)
    assert main(["stats", str(tmp_path), "-r", "hang", "--fail-on", "critical"]) == 3
    assert "Rank 2 holds up the job" in capsys.readouterr().out
    (only,) = hang_in(tmp_path, {0, 1}).rows
    assert only["ranks"] == [0, 1]


def test_without_a_phase_that_tells_the_smallest_group_does(tmp_path: Path) -> None:
    hung(tmp_path, ("training",) * 3)
    for rank in range(3):
        text = STACK.format(pid=rank, frames=READING if rank == 1 else WAITING)
        (tmp_path / "telemetry" / f"stacks-rank-{rank:05d}.txt").write_text(text)
    (finding,) = hang_in(tmp_path).findings
    assert finding.ranks == (1,) and "it is alone there, at data.py:7 read_lock" in finding.title


def test_a_job_that_went_on(tmp_path: Path) -> None:
    hung(tmp_path, ("training",) * 2, ago_s=-1)
    (tmp_path / "telemetry" / "stacks-rank-00001.txt").write_text(STACK.format(pid=1, frames=READING))
    result = hang_in(tmp_path)
    assert result.findings[0].severity == "info" and "rank 1 went on afterwards" in result.notes


def test_nothing_to_report(tmp_path: Path) -> None:
    hung(tmp_path, ("training",) * 2, ago_s=1)
    result = hang_in(tmp_path)
    assert result.rows == () and "without a step for 600 s" in result.notes[0]


@pytest.mark.slow
def test_the_flight_recorder_is_asked_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hung(tmp_path, ("backward",) * 3)
    for rank in range(3):
        entries = [op("0", seq, state="completed") for seq in (1, 2)]
        if rank != 1:
            entries.append(op("0", 3))
        content = dump(entries, {"0": [0, 1, 2]})
        (tmp_path / "telemetry" / f"flight-rank-{rank:05d}.json").write_text(json.dumps(content))
    (finding,) = hang_in(tmp_path).findings
    assert finding.ranks == (1,) and "not joined at all_reduce 3" in finding.title
    assert "all_reduce 3: rank 1 did not join; ranks 0,2 wait" in finding.evidence
    # `stats` reads the dumps, the only traces there are, and finds the telemetry around them.
    for report in ("hang", "telemetry", "hang.flight_recorder"):
        assert main(["stats", str(tmp_path), "-q", "-r", report]) == 0
        assert "not joined at all_reduce 3" in capsys.readouterr().out or report == "telemetry"
    assert main(["stats", str(tmp_path), "-q"]) == 0
    first, *lines = capsys.readouterr().out.partition("Rank 1 holds up the job")[2].splitlines()
    assert "not joined at all_reduce 3" in first
    assert [line for line in lines if re.match(r"\d+\. ", line)] == [
        "1. critical: rank 1 (rankscope help hang)"
    ]  # one hang, one finding
    assert [path.name for path in (tmp_path / "telemetry").iterdir() if path.is_dir()] == [".rankscope"]


def test_phases_of_the_contract() -> None:
    assert {"collective", "backward", "data loading", "training", "optimizer", "ended"} <= {*PHASES}


# -- the verdict from processes and logs


def evidence(run: Path, rank: int, **content: Any) -> None:
    """What a rank wrote about processes."""
    (run / "telemetry" / f"rank-{rank:05d}.hang").write_text(
        json.dumps({"unix_ns": time.time_ns(), **content})
    )


@pytest.mark.parametrize(
    ("process", "named"),
    [
        ({"state": "gone"}, "its process has ended"),
        ({"state": "Z"}, "its process has ended"),
        ({"state": "T"}, "its process is stopped"),
        ({"state": "D", "waits_in": "nfs_wait"}, "its process waits in the kernel (nfs_wait)"),
        ({"state": "R"}, "in C code that keeps Python's lock"),
    ],
)
def test_a_rank_that_no_longer_writes(tmp_path: Path, process: dict[str, str], named: str) -> None:
    hung(tmp_path, ("backward", "backward", "training", "backward"))
    evidence(tmp_path, 0, ranks={"2": {"pid": 7, "stale": True, **process}, "1": {"pid": 8, "state": "S"}})
    (finding,) = hang_in(tmp_path).findings
    assert finding.ranks == (2,) and f"Rank 2 holds up the job after step 20: {named}" in finding.title


def test_a_rank_that_has_no_more_data(tmp_path: Path) -> None:
    hung(tmp_path, ("backward", "ended", "backward"))
    (finding,) = hang_in(tmp_path).findings
    assert finding.ranks == (1,) and "has ended its training, and the others have not" in finding.title
    assert "same number of steps" in finding.hint
    for rank in range(3):  # it was part of the hang, and Ctrl-C ended it
        text = STACK.format(pid=rank, frames=READING if rank == 2 else WAITING)
        (tmp_path / "telemetry" / f"stacks-rank-{rank:05d}.txt").write_text(text)
    (finding,) = hang_in(tmp_path).findings
    assert finding.ranks == (2,)


WORKER = """\
Current thread 0x00007f0000000002 (most recent call first):
  File "/home/me/data.py", line 31 in __getitem__
  File "/x/site-packages/torch/utils/data/_utils/worker.py", line 50 in _worker_loop
"""


@pytest.mark.parametrize(
    ("worker", "named"),
    [
        ({"state": "S", "stack": WORKER}, "whose worker (process 9) is at data.py:31 __getitem__"),
        ({"state": "T"}, "whose worker (process 9) is stopped"),
        ({"state": "gone"}, "whose worker (process 9) has ended"),
        ({"state": "S"}, "waits for its data loader"),
    ],
)
def test_a_worker_of_a_data_loader(tmp_path: Path, worker: dict[str, str], named: str) -> None:
    hung(tmp_path, ("backward", "data loading", "backward"))
    evidence(tmp_path, 1, children=[{"pid": 9, **worker}])
    (finding,) = hang_in(tmp_path).findings
    assert finding.ranks == (1,) and named in finding.title


def test_what_was_written_in_an_earlier_hang_does_not_count(tmp_path: Path) -> None:
    hung(tmp_path, ("backward", "training", "backward"))
    evidence(tmp_path, 2, unix_ns=time.time_ns() - 900 * 10**9, ranks={"0": {"state": "T", "stale": True}})
    (finding,) = hang_in(tmp_path).findings
    assert finding.ranks == (1,)


@pytest.mark.slow
def test_a_dump_that_cannot_be_read(tmp_path: Path) -> None:
    hung(tmp_path, ("backward", "training", "backward"))
    (tmp_path / "telemetry" / "flight-rank-00000.json").write_text('{"entries": 7, "pg_status": {}')
    result = hang_in(tmp_path)
    assert result.findings[0].ranks == (1,)
    assert [note for note in result.notes if note.startswith("flight recorder: not read: ")]


def test_lines_of_logs_are_evidence(tmp_path: Path) -> None:
    hung(tmp_path, ("backward", "training", "backward"))
    evidence(tmp_path, 0, kernel=["NVRM: Xid (PCI:0000:17:00): 79"])
    evidence(tmp_path, 1, log={"path": "/x/slurm-7.out", "lines": ["OSError: stale file handle"]})
    (finding,) = hang_in(tmp_path).findings
    assert "kernel log: NVRM: Xid (PCI:0000:17:00): 79" in finding.lines
    assert "last error in slurm-7.out of rank 1: OSError: stale file handle" in finding.evidence


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[1]",
        '{"children": 7}',
        '{"ranks": [1]}',
        '{"log": "x"}',
        '{"ranks": {"x": {}}}',
        '{"children": [{}]}',
    ],
)
def test_a_damaged_file(tmp_path: Path, content: str) -> None:
    hung(tmp_path, ("backward", "data loading", "backward"))
    (tmp_path / "telemetry" / "rank-00001.hang").write_text(content)
    (finding,) = hang_in(tmp_path).findings
    assert finding.ranks == (1,)


def test_the_alarm_waits_for_what_ranks_write_and_has_the_verdict(tmp_path: Path) -> None:
    hung(tmp_path, ("backward", "training"), ago_s=601)
    assert read_state(tmp_path, explain=explain_hang)[1] == []
    for rank in range(2):
        text = STACK.format(pid=rank, frames=READING if rank == 1 else WAITING)
        (tmp_path / "telemetry" / f"stacks-rank-{rank:05d}.txt").write_text(text)
        evidence(tmp_path, rank)
    book = AlarmBook()
    (alarm,) = book.new(read_state(tmp_path, explain=explain_hang)[1])
    assert alarm.ranks == (1,) and "at data.py:7 read_lock; rank 0 waits at train.py:41" in alarm.text
    assert f"rankscope stats {tmp_path} -r hang" in alarm.hint
    assert book.new(read_state(tmp_path)[1]) == []  # the same hang


def test_an_alarm_does_not_wait_for_ever(tmp_path: Path) -> None:
    hung(tmp_path, ("backward", "training"), ago_s=620)
    (alarm,) = read_state(tmp_path, explain=explain_hang)[1]
    assert alarm.ranks == (1,)


def test_a_rank_that_others_miss_may_have_no_telemetry(tmp_path: Path) -> None:
    hung(tmp_path, ("backward",) * 2)
    missing = Verdict((7,), "no dump at all_reduce 3")
    state, (alarm,) = read_state(tmp_path, explain=lambda run, evidence: replace(evidence, recorded=missing))
    assert alarm.ranks == (7,) and "rank 7 holds up the job after step 20: no dump" in alarm.text
    assert [rank["alarms"] for rank in state["ranks"]] == [[], []]


# -- ranks that fail


def failed(message: str, second: int, kind: str = "RuntimeError") -> dict[str, Any]:
    moment = time.time_ns() - (20 - second) * 10**9
    return {"type": kind, "message": message, "where": "train.py:7 f", "unix_ns": moment}


CLOSED = "[pair.cc:553] Connection closed by peer [127.0.0.1]:34513"


@pytest.mark.parametrize(
    ("errors", "phases", "ranks", "named"),
    [
        (
            {0: failed(CLOSED, 1), 1: failed("bad label", 2, "ValueError")},
            "ee",
            (1,),
            "with ValueError: bad label",
        ),
        (
            {0: failed(CLOSED, 1), 2: failed("Timed out", 2)},
            "ete",
            (1,),
            "ended without a word after step 20; 2",
        ),
        (
            {0: failed(CLOSED, 1), 1: failed(CLOSED, 2)},
            "ee",
            (0, 1),
            "RuntimeError: [pair.cc:553] Connection",
        ),
        (
            {1: failed("no GPU", 1), 0: failed("no GPU", 2)},
            "eet",
            (0, 1),
            "failed after step 20 with RuntimeError",
        ),
    ],
)
def test_the_rank_that_failed_first(
    tmp_path: Path, errors: dict[int, dict[str, Any]], phases: str, ranks: tuple[int, ...], named: str
) -> None:
    """Phases: ended or training. Ranks that only lost their connection are not the cause."""
    job, ended = Job(len(phases), steps=20), time.time_ns() - 15 * 10**9
    names = ["ended" if letter == "e" else "training" for letter in phases]
    write_rings(tmp_path, job, telemetry(job), phases=names, ended_unix_ns=ended, failures=errors)
    rings = read_rings(tmp_path)
    (alarm,) = failures(rings, time.time_ns())
    assert (alarm.kind, alarm.ranks, alarm.severity) == ("ended", ranks, "critical") and named in alarm.text
    assert is_over(rings, time.time_ns()) and read_state(tmp_path)[0]["state"] == "failed"
    (finding,) = hang_in(tmp_path).findings
    assert finding.ranks == ranks


def test_no_failure(tmp_path: Path) -> None:
    job, now = Job(2, steps=20), time.time_ns()
    write_rings(tmp_path, job, telemetry(job), phases=("ended", "training"), ended_unix_ns=now)
    assert failures(read_rings(tmp_path), now) == []
    # Ctrl-C is none; and the other ranks may still tell more.
    for error in (failed("", 20, "KeyboardInterrupt"), failed(CLOSED, 20)):
        write_rings(
            tmp_path,
            job,
            telemetry(job),
            phases=("ended", "training"),
            ended_unix_ns=now,
            failures={0: error},
        )
        assert failures(read_rings(tmp_path), now) == []
        assert not is_over(read_rings(tmp_path), now)
