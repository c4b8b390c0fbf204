"""Telemetry, requested captures and hangs of real jobs."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from integration.jobs import (
    NOT_COMPILED,
    PROFILE,
    PYTHON,
    TRAIN,
    environment,
    manifests,
    needs_torch,
    our_lines,
    read_trace,
    run,
    start,
    steps,
    traces,
)
from rankscope.capture.capture_request import CaptureRequest, make_request
from rankscope.capture.telemetry_ring import FIELDS, HEADER_BYTES, NONE, PHASES, RECORD, Ring, read_header
from simulated_telemetry import read_state

pytestmark = [pytest.mark.slow, needs_torch]

JOB = str(Path(__file__).with_name("train_watched.py"))
TORCHRUN = ["torchrun", "--nproc-per-node"]
WAIT_S = 60.0


def read_ring(path: Path) -> tuple[Ring, list[dict[str, int]]]:
    data = path.read_bytes()
    ring = read_header(data)
    assert ring is not None
    places = range(HEADER_BYTES, HEADER_BYTES + ring.header.records * RECORD.size, RECORD.size)
    return ring, [dict(zip(FIELDS, RECORD.unpack_from(data, place), strict=True)) for place in places]


def rings(run_folder: Path) -> dict[int, tuple[Ring, list[dict[str, int]]]]:
    return {int(path.name[5:10]): read_ring(path) for path in sorted(run_folder.glob("telemetry/*.ring"))}


def median(records: list[dict[str, int]], field: str) -> float:
    return statistics.median(record[field] for record in records[2:]) / 1e6


def wait_until(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return found


def last_step(run_folder: Path) -> int:
    found = [records[-1]["step"] for _, records in rings(run_folder).values() if records]
    return max(found, default=0)


@pytest.mark.thorough
def test_each_ranks_own_work_and_a_requested_capture_of_the_same_steps(tmp_path: Path) -> None:
    """Four ranks, of which --ranks selects one: all have telemetry and obey. Rank 2 sleeps longer than the others."""
    options = ["--watch", "--ranks", "0", "-o", "out"]
    words = [*PROFILE, *options, *TORCHRUN, "4", JOB, "--slow", "2", "--until", str(tmp_path / "stop")]
    job = start(words, tmp_path)
    folder = tmp_path / "out"
    first = wait_until(lambda: last_step(folder)) + 200
    make_request(folder, CaptureRequest(first, 2, 1, reason="a test"))
    late = CaptureRequest(1, 1, 0, ranks="3")
    make_request(folder, late)
    wait_until(lambda: len(list(folder.glob("rank-*.gz"))) == 4)
    (tmp_path / "stop").touch()
    output, _ = job.communicate(timeout=WAIT_S)
    assert job.returncode == 0, output
    recorded = {rank: steps(trace) for rank, trace in traces(folder).items()}
    assert recorded == {rank: [first, first + 1] for rank in range(4)}
    [note] = manifests(folder)[3]["notes"]
    assert "steps 1-1 were not recorded" in note

    found = rings(folder)
    assert set(found) == set(range(4))
    for rank, (ring, records) in found.items():
        assert (ring.about["rank"], ring.about["world_size"], ring.about["role"]) == (rank, 4, "default")
        assert PHASES[ring.header.phase] == "ended"
        assert [record["step"] for record in records] == list(range(len(records)))
        assert {record["step"] for record in records if record["profiled"]} >= {first - 1, first, first + 1}
        assert all(0 < record["own_ns"] <= record["step_ns"] for record in records)
    own = {rank: median(records, "own_ns") for rank, (_, records) in found.items()}
    waits = {rank: median(records, "wait_ns") for rank, (_, records) in found.items()}
    assert own[2] > 30
    assert all(own[rank] < own[2] - 10 and waits[rank] > waits[2] + 5 for rank in (0, 1, 3))


@pytest.mark.thorough
def test_a_hang_leaves_the_stacks_of_all_ranks(tmp_path: Path) -> None:
    options = ["--watch", "--hang-after", "2s", "-o", "out"]
    words = [*PROFILE, *options, *TORCHRUN, "2", JOB, "--hang", "1", "--until", str(tmp_path / "stop")]
    job = start(words, tmp_path)
    folder = tmp_path / "out" / "telemetry"
    wait_until(lambda: len(list(folder.glob("flight-rank-*.json"))) == 2)
    (tmp_path / "stop").touch()
    output, _ = job.communicate(timeout=WAIT_S)
    assert job.returncode == 0, output
    assert len([line for line in our_lines(output) if "no step for" in line]) == 2
    texts = {rank: (folder / f"stacks-rank-{rank:05d}.txt").read_text() for rank in range(2)}
    assert "backward" in texts[0]
    assert "stand_still" in texts[1]
    assert all("no step for 2 s" in text for text in texts.values())
    flights = {rank: json.loads((folder / f"flight-rank-{rank:05d}.json").read_text()) for rank in range(2)}
    last = {rank: flight["entries"][-1]["collective_seq_id"] for rank, flight in flights.items()}
    assert last[0] == last[1] + 1  # rank 0 waits in a collective that rank 1 has not begun


@pytest.mark.thorough
def test_spawned_ranks_are_ranks(tmp_path: Path) -> None:
    options = ["--watch", "--steps", "2:3", "-o", "out"]
    run([*PROFILE, *options, PYTHON, JOB, "--spawn", "2", "--steps", "6"], tmp_path)
    folder = tmp_path / "out"
    assert {rank: steps(trace) for rank, trace in traces(folder).items()} == {0: [2, 3], 1: [2, 3]}
    assert {rank: one["rank_source"] for rank, one in manifests(folder).items()} == dict.fromkeys(
        range(2), "torch.distributed"
    )
    assert [len(records) for _, records in rings(folder).values()] == [6, 6]


@pytest.mark.thorough
def test_each_trainer_of_a_job_has_a_run_with_its_role(tmp_path: Path) -> None:
    """Two torchruns beside each other, as actor and critic: both have a rank 0."""
    launch = f"torchrun --standalone --nproc-per-node 1 --role %s {JOB} --steps 4"
    (tmp_path / "both.sh").write_text("\n".join([f"{launch % 'actor'} &", f"{launch % 'critic'} &", "wait"]))
    done = run([*PROFILE, "--watch", "-o", "out", "bash", "both.sh"], tmp_path)
    found = [rings(tmp_path / name) for name in ("out", "out-2")]
    assert [[len(records) for _, records in run.values()] for run in found] == [[4], [4]]
    assert {run[0][0].about["role"] for run in found} == {"actor", "critic"}
    assert len([line for line in our_lines(done.stderr) if "several trainers" in line]) == 1


@pytest.mark.thorough
def test_roles_that_wait_for_each_other(tmp_path: Path) -> None:
    """Three processes, each with a folder in that of the run, as Ray's actors. The rollout takes 5 of 8 parts."""
    roles = ("rollout", "reward", "training")
    for role in roles:
        os.mkfifo(tmp_path / role)
    first = os.open(tmp_path / "rollout", os.O_RDWR)
    os.write(first, b"x")
    job = [PYTHON, str(Path(__file__).with_name("train_roles.py")), str(tmp_path)]
    jobs = [
        start(
            [*PROFILE, "--watch", "--job", "one", "-o", f"out/{role}", *job, role],
            tmp_path,
            RANKSCOPE_ROLE=role,
        )
        for role in roles
    ]
    for each in jobs:
        output, _ = each.communicate(timeout=WAIT_S)
        assert each.returncode == 0, output
    os.close(first)
    state, _ = read_state(tmp_path / "out")
    waits = {role["role"]: (role["waits_for"], role["ranks"]) for role in state["roles"]}
    assert waits == {"reward": ("rollout", [0]), "rollout": ("training", [1]), "training": ("reward", [2])}
    assert state["bottleneck"].startswith("rollout is the bottleneck: "), state["roles"]


ACTOR = (
    NOT_COMPILED
    + """\
import sys, torch
rank, port = sys.argv[1:]
model = torch.nn.Linear(4, 4)
torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=int(rank), world_size=2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""
)


@pytest.mark.thorough
def test_a_process_without_a_launcher_is_the_rank_that_its_process_group_says(tmp_path: Path) -> None:
    """As an actor of Ray: started by a process that knows no ranks."""
    (tmp_path / "actor.py").write_text(ACTOR)
    env = environment()
    launch = f"{PYTHON} actor.py %d {env['PET_MASTER_PORT']}"
    (tmp_path / "both.sh").write_text("\n".join([f"{launch % 0} &", f"{launch % 1} &", "wait"]))
    run([*PROFILE, "--watch", "-o", "out", "bash", "both.sh"], tmp_path, env=env)
    assert {rank: len(records) for rank, (_, records) in rings(tmp_path / "out").items()} == {0: 3, 1: 3}


@pytest.mark.thorough
def test_workers_that_are_spawned_are_no_ranks(tmp_path: Path) -> None:
    words = [PYTHON, TRAIN, "--workers", "1", "--worker-context", "spawn", "--steps", "4"]
    done = run([*PROFILE, "--watch", "-o", "out", *words], tmp_path)
    assert [len(records) for _, records in rings(tmp_path / "out").values()] == [4]
    assert manifests(tmp_path / "out")[0]["rank_source"] == "single process"
    assert "nothing was captured" not in done.stderr


@pytest.mark.thorough
def test_a_schedule_beside_the_telemetry(tmp_path: Path) -> None:
    """After the schedule is over the steps are still counted; each step has the time of its data loading."""
    run([*PROFILE, "--watch", "--steps", "1:2", "-o", "out", PYTHON, TRAIN, "--steps", "9"], tmp_path)
    assert steps(read_trace(tmp_path / "out/rank-00000.pt.trace.json.gz")) == [1, 2]
    _, records = read_ring(tmp_path / "out/telemetry/rank-00000.ring")
    assert [record["step"] for record in records] == list(range(9))
    assert all(record["own_ns"] == record["step_ns"] for record in records)
    assert all(record["first_ns"] == NONE for record in records)
    assert all(min(record["data_ns"], record["optimizer_ns"], record["cpu_ns"]) > 0 for record in records)
    assert all(record["memory_bytes"] > 0 for record in records)


IN_CODE = """\
import rankscope, torch
rankscope.watch("out", hang_after_s=30)
for step in range(5):
    rankscope.mark_step()
"""


@pytest.mark.thorough
def test_watch_in_the_code(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(IN_CODE)
    run([PYTHON, "loop.py"], tmp_path, env=environment())
    ring, records = read_ring(tmp_path / "out/telemetry/rank-00000.ring")
    assert ring.about["hang_after_s"] == 30
    assert [record["step"] for record in records] == list(range(5))


COMPILED = """\
import rankscope, torch
rankscope.watch("out")
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step(inputs):
    model(inputs).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
compiled = torch.compile(step, backend="eager")
for _ in range(4):
    compiled(torch.ones(2, 4))
"""


@pytest.mark.thorough
def test_a_compiled_step_is_compiled_as_it_is_alone(tmp_path: Path) -> None:
    """torch.compile warns about a hook that it tries to trace."""
    (tmp_path / "compiled.py").write_text(COMPILED)
    done = run([PYTHON, "compiled.py"], tmp_path)
    assert "Dynamo does not know" not in done.stderr
    assert [len(records) for _, records in rings(tmp_path / "out").values()] == [4]
