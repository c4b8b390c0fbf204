"""Batch jobs on a private two-node Slurm, with its sbatch and its qsub."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path

import pytest

from integration.jobs import NOT_COMPILED, PYTHON, manifests, needs, needs_torch, run, steps, traces
from integration.nsight import needs_nsys, reports, with_nsys

pytestmark = [pytest.mark.slow, needs("sbatch", "slurm-wlm slurm-wlm-torque munge")]

JOB = [PYTHON, "-m", "rankscope", "job"]
# Both nodes are this machine, whose name need not be known to itself.
SEQPAR = ["--", "rankscope", "bench", "seqpar", "-s", "64", "-d", "32", "-it", "3"]
HERE = ["--env", "MASTER_ADDR=127.0.0.1", "--walltime", "4m"]
TWO_NODES = ["--nodes", "2", "--ppn", "2", *HERE]
GO = ["--submit", "--wait"]
ENDLESS = (
    NOT_COMPILED
    + """\
import os, pathlib, time, torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1_000_000):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if step == 6:
        pathlib.Path("ready-" + os.environ["SLURM_PROCID"]).touch()
    time.sleep(0.02)
"""
)


def output_of(folder: Path, pattern: str) -> str:
    [path] = folder.glob(pattern)
    return path.read_text()


@needs_torch
def test_slurm_and_torch(tmp_path: Path, slurm: dict[str, str]) -> None:
    words = [*JOB, "slurm", *TWO_NODES, "--ranks", "0,3", "--active", "3", "-o", "runs/a", *GO, *SEQPAR]
    done = run(words, tmp_path, env=slurm)
    job = done.stdout.strip()
    assert job.isdecimal()
    assert f"rankscope: job {job}: completed" in done.stderr
    folder = tmp_path / "runs" / "a"
    found = manifests(folder)
    assert list(found) == [0, 3], "exactly the chosen ranks, of both nodes"
    assert [manifest["node"] for manifest in found.values()] == [0, 1]
    assert sorted(path.name for path in folder.glob("*.gz")) == [
        "rank-00000.pt.trace.json.gz",
        "rank-00003.pt.trace.json.gz",
    ]
    text = output_of(tmp_path, f"seqpar-{job}.out")
    assert "Checked against a single-process reference" in text
    assert "2 ranks, 3 steps" in text, "the tables stand at the end"
    assert not list(Path("/tmp").glob(f"rankscope-*-{job}/run")), "nothing stays on the nodes"


@pytest.mark.thorough
@needs_torch
@needs_nsys
def test_slurm_and_nsys(tmp_path: Path, slurm: dict[str, str]) -> None:
    env = with_nsys(slurm)
    words = [*JOB, "slurm", *TWO_NODES, "--tool", "nsys", "-t", "nvtx", "--ranks", "local:1", "-o", "run"]
    run([*words, *GO, *SEQPAR], tmp_path, env=env)
    assert reports(tmp_path / "run") == ["rank-00001.nsys-rep", "rank-00003.nsys-rep"]


@pytest.mark.thorough
@needs_torch
def test_delete_stops_the_job_and_keeps_its_traces(tmp_path: Path, slurm: dict[str, str]) -> None:
    """`job delete` sends the same signal as Slurm before the end of the walltime (--signal=B:TERM@60). The walltime
    counts in minutes, too long for a test.
    """
    (tmp_path / "endless.py").write_text(ENDLESS)
    words = [*JOB, "slurm", "--nodes", "2", *HERE, "--ranks", "all", "--active", "1000000", "-o", "run", *GO]
    words += ["--", PYTHON, "endless.py"]
    with subprocess.Popen(words, cwd=tmp_path, env=slurm, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None
        job = waiting.stdout.readline().strip()
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("ready-[01]"))) < 2:
            assert time.monotonic() < deadline, "the ranks did not start"
            time.sleep(0.1)
        assert "Asked job" in run([*JOB, "delete", job], tmp_path, env=slurm).stdout
        assert waiting.wait(60) == 143
    folder = tmp_path / "run"
    (folder / ".job-exit-code").unlink()
    for manifest in manifests(folder).values():
        assert [window["state"] for window in manifest["windows"]] == ["partial"]
    assert "2 ranks, " in output_of(tmp_path, "endless-*.out"), "the tables of what there is"
    assert "ended early" in output_of(tmp_path, "endless-*.err")
    for path in folder.glob(".rankscope"):
        path.rename(tmp_path / "store")
    found = traces(folder)
    assert list(found) == [0, 1]
    assert all(len(steps(trace)) > 1 for trace in found.values())


@needs("qsub", "slurm-wlm-torque")
@needs("mpiexec.hydra", "mpich")
def test_pbs_through_qsub(tmp_path: Path, slurm: dict[str, str]) -> None:
    """Arguments arrive unchanged, and so does the exit code, which this qstat does not show. The output is in files
    with the job's id in their names. This qsub gives no node file: the launcher says where rank 0 is.
    """
    odd = 'it\'s "two"\nlines, $HOME'
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\nopen('said-' + os.environ['PMI_RANK'], 'w').write(sys.argv[1])\n"
        "sys.stdout.write('meet at ' + os.environ['MASTER_ADDR'] + chr(10))\n"
        "print('bad', file=sys.stderr)\nsys.exit(7)\n"
    )
    words = [*JOB, "pbs", "--nodes", "2", "--ppn", "2", "--walltime", "4m", "--launcher", "mpich", *GO]
    words += ["--stdout", "logs/%j.out", "--stderr", "logs/%j.err", "--", PYTHON, str(program), odd]
    done = run(words, tmp_path, env=slurm, check=False)
    assert done.returncode == 7, done.stderr
    assert {path.name: path.read_text() for path in tmp_path.glob("said-*")} == {
        f"said-{n}": odd for n in range(4)
    }
    number = done.stdout.strip().partition(".")[0]
    assert (tmp_path / "logs" / f"{number}.out").read_text().count(f"meet at {socket.gethostname()}\n") == 4
    assert "bad" in (tmp_path / "logs" / f"{number}.err").read_text()


@pytest.mark.thorough
@needs_torch
def test_sweep(tmp_path: Path, slurm: dict[str, str]) -> None:
    words = [
        PYTHON,
        "-m",
        "rankscope",
        "bench",
        "sweep",
        "--job",
        "slurm",
        "--nodes",
        "1,2",
        "--ppn",
        "1",
        *HERE,
    ]
    grid = ["-s", "64", "-d", "32", "-p", "float32,bfloat16", "-it", "2", "-wit", "1", "-o", "sweep"]
    job = run([*words, *grid, "--profile=--ranks all", *GO], tmp_path, env=slurm).stdout.strip()
    folder = tmp_path / "sweep"
    table = run([PYTHON, "-m", "rankscope", "bench", "sweep", "--read", str(folder)], tmp_path).stdout
    rows = [line.split()[:4] for line in table.splitlines()[2:6]]
    assert rows == [["64", "32", p, n] for p in ("float32", "bfloat16") for n in ("1", "2")]
    assert table in output_of(tmp_path, f"sweep-{job}.out")
    ranks = [sorted(manifests(folder / f"point-00{number}")) for number in range(1, 5)]
    assert ranks == [[0], [0, 1], [0], [0, 1]], "a run folder for every point, with the ranks of both nodes"
    assert all(len(list(path.glob("*.gz"))) for path in folder.glob("point-???"))
