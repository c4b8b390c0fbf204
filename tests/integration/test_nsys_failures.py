"""Cases in which the real nsys fails silently are prevented or reported. The job runs once in each of them."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from integration.jobs import PROFILE, PYTHON, manifests, needs, our_lines, run, start, wait_for_line
from integration.nsight import (
    JOB,
    NSYS,
    agents_of,
    link_importer,
    needs_nsys,
    nvtx_ranges,
    reports,
    target_only_nsys,
    with_nsys,
)
from rankscope.capture.under_tool.preflight import has_driver

pytestmark = [pytest.mark.slow, needs_nsys]

PLAIN = [*PROFILE, "--tool", "nsys", "-t", "nvtx", "-o", "out"]
without_driver = pytest.mark.skipif(has_driver(), reason="needs a machine without an NVIDIA driver")


def said(stderr: str) -> str:
    return "\n".join(our_lines(stderr))


def test_a_variable_that_is_not_set_in_the_name(tmp_path: Path) -> None:
    """nsys would use the text as the file name, and ranks would overwrite each other."""
    words = [*PROFILE, "--tool", "nsys", "-o", "out-%q{NOT_SET}", PYTHON, JOB, "--exit-code", "4"]
    done = run(words, tmp_path, check=False, env=with_nsys())
    assert done.returncode == 4
    assert "names NOT_SET, which is not set" in said(done.stderr)
    assert not list(tmp_path.iterdir())


def test_a_report_that_exists_is_not_replaced(tmp_path: Path) -> None:
    """nsys would write to /tmp, with exit code 0."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "rank-00000.nsys-rep").write_text("somebody's")
    done = run([*PLAIN, PYTHON, JOB], tmp_path, env=with_nsys())
    assert "exists already" in done.stderr
    assert "The job runs without nsys" in done.stderr
    assert done.stdout.count("begins") == 1
    assert (tmp_path / "out" / "rank-00000.nsys-rep").read_text() == "somebody's"


def test_force_replaces_it(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "rank-00000.nsys-rep").write_text("somebody's")
    run([*PLAIN, "-f", PYTHON, JOB], tmp_path, env=with_nsys())
    assert nvtx_ranges(tmp_path / "out" / "rank-00000.nsys-rep")


def test_tmpdir_that_names_no_folder(tmp_path: Path) -> None:
    """nsys would end with 1 before the job has begun."""
    done = run([*PLAIN, PYTHON, JOB], tmp_path, env=with_nsys(TMPDIR="/no/such/folder"))
    assert "TMPDIR=/no/such/folder cannot be used" in said(done.stderr)
    assert "TMPDIR /no/such/folder" in done.stdout, "the job's TMPDIR is not changed"
    assert reports(tmp_path / "out") == ["rank-00000.nsys-rep"]


def test_a_range_that_never_opens(tmp_path: Path) -> None:
    """nsys would end with 0 and leave nothing."""
    done = run(
        [*PLAIN, "-c", "cudaProfilerApi", PYTHON, JOB, "--exit-code", "5"],
        tmp_path,
        check=False,
        env=with_nsys(),
    )
    assert done.returncode == 5
    assert "the capture range (cudaProfilerApi) never opened" in said(done.stderr)
    assert not reports(tmp_path / "out")
    [manifest] = manifests(tmp_path / "out").values()
    assert manifest["windows"] == []
    assert "never opened" in manifest["notes"][-1]


@without_driver
def test_cuda_and_steps_without_a_driver(tmp_path: Path) -> None:
    """nsys would leave CUDA out, or record nothing at all; with GPU metrics it would not start the job."""
    words = [
        *PROFILE,
        "--tool",
        "nsys",
        "-o",
        "out",
        "--steps",
        "2:3",
        "--gpu-metrics-device",
        "all",
        PYTHON,
        JOB,
    ]
    done = run(words, tmp_path, env=with_nsys())
    assert "no CUDA events" in said(done.stderr)
    assert "the whole run is recorded" in said(done.stderr)
    assert "without --gpu-metrics-device" in said(done.stderr)
    assert done.stdout.count("begins") == 1
    assert reports(tmp_path / "out") == ["rank-00000.nsys-rep"]


def test_what_nsys_refuses_is_left_out(tmp_path: Path) -> None:
    done = run([*PLAIN, "--tool-arg=--gpu-metrics-device=all", PYTHON, JOB], tmp_path, env=with_nsys())
    assert "nsys refused to start the job (" in said(done.stderr)
    assert "trying again without the extra options" in said(done.stderr)
    assert done.stdout.count("begins") == 1
    assert reports(tmp_path / "out") == ["rank-00000.nsys-rep"]


def test_a_job_that_nsys_never_starts_runs_without_it(tmp_path: Path) -> None:
    words = [*PROFILE, "--tool", "nsys", "-o", "out", "-t", "nonsense", PYTHON, JOB, "--exit-code", "6"]
    done = run(words, tmp_path, check=False, env=with_nsys())
    assert done.returncode == 6
    assert "Illegal --trace argument 'nonsense'" in said(done.stderr)
    assert "the job runs without it" in said(done.stderr)
    assert done.stdout.count("begins") == 1


def test_an_argument_of_the_user_replaces_ours(tmp_path: Path) -> None:
    """nsys refuses two of a kind, and would not start the job."""
    words = [*PLAIN, "--tool-arg=-t", "--tool-arg=nvtx,osrt", "--tool-arg=--wait=all"]
    done = run([*words, PYTHON, JOB], tmp_path, env=with_nsys())
    assert "refused" not in done.stderr
    assert reports(tmp_path / "out") == ["rank-00000.nsys-rep"]


@without_driver
def test_a_dry_run_shows_what_a_gpu_node_would_run(tmp_path: Path) -> None:
    words = [
        *PROFILE,
        "--tool",
        "nsys",
        "-n",
        "--gpu-metrics-devices",
        "all",
        "--steps",
        "2:3",
        "python",
        "t.py",
    ]
    done = run(words, tmp_path, env=with_nsys())
    assert "--capture-range=cudaProfilerApi" in done.stdout
    assert "--gpu-metrics-device=all" in done.stdout, "as this version of nsys spells it"
    assert "no NVIDIA driver here: this is what a node with one would run" in done.stderr
    ncu = tmp_path / "ncu"
    ncu.write_text("#!/bin/sh\necho 'Version 2024.1.1.0'\n")
    ncu.chmod(0o755)
    done = run([*PROFILE, "--tool", "ncu", "-n", "--ncu", str(ncu), "python", "t.py"], tmp_path)
    assert "--kernel-name=regex" in done.stdout


def test_no_nsys_at_all(tmp_path: Path) -> None:
    done = run([*PROFILE, "--tool", "nsys", PYTHON, JOB, "--exit-code", "6"], tmp_path, check=False)
    assert done.returncode == 6
    assert done.stderr.startswith(
        "rankscope: rank 0: cannot find nsys\n  Nsight Systems is not on PATH.\n  Load its module, install Nsight "
        "Systems (https://developer.nvidia.com/nsight-systems), or give its path: --nsys PATH"
    )
    assert not list(tmp_path.iterdir())


@needs("mpirun.openmpi", "openmpi-bin")
def test_a_launcher_whose_ranks_find_no_nsys(tmp_path: Path) -> None:
    launcher = ["mpirun.openmpi", "-n", "1"]
    done = run([*PROFILE, "--tool", "nsys", "-o", "out", *launcher, PYTHON, JOB], tmp_path)
    assert (
        "nothing was captured: no selected rank (--ranks auto) of the command ran under nsys" in done.stderr
    )
    assert "is gone" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_job_that_is_killed(tmp_path: Path) -> None:
    done = run([*PLAIN, PYTHON, JOB, "--kill", "9"], tmp_path, check=False, env=with_nsys())
    assert done.returncode == 137
    assert reports(tmp_path / "out") == ["rank-00000.nsys-rep"]


# Starts the real nsys and kills all of it as soon as it makes the report, as a batch system does at the end of a job.
KILLED = f"""#!{sys.executable}
import os, pathlib, signal, subprocess, sys
real = "{NSYS}"
if sys.argv[1] == "--version":
    os.execv(real, [real, "--version"])
nsys = subprocess.Popen([real, *sys.argv[1:]], close_fds=False)
while nsys.poll() is None:
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes()
            if b"QdstrmImporter" in words and os.environ["TMPDIR"].encode() in words:
                agent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                # And this process at once: an importer that is seen again may be a child of rankscope by then.
                for pid in (int(path.name), agent, nsys.pid, os.getpid()):
                    os.kill(pid, signal.SIGKILL)
        except OSError:
            continue
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("importer", [False, True])
def test_killed_before_the_report_is_made(tmp_path: Path, importer: bool) -> None:
    stand_in = tmp_path / "tool" / "nsys"
    stand_in.parent.mkdir()
    stand_in.write_text(KILLED)
    stand_in.chmod(0o755)
    if importer:
        link_importer(stand_in.parent)
    words = [*PLAIN, "--nsys", str(stand_in), PYTHON, JOB]
    done = run(words, tmp_path, check=False, env=with_nsys())
    assert done.stdout.count("begins") == 1
    if importer:
        assert "its .qdstrm was converted" in said(done.stderr)
        assert nvtx_ranges(tmp_path / "out" / "rank-00000.nsys-rep")
    else:
        assert f"QdstrmImporter -i {tmp_path}/out/rank-00000.qdstrm" in said(done.stderr)
        assert (tmp_path / "out" / "rank-00000.qdstrm").stat().st_size


@pytest.mark.thorough
def test_an_installation_without_the_importer(tmp_path: Path) -> None:
    """nsys leaves a .qdstrm, exit code 0. It is converted where the importer of that version is, when it is read."""
    nsys = target_only_nsys(tmp_path / "tool")
    done = run([*PLAIN, "--nsys", str(nsys), PYTHON, JOB], tmp_path)
    stream = tmp_path / "out" / "rank-00000.qdstrm"
    assert stream.stat().st_size
    assert "nsys has no importer here: the recording is rank-00000.qdstrm" in said(done.stderr)
    assert f"QdstrmImporter -i {stream} -o {stream.with_suffix('.nsys-rep')}" in said(done.stderr)
    stats = [
        PYTHON,
        "-m",
        "rankscope",
        "stats",
        "out",
        "--compat",
        "nsys",
        "-r",
        "nvtx_sum",
        "--format",
        "csv",
    ]
    refused = run([*stats, "--nsys", str(nsys)], tmp_path, check=False)
    assert refused.returncode == 1
    assert "rank-00000.qdstrm must be converted before it can be read" in refused.stderr
    assert "there is none here" in refused.stderr
    stream.parent.chmod(0o555)
    elsewhere = run([*stats, "--nsys", str(NSYS), "--cache", "cache"], tmp_path)
    assert "step of rank 0" in elsewhere.stdout
    assert len(list(tmp_path.glob("cache/*/converted/*/rank-00000.nsys-rep"))) == 1
    assert list(stream.parent.glob("*.nsys-rep")) == []
    stream.parent.chmod(0o755)
    assert run([*stats, "--nsys", str(NSYS)], tmp_path).stdout == elsewhere.stdout
    report = stream.with_suffix(".nsys-rep")
    before = report.stat().st_mtime_ns
    assert nvtx_ranges(report)
    assert run([*stats, "--nsys", str(nsys)], tmp_path).stdout == elsewhere.stdout, "the store has it already"
    assert report.stat().st_mtime_ns == before


def test_nsys_killed_in_mid_run_leaves_the_job_alone(tmp_path: Path) -> None:
    job = start([*PLAIN, PYTHON, JOB, "--seconds", "3", "--exit-code", "8"], tmp_path, **{
        name: with_nsys(TMPDIR=str(tmp_path))[name] for name in ("PATH", "TMPDIR")
    })  # fmt: skip
    wait_for_line(job, "begins")
    os.kill(child_named(job.pid, "nsys"), signal.SIGKILL)
    rest = job.communicate(timeout=60)[0]
    assert job.returncode == 8
    assert "nsys was killed" in rest
    assert not agents_of(str(tmp_path)), "its agents are gone"


def test_killing_the_wrapper_ends_the_job(tmp_path: Path) -> None:
    """A launcher's SIGKILL goes to the process it started; no process of the rank may survive."""
    env = {name: with_nsys(TMPDIR=str(tmp_path))[name] for name in ("PATH", "TMPDIR")}
    job = start([*PLAIN, PYTHON, JOB, "--seconds", "120"], tmp_path, **env)
    wait_for_line(job, "begins")
    application = int(next(tmp_path.glob("rankscope-nsys-*/application.pid")).read_text())
    job.kill()
    job.communicate(timeout=60)
    deadline = time.monotonic() + 30
    while alive(application) or agents_of(str(tmp_path)):
        assert time.monotonic() < deadline, "the job or nsys still runs"
        time.sleep(0.1)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def child_named(parent: int, name: str) -> int:
    for task in Path(f"/proc/{parent}/task").iterdir():
        for child in (task / "children").read_text().split():
            words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
            if Path(words[0]).name == name and "profile" in words:
                return int(child)
    raise AssertionError(f"no child {name}")
