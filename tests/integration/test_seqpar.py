"""`rankscope bench seqpar` with real ranks over gloo, with and without a launcher."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from integration.jobs import BIN, PROFILE, PYTHON, manifests, needs, needs_torch, run, steps, traces

pytestmark = [pytest.mark.slow, needs_torch]

BENCH = [PYTHON, "-m", "rankscope", "bench", "seqpar"]
SMALL = ["-s", "64", "-d", "32", "-it", "3", "-wit", "8"]
OPENMPI = ["mpirun.openmpi", "--oversubscribe", "-n"]
MPICH = ["mpiexec.hydra", "-launcher", "fork", "-n"]


def check(text: str, ranks: int, launcher: str, **config: Any) -> dict[str, Any]:
    """The report is of this number of ranks, its result is correct and its figures are consistent."""
    report: dict[str, Any] = json.loads(text)
    expected = {"ranks": ranks, "launcher": launcher, "backend": "gloo", "sequence": 64, **config}
    assert {key: report["config"][key] for key in expected} == expected
    assert report["check"]["relative_error"] <= report["check"]["tolerance"]
    assert [one["rank"] for one in report["ranks"]] == list(range(ranks))
    for one in report["ranks"]:
        parts = sum(times["total_ns"] for times in one["parts"].values())
        assert abs(parts - one["iteration"]["total_ns"]) <= 1
        assert parts <= one["wall_ns"] <= report["time_to_solution_ns"]
    gather = report["parts"][0]
    assert gather["algbw_gb_s"] == pytest.approx(gather["bytes"] / gather["p50_ns"])
    assert gather["busbw_gb_s"] == pytest.approx(gather["algbw_gb_s"] * (ranks - 1) / ranks)
    return report


@pytest.mark.thorough
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_without_a_launcher_in_both_precisions_with_overlap(tmp_path: Path, precision: str) -> None:
    done = run([*BENCH, *SMALL, "--nproc", "2", "-p", precision, "--overlap", "--json"], tmp_path)
    report = check(done.stdout, 2, "RANK", precision=precision)
    assert report["overlap"]["chunks"] == 4
    assert report["overlap"]["speedup"] > 0
    assert "Exception raised" not in done.stderr, "torch's warning is a note of ours"


@pytest.mark.thorough
def test_one_rank_needs_no_launcher(tmp_path: Path) -> None:
    done = run([*BENCH, *SMALL], tmp_path)
    assert "seqpar: 1 rank, S 64, H 32, float32" in done.stdout
    assert "Checked against a single-process reference" in done.stdout


@pytest.mark.thorough
def test_under_torchrun(tmp_path: Path) -> None:
    torchrun = ["torchrun", "--standalone", "--nproc-per-node", "2", "-m", "rankscope", "bench", "seqpar"]
    check(run([*torchrun, *SMALL, "--json"], tmp_path).stdout, 2, "torchrun")


@pytest.mark.thorough
@needs("mpirun.openmpi", "openmpi-bin")
def test_under_openmpi(tmp_path: Path) -> None:
    check(run([*OPENMPI, "4", *BENCH, *SMALL, "--json"], tmp_path).stdout, 4, "OpenMPI")


@pytest.mark.thorough
@needs("mpiexec.hydra", "mpich")
def test_under_mpich(tmp_path: Path) -> None:
    check(run([*MPICH, "2", *BENCH, *SMALL, "--json"], tmp_path).stdout, 2, "PMI")


@pytest.mark.thorough
@needs("srun", "slurm-wlm slurm-wlm-torque munge")
def test_under_srun_on_two_nodes(tmp_path: Path, slurm: dict[str, str]) -> None:
    srun = ["srun", "-N2", "-n4", "--ntasks-per-node=2"]
    check(run([*srun, *BENCH, *SMALL, "--json"], tmp_path, env=slurm).stdout, 4, "Slurm")


@pytest.mark.thorough
def test_profile_leaves_a_run_of_every_rank(tmp_path: Path) -> None:
    done = run([*BENCH, *SMALL, "--nproc", "2", "--profile", "-o", "out"], tmp_path)
    found = traces(tmp_path / "out")
    assert sorted(found) == [0, 1]
    assert {tuple(steps(trace)) for trace in found.values()} == {(2, 3, 4)}
    names = {event.get("name") for event in found[1]["traceEvents"]}
    assert names >= {"ALLGATHER", "matmul1", "matmul2", "REDUCE_SCATTER"}
    assert "Next: rankscope stats" in done.stderr
    again = run([*BENCH, *SMALL, "--nproc", "2", "--profile", "-o", "out"], tmp_path, check=False)
    assert again.returncode == 2
    assert "holds another run" in again.stderr


@pytest.mark.thorough
def test_rankscope_profile_in_front_counts_iterations_as_steps(tmp_path: Path) -> None:
    run([*PROFILE, "--ranks", "all", "--steps", "2:4", "-o", "out", *BENCH, *SMALL, "--nproc", "2"], tmp_path)
    found = traces(tmp_path / "out")
    assert {tuple(steps(trace)) for trace in found.values()} == {(2, 3, 4)}
    assert manifests(tmp_path / "out")[1]["steps"] == 11


@pytest.mark.thorough
def test_an_error_is_printed_once_and_ends_all_ranks(tmp_path: Path) -> None:
    done = run([*BENCH, "-s", "7", "--nproc", "2"], tmp_path, check=False)
    assert done.returncode == 2
    assert done.stderr.count("S = 7 cannot be split over 2 ranks") == 1
    done = run([*BENCH, *SMALL, "--nproc", "2", "--backend", "xccl"], tmp_path, check=False)
    assert done.returncode == 2
    assert done.stderr.count("--backend xccl is not available") == 1


def test_nproc_inside_a_launcher_is_refused(tmp_path: Path) -> None:
    env = {**os.environ, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    done = run([*BENCH, "--nproc", "2"], tmp_path, check=False, env=env)
    assert done.returncode == 2
    assert "Leave --nproc out" in done.stderr


@pytest.mark.thorough
def test_sweep(tmp_path: Path) -> None:
    words = [str(BIN / "rankscope"), "bench", "sweep", "-s", "32,64", "-d", "16", "-it", "2", "-wit", "1"]
    done = run([*words, "--chart", "sweep.csv", "-o", "sweep", "--profile=--steps 0:1"], tmp_path)
    assert len([line for line in done.stdout.splitlines() if line.split()[2:3] == ["float32"]]) == 2
    assert [sorted(manifests(tmp_path / "sweep" / f"point-00{n}")) for n in (1, 2)] == [[0], [0]]
    assert run([*words[:3], "--read", "sweep"], tmp_path).stdout == done.stdout
    again = run([*words[:3], "-s", "32", "-d", "16", "-it", "1", "-wit", "1", "-o", "sweep", "-f"], tmp_path)
    assert "Profiled" not in again.stdout and [path.name for path in (tmp_path / "sweep").iterdir()] == [
        "point-001.json"
    ]
    assert len((tmp_path / "sweep.csv").read_text().splitlines()) == 3
