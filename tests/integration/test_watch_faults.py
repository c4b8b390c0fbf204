"""Faults in real jobs of gloo ranks: `rankscope watch` names the rank and the cause within 20 steps."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from integration.jobs import PROFILE, PYTHON, environment, needs, needs_torch, run, start, steps, traces
from rankscope.analysis.health.hang import hang_in
from rankscope.cli import main
from rankscope.watch.rings import read_rings, tables
from watch import WITHIN, watched

pytestmark = [pytest.mark.slow, needs_torch]

JOB = str(Path(__file__).with_name("train_faulty.py"))
AT = 30
WAIT_S = 90.0


def _can_rename_host() -> bool:
    if shutil.which("unshare") is None:
        return False
    words = ["unshare", "--uts", "hostname", "node1"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("fault", "kind", "causes"),
    [
        ("sleep", "slow-rank", {"host"}),
        ("compute", "slow-rank", {"compute", "host"}),  # on a busy machine it waits for the CPU
        ("data", "slow-rank", {"data loading"}),
        ("spike", "spike", {"host"}),
        ("leak", "memory", {"memory"}),
    ],
)
@pytest.mark.thorough
def test_the_rank_and_the_cause(tmp_path: Path, fault: str, kind: str, causes: set[str]) -> None:
    run([*PROFILE, "--watch", "-o", "out", "torchrun", "--nproc-per-node", "4", JOB, fault], tmp_path)
    (table,) = tables(read_rings(tmp_path / "out"))
    alarms = [alarm for alarm in watched(table, 2, 10) if alarm.kind == kind]
    assert [alarm.ranks for alarm in alarms][:1] == [(1,)], alarms
    assert alarms[0].cause in causes
    assert alarms[0].step <= AT + WITHIN and abs((alarms[0].since_step or 0) - AT) <= 5


@pytest.mark.thorough
@pytest.mark.skipif(not _can_rename_host(), reason="needs root, to give a process another host name")
def test_a_slow_node(tmp_path: Path) -> None:
    """Two nodes on one machine: each launcher sees another host name."""
    env = environment()
    script = "\n".join([*(f"{_as_node(number, env)} &" for number in range(2)), "wait"])
    run(["bash", "-c", script], tmp_path, env=env)
    _names_the_second_node(tmp_path / "out")


@pytest.mark.thorough
@pytest.mark.skipif(not _can_rename_host(), reason="needs root, to give a process another host name")
@needs("srun", "slurm-wlm slurm-wlm-torque munge")
def test_a_slow_node_of_slurm(tmp_path: Path, slurm: dict[str, str]) -> None:
    run(["srun", "-N2", "-n2", "bash", "-c", _as_node("$SLURM_NODEID", slurm)], tmp_path, env=slurm)
    _names_the_second_node(tmp_path / "out")


def _as_node(number: int | str, env: dict[str, str]) -> str:
    """The command of one node of a job on two, under a host name of its own."""
    torchrun = f"torchrun --nnodes 2 --nproc-per-node 2 --master-addr 127.0.0.1 --master-port {env['PET_MASTER_PORT']}"
    words = " ".join([*PROFILE, "--watch", "-o", "out", PYTHON, JOB, "node"])
    return f'unshare --uts sh -c "hostname node{number}; exec {torchrun} --no-python --node-rank {number} {words}"'


def _names_the_second_node(run: Path) -> None:
    (table,) = tables(read_rings(run))
    alarms = [alarm for alarm in watched(table, 2, 10) if alarm.kind == "slow-node"]
    assert [(alarm.node, alarm.ranks, alarm.cause) for alarm in alarms][:1] == [("node1", (2, 3), "host")], (
        alarms
    )
    assert alarms[0].step <= AT + WITHIN


@pytest.mark.thorough
def test_an_alarm_records_the_slow_steps_of_all_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    launch = ["torchrun", "--nproc-per-node", "4", JOB, "sleep", "--at", "10", "--steps", "150"]
    job = start([*PROFILE, "--watch", "-o", "out", *launch], tmp_path)
    _wait_for(folder / "telemetry" / "rank-00003.ring")
    assert main(["watch", str(folder), "--auto-capture", "1"]) == 0
    output, _ = job.communicate(timeout=WAIT_S)
    assert job.returncode == 0, output
    asked = json.loads((folder / "telemetry" / "capture-0001.json").read_text())
    first = asked["first_step"]
    assert asked["reason"].startswith("alarm: rank 1 is slow")
    assert {rank: steps(trace) for rank, trace in traces(folder).items()} == {
        rank: [first, first + 1, first + 2] for rank in range(4)
    }
    assert main(["stats", str(folder), "-q"]) == 0
    assert "Rank 1 costs " in capsys.readouterr().out


@pytest.mark.thorough
def test_the_rank_that_hangs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    launch = ["torchrun", "--nproc-per-node", "4", JOB, "hang", "--at", "12"]
    job = start([*PROFILE, "--watch", "--hang-after", "4s", "-o", "out", *launch], tmp_path)
    try:
        _wait_for(folder / "telemetry" / "rank-00003.ring")
        assert main(["watch", str(folder), "--fail-on", "hang"]) == 3
        for rank in range(4):
            _wait_for(folder / "telemetry" / f"flight-rank-{rank:05d}.json")
        (finding,) = hang_in(folder).findings
    finally:
        job.terminate()
        job.communicate(timeout=WAIT_S)
    assert "have made no step" in capsys.readouterr().out
    assert finding.ranks == (1,) and "flight recorder: rank 1" in finding.evidence


def _wait_for(path: Path) -> None:
    end = time.monotonic() + WAIT_S
    while not path.exists():
        assert time.monotonic() < end, f"no {path.name}"
        time.sleep(0.1)
