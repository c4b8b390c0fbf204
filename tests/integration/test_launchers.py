"""One unchanged script under every launcher: the selected ranks write files, no others do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from integration.jobs import (
    NOT_COMPILED,
    PROFILE,
    PYTHON,
    STANDIN,
    TRAIN,
    environment,
    manifests,
    needs,
    needs_torch,
    our_lines,
    run,
    run_folder,
    steps,
    traces,
)

pytestmark = [pytest.mark.slow, needs_torch]

TORCHRUN = ["torchrun", "--nproc-per-node", "2"]
OPENMPI = ["mpirun.openmpi", "--oversubscribe", "-n", "2"]
MPICH = ["mpiexec.hydra", "-launcher", "fork", "-hosts", "nodeA:2,nodeB:2", "-n", "4"]
SRUN = ["srun", "-N2", "-n4", "--ntasks-per-node=2"]


def check(
    folder: Path, ranks: list[int], source: str, recorded: tuple[int, ...] = tuple(range(2, 8))
) -> None:
    """Exactly these ranks have a complete trace of these steps, and matching manifests."""
    found = traces(folder)
    assert sorted(found) == ranks
    assert {tuple(steps(trace)) for trace in found.values()} == {recorded}
    assert sorted(manifests(folder)) == ranks
    for rank, manifest in manifests(folder).items():
        assert manifest["rank_source"] == source
        assert manifest["state"] == "done"
        assert found[rank]["rankscope"]["rank"] == rank
        [window] = manifest["windows"]
        assert (window["state"], window["why"]) == ("whole", None)
        assert (window["first_step"], window["last_step"]) == (recorded[0], recorded[-1])


def test_plain_python(tmp_path: Path) -> None:
    done = run([*PROFILE, PYTHON, TRAIN], tmp_path)
    check(run_folder(tmp_path), [0], "single process")
    assert "Next: rankscope stats rankscope-train-" in done.stderr
    assert re.search(r"paused for at most .* by torch, .* by rankscope", done.stderr)


@pytest.mark.thorough
def test_python_m_with_options_of_the_profiler(tmp_path: Path) -> None:
    (tmp_path / "training.py").write_text(NOT_COMPILED + Path(TRAIN).read_text())
    options = ["--record-shapes", "--profile-memory", "--with-stack", "--with-flops", "--with-modules"]
    run([*PROFILE, "--steps", "5:6", *options, "--activities", "cpu", PYTHON, "-m", "training"], tmp_path)
    folder = run_folder(tmp_path)
    assert folder.name.startswith("rankscope-training-")
    check(folder, [0], "single process", (5, 6))
    trace = traces(folder)[0]
    assert (trace["record_shapes"], trace["profile_memory"], trace["with_stack"]) == (1, 1, 1)
    assert any(event.get("cat") == "python_function" for event in trace["traceEvents"])


@pytest.mark.thorough
def test_shell_script_with_several_pythons(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(
        f"{PYTHON} -c 'import torch'\n{PYTHON} -c 'print(1)'\n{PYTHON} {STANDIN}\n"
    )
    done = run([*PROFILE, "-o", "out", "bash", "job.sh"], tmp_path)
    check(tmp_path / "out", [0], "single process")
    assert len([line for line in our_lines(done.stderr) if "is on disk" not in line]) == 1


@pytest.mark.thorough
def test_shell_script_with_torchrun_inside_never_captures_the_agent(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(f"torchrun --nproc-per-node 2 {STANDIN}\n")
    run([*PROFILE, "-o", "out", "--ranks", "all", "bash", "job.sh"], tmp_path)
    check(tmp_path / "out", [0, 1], "torchrun")


@pytest.mark.thorough
def test_in_front_of_torchrun(tmp_path: Path) -> None:
    done = run([*PROFILE, "--ranks", "1", *TORCHRUN, "--", TRAIN, "--ddp", "--workers", "1"], tmp_path)
    check(run_folder(tmp_path), [1], "torchrun")
    assert re.search("1 trace, steps 2-7, .* 1 of 2 ranks: stragglers cannot be judged", done.stderr)


@pytest.mark.thorough
def test_in_front_of_python_m_torch_distributed_run(tmp_path: Path) -> None:
    run([*PROFILE, PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2", TRAIN], tmp_path)
    check(run_folder(tmp_path), [0, 1], "torchrun")


@pytest.mark.thorough
def test_behind_torchrun(tmp_path: Path) -> None:
    done = run([*TORCHRUN, "--no-python", "rankscope", "profile", PYTHON, TRAIN], tmp_path)
    check(run_folder(tmp_path), [0, 1], "torchrun")
    assert [
        line for line in our_lines(done.stderr) if "2 of 2 ranks" in line and "Next: rankscope stats" in line
    ]


@pytest.mark.thorough
@needs("mpirun.openmpi", "openmpi-bin")
def test_behind_openmpi_through_a_shell(tmp_path: Path) -> None:
    done = run([*OPENMPI, "bash", "-c", f"rankscope profile --ranks 1-7 {PYTHON} {STANDIN}"], tmp_path)
    check(run_folder(tmp_path), [1], "OpenMPI")
    assert len(our_lines(done.stderr)) == 1, "rank 0 is not selected: rank 1 prints the summary"


@pytest.mark.thorough
@needs("mpirun.openmpi", "openmpi-bin")
def test_in_front_of_openmpi(tmp_path: Path) -> None:
    run([*PROFILE, "--ranks", "node:0", *OPENMPI, "--report-pid", "-", PYTHON, STANDIN], tmp_path)
    check(run_folder(tmp_path), [0, 1], "OpenMPI")


@needs("mpiexec.hydra", "mpich")
def test_behind_mpich_on_two_nodes(tmp_path: Path) -> None:
    run([*MPICH, "rankscope", "profile", "-o", "out", "--ranks", "local:0", PYTHON, STANDIN], tmp_path)
    check(tmp_path / "out", [0, 2], "PMI")
    assert [manifest["node"] for manifest in manifests(tmp_path / "out").values()] == [0, 1]


@pytest.mark.thorough
@needs("mpiexec.hydra", "mpich")
def test_in_front_of_mpich_the_classic_wrappers_selection(tmp_path: Path) -> None:
    one_each = [
        "mpiexec.hydra",
        "-launcher",
        "fork",
        "-launcher-exec",
        "ssh",
        "-hosts",
        "nodeA:1,nodeB:1",
        "-n",
        "2",
    ]
    run([*PROFILE, "--ranks", "local:0@nodes:1-5", *one_each, PYTHON, STANDIN], tmp_path)
    check(run_folder(tmp_path), [1], "PMI")


@pytest.mark.thorough
@needs("mpiexec.hydra", "mpich")
def test_ranks_that_start_a_second_apart_share_one_folder(tmp_path: Path) -> None:
    late = f"sleep $PMI_RANK.1; exec rankscope profile --ranks all {PYTHON} {STANDIN}"
    run(["mpiexec.hydra", "-launcher", "fork", "-n", "2", "bash", "-c", late], tmp_path)
    check(run_folder(tmp_path), [0, 1], "PMI")


@needs("mpiexec.hydra", "mpich")
def test_several_nodes_without_a_job_id_need_a_folder_and_the_job_runs(tmp_path: Path) -> None:
    done = run([*MPICH, "rankscope", "profile", "echo", "done"], tmp_path)
    assert done.stdout.count("done") == 4
    assert "-o DIR is needed" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
@needs("mpiexec.hydra", "mpich")
def test_an_explicit_rank_without_a_launcher(tmp_path: Path) -> None:
    words = ["rankscope", "profile", "-o", "out", "--ranks", "1", "--rank", "%q{MY_RANK}", PYTHON, STANDIN]
    run(words, tmp_path, env=environment(MY_RANK="1"))
    check(tmp_path / "out", [1], "--rank")


@needs("srun", "slurm-wlm slurm-wlm-torque munge")
def test_behind_srun_on_two_nodes(tmp_path: Path, slurm: dict[str, str]) -> None:
    run([*SRUN, "rankscope", "profile", PYTHON, STANDIN], tmp_path, env=slurm)
    folder = run_folder(tmp_path)
    assert re.fullmatch(r"rankscope-train_standin-\d+-\d+", folder.name), "job and step"
    check(folder, [0, 1, 2, 3], "Slurm")
    assert [manifest["node"] for manifest in manifests(folder).values()] == [0, 0, 1, 1]


@pytest.mark.thorough
@needs("srun", "slurm-wlm slurm-wlm-torque munge")
def test_in_front_of_srun(tmp_path: Path, slurm: dict[str, str]) -> None:
    prolog = tmp_path / "prolog"
    prolog.write_text("#!/bin/sh\necho print from the prolog\n")
    prolog.chmod(0o755)
    values = ["--mincpus", "1", "--comment", "test", "--task-prolog", str(prolog)]
    options = ["-N2", "-n2", "-lK", "--kill-on-bad-exit", *values]
    done = run([*PROFILE, "--ranks", "node:1", "srun", *options, PYTHON, STANDIN], tmp_path, env=slurm)
    check(run_folder(tmp_path), [1], "Slurm")
    assert done.stdout.count("from the prolog") == 2


@needs("srun", "slurm-wlm slurm-wlm-torque munge")
@pytest.mark.thorough
def test_in_front_of_srun_with_a_file_of_programs(tmp_path: Path, slurm: dict[str, str]) -> None:
    (tmp_path / "programs").write_text(f"0 /bin/true\n1 {PYTHON} {STANDIN}\n")
    run([*PROFILE, "--ranks", "1", "srun", "-n2", "--multi-prog", "programs"], tmp_path, env=slurm)
    check(run_folder(tmp_path), [1], "Slurm")


@pytest.mark.thorough
@needs("srun", "slurm-wlm slurm-wlm-torque munge")
def test_in_front_of_srun_in_front_of_torchrun(tmp_path: Path, slurm: dict[str, str]) -> None:
    torchrun = ["torchrun", "--nnodes", "1", "--nproc-per-node", "2", "--standalone"]
    run([*PROFILE, "--ranks", "1", "srun", "-N1", "-n1", *torchrun, TRAIN], tmp_path, env=slurm)
    check(run_folder(tmp_path), [1], "torchrun")
