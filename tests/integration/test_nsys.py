"""The real nsys under real launchers: one report per selected rank; exit code, signals and streams stay the job's."""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path

import pytest

from integration.jobs import (
    BIN,
    PROFILE,
    PYTHON,
    environment,
    manifests,
    needs,
    needs_torch,
    run,
    run_folder,
    start,
    wait_for_line,
)
from integration.nsight import JOB, NSYS, needs_nsys, nvtx_ranges, reports, with_nsys

pytestmark = [pytest.mark.slow, needs_nsys]

NSYS_PROFILE = [*PROFILE, "--tool", "nsys", "-t", "nvtx"]
BEHIND = ["rankscope", "profile", "--tool", "nsys", "-t", "nvtx"]


def check(folder: Path, ranks: list[int], source: str) -> None:
    """Exactly these ranks have a report, with the ranges of that rank only."""
    assert reports(folder) == [f"rank-{rank:05d}.nsys-rep" for rank in ranks]
    assert sorted(manifests(folder)) == ranks
    assert not list(folder.glob(".*"))
    for rank, manifest in manifests(folder).items():
        assert (manifest["rank_source"], manifest["state"]) == (source, "done")
        assert manifest["tool"]["name"] == "nsys"
        [window] = manifest["windows"]
        assert (window["state"], window["file"]) == ("whole", f"rank-{rank:05d}.nsys-rep")
    assert set(nvtx_ranges(folder / f"rank-{ranks[-1]:05d}.nsys-rep")) == {f"step of rank {ranks[-1]}"}


def test_a_plain_program_keeps_its_streams_and_exit_code(tmp_path: Path) -> None:
    done = run(
        [*NSYS_PROFILE, "-o", "a/new/folder", PYTHON, JOB, "--exit-code", "7", "--echo-stdin"],
        tmp_path,
        check=False,
        stdin="words\n",
        env=with_nsys(TMPDIR=str(tmp_path)),
    )
    assert done.returncode == 7
    assert done.stdout == f"job of rank 0 begins, TMPDIR {tmp_path}\nstdin: words\n", (
        "nsys's own output is not passed on"
    )
    assert done.stderr.splitlines()[0] == "to stderr"
    assert "1 nsys report, no steps found, " in done.stderr and ", 1 of 1 rank" in done.stderr
    assert "Next: rankscope stats a/new/folder" in done.stderr
    check(tmp_path / "a/new/folder", [0], "single process")
    assert [path.name for path in tmp_path.iterdir()] == ["a"], "nothing is left in TMPDIR"


def test_output_that_is_only_in_the_report_and_an_nsys_that_is_not_on_path(tmp_path: Path) -> None:
    """As nsys spells it; the table needs nsys too."""
    options = ["--nsys", str(NSYS), "--show-output", "false", "--stats=nsys:nvtx_sum"]
    done = run([*NSYS_PROFILE, *options, "-o", "out", PYTHON, JOB], tmp_path)
    assert "begins" not in done.stdout
    assert "NVTX Range Summary" in done.stdout and "step of rank 0" in done.stdout
    assert "to stderr" not in done.stderr
    shutil.rmtree(tmp_path / "out" / ".rankscope")
    check(tmp_path / "out", [0], "single process")


@needs("mpirun.openmpi", "openmpi-bin")
def test_in_front_of_openmpi(tmp_path: Path) -> None:
    openmpi = ["mpirun.openmpi", "--oversubscribe", "-n", "2"]
    run([*NSYS_PROFILE, "--ranks", "1", *openmpi, PYTHON, JOB], tmp_path, env=with_nsys())
    check(run_folder(tmp_path), [1], "OpenMPI")


@needs("mpirun.openmpi", "openmpi-bin")
def test_behind_openmpi_the_exit_code_is_kept(tmp_path: Path) -> None:
    words = ["mpirun.openmpi", "-n", "1", *BEHIND, "-o", "out", PYTHON, JOB, "--exit-code", "7"]
    assert run(words, tmp_path, check=False, env=with_nsys()).returncode == 7
    check(tmp_path / "out", [0], "OpenMPI")


@pytest.mark.thorough
@needs("mpiexec.hydra", "mpich")
def test_behind_mpich_on_two_nodes(tmp_path: Path) -> None:
    mpich = ["mpiexec.hydra", "-launcher", "fork", "-hosts", "nodeA:2,nodeB:2", "-n", "4"]
    words = [*mpich, *BEHIND, "--ranks", "local:0", "-o", "out", PYTHON, JOB, "--exit-code", "7"]
    done = run(words, tmp_path, check=False, env=with_nsys())
    assert done.returncode == 7
    check(tmp_path / "out", [0, 2], "PMI")


@needs("srun", "slurm-wlm slurm-wlm-torque munge")
def test_behind_srun_on_two_nodes(tmp_path: Path, slurm: dict[str, str]) -> None:
    words = [
        "srun",
        "-N2",
        "-n4",
        "--ntasks-per-node=2",
        *BEHIND,
        "--ranks",
        "local:0",
        PYTHON,
        JOB,
        "--exit-code",
        "7",
    ]
    done = run(words, tmp_path, check=False, env=with_nsys(slurm))
    assert done.returncode == 7
    check(run_folder(tmp_path), [0, 2], "Slurm")


@pytest.mark.thorough
@needs("srun", "slurm-wlm slurm-wlm-torque munge")
def test_in_front_of_srun(tmp_path: Path, slurm: dict[str, str]) -> None:
    run(
        [*NSYS_PROFILE, "--ranks", "node:1", "srun", "-N2", "-n2", PYTHON, JOB],
        tmp_path,
        env=with_nsys(slurm),
    )
    check(run_folder(tmp_path), [1], "Slurm")


@needs_torch
def test_one_report_around_torchrun(tmp_path: Path) -> None:
    torchrun = ["torchrun", "--nproc-per-node", "2", JOB]
    run([*NSYS_PROFILE, "--per-node", "-o", "out", *torchrun], tmp_path, env=with_nsys())
    assert reports(tmp_path / "out") == ["node-00000.nsys-rep"]
    ranges = set(nvtx_ranges(tmp_path / "out" / "node-00000.nsys-rep"))
    assert ranges == {"step of rank 0", "step of rank 1"}


@needs_torch
@pytest.mark.thorough
def test_ranges_of_rankscope_are_in_the_report(tmp_path: Path) -> None:
    (tmp_path / "marked.py").write_text(
        "import torch, rankscope\nwith rankscope.trace('our range'):\n    torch.zeros(1)\n"
    )
    run([*NSYS_PROFILE, "-o", "out", PYTHON, "marked.py"], tmp_path, env=with_nsys())
    assert nvtx_ranges(tmp_path / "out" / "rank-00000.nsys-rep") == ["our range"]


def test_signals_go_to_the_job(tmp_path: Path) -> None:
    """SIGUSR1 would kill nsys and leave the job an orphan."""
    words = [*NSYS_PROFILE, "-o", "out", PYTHON, JOB, "--answer", "--seconds", "60"]
    job = start(words, tmp_path, PATH=with_nsys()["PATH"])
    wait_for_line(job, "begins")
    time.sleep(0.5)  # its NVTX range comes after this line
    job.send_signal(signal.SIGUSR1)
    wait_for_line(job, "signal 10")
    job.send_signal(signal.SIGTERM)
    rest = job.communicate(timeout=60)[0]
    assert rest.count("signal 15") == 1
    assert job.returncode == 3
    check(tmp_path / "out", [0], "single process")


def test_a_capture_range_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(
        "import nvtx, time\nfor number in range(4):\n"
        "    with nvtx.annotate(f'part {number}'):\n        time.sleep(0.3)\n"
    )
    run([*NSYS_PROFILE, "-o", "out", "-c", "nvtx:part 1@*", PYTHON, "parts.py"], tmp_path, env=with_nsys())
    assert nvtx_ranges(tmp_path / "out" / "rank-00000.nsys-rep") == ["part 1"]


def test_nsys_ends_before_the_job_and_the_exit_code_is_kept(tmp_path: Path) -> None:
    """After a duration nsys would end the job, or without --kill leave it an orphan and exit with 0."""
    words = [*NSYS_PROFILE, "-o", "out", "--for", "1s", PYTHON, JOB, "--seconds", "3", "--exit-code", "5"]
    assert run(words, tmp_path, check=False, env=with_nsys()).returncode == 5
    assert 0 < len(nvtx_ranges(tmp_path / "out" / "rank-00000.nsys-rep")) < 60


def test_dry_run_shows_each_ranks_line(tmp_path: Path) -> None:
    env = with_nsys(environment(RANK="3", LOCAL_RANK="0", WORLD_SIZE="8", MASTER_ADDR="a", MASTER_PORT="1"))
    done = run([*PROFILE, "--tool", "nsys", "-n", "-o", "out", PYTHON, "t.py"], tmp_path, env=env)
    assert done.stdout == (
        f"rank 3: {NSYS} profile --trace=cuda,nvtx --sample=none --cpuctxsw=none --wait=primary --kill=none "
        f"--output={tmp_path}/out/rank-00003.nsys-rep {PYTHON} t.py\n"
    )
    assert not (tmp_path / "out").exists()
    done = run([*PROFILE, "--tool", "nsys", "-n", "-o", "out", "torchrun", "t.py"], tmp_path, env=with_nsys())
    assert f"__main__.py profile --tool nsys -o {tmp_path}/out" in done.stdout
    assert f"{BIN}/python" in done.stdout
