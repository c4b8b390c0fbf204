"""The scripts as text: golden files, shellcheck, and what must be in them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from rankscope.cli import end_tables, main

GOLDEN = Path(__file__).with_name("golden")
COMMAND = ["--", "python", "train.py", "--note", 'it\'s "two"\nlines, $HOME']
CASES = {
    "polaris-nsys": "pbs --site polaris --account MyProject --nodes 2 --walltime 0:05:00 --tool nsys --ranks local:0",
    "pbs-openmpi": "pbs --nodes 2 --ppn 4 --launcher openmpi --env A=1 --cpu-bind core --queue q --select ncpus=8 "
    "--stdout logs/%j.out --stderr logs/%j.err --directive='-W block=true' --conda base --venv env",
    "pbs-mpich": "pbs --nodes 3 --ppn 2 --venv env --walltime 90s -o runs/%q{PBS_JOBNAME} -f",
    "slurm": "slurm --nodes 2 --ppn 2 --filesystems home:eagle "
    "--partition gpu --account A --modules cuda,python/3.11 --conda my --steps 3:5",
    "slurm-torchrun": "slurm --nodes 2 --ppn 4 --launcher torchrun --constraint a100 --tmpdir /scratch --with-stack",
    "slurm-per-node": "slurm --nodes 2 --ppn 4 --launcher torchrun --tool nsys --per-node",
    "slurm-none": "slurm --nodes 2 --ppn 4 --tool none",
    "slurm-ncu": "slurm --tool ncu -c 10 --name one --cpu-bind cores -v --gres gpu:a100:4 --gpus-per-node 4 "
    "--directive=--exclusive --stdout logs/ --stats=kernels,nsys:cuda_gpu_kern_sum,ncu",
}


@pytest.fixture(autouse=True)
def table_names_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes a process for each list; tests/cli/test_end_tables.py tests it."""
    monkeypatch.setattr(end_tables, "missing_libraries", lambda: ["duckdb"])


def rendered(capsys: pytest.CaptureFixture[str], words: str, command: list[str] = COMMAND) -> str:
    assert main(["job", *shlex.split(words), *command]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = rendered(capsys, CASES[name])
    path = GOLDEN / f"{name}.sh"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), f"UPDATE_GOLDEN=1 rewrites {path.name}"


@pytest.mark.slow
@pytest.mark.skipif(
    not shutil.which("shellcheck"), reason="shellcheck is not installed (apt install shellcheck)"
)
def test_shellcheck() -> None:
    # Left out: sourcing a file that is not here, text for another shell, a function that only a trap calls.
    words = ["shellcheck", "-e", "SC1091,SC2016,SC2317", *map(str, sorted(GOLDEN.glob("*.sh")))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_polaris_has_what_the_site_wants(capsys: pytest.CaptureFixture[str]) -> None:
    lines = rendered(capsys, CASES["polaris-nsys"]).splitlines()
    assert lines[0] == "#!/bin/bash -l"
    assert set(lines[1:11]) == {
        "#PBS -l select=2:system=polaris",
        "#PBS -l place=scatter",
        "#PBS -l walltime=00:05:00",
        "#PBS -l filesystems=home:eagle",
        "#PBS -q debug-scaling",
        "#PBS -A MyProject",
        "#PBS -N train",
        "#PBS -k doe",
        "",
        "set -u",
    }, "without -o and -e PBS itself puts the job's number into the names"
    launch = [line.strip().rstrip("\\").strip() for line in lines]
    assert "mpiexec -n 8 -ppn 4 -l --line-buffer" in launch, "PALS wants numbers, not variables"
    assert '--env TMPDIR="$scratch/tmp"' in launch, "every rank gets the node's own disk"
    assert 'scratch="/local/scratch/rankscope-${USER:-$(id -un)}-$job"' in launch
    # 300 s, of which the last 60 are for writing and collecting: PBS has no signal before the end.
    assert "run_step timeout --foreground --signal=TERM $((240 - SECONDS))" in launch


def bash(text: str, env: dict[str, str], cwd: Path) -> str:
    done = subprocess.run(["bash", "-c", text], cwd=cwd, env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_pbs_meets_where_rank_0_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """On the node file's first line, which sorting would move; without the file, where the launcher starts rank 0."""
    lines = rendered(capsys, "pbs --nodes 2").splitlines()
    [line] = [line for line in lines if line.startswith("MASTER_ADDR=")]
    (tmp_path / "nodes").write_text("z9\nz9\na1\na1\n")
    (tmp_path / "mpiexec.hydra").write_text(
        '#!/bin/sh\n[ "$*" = "-n 1 -ppn 1 hostname" ] && echo rank-0-host\n'
    )
    (tmp_path / "mpiexec.hydra").chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    show = f'set -u; {line}; echo "$MASTER_ADDR"'
    assert bash(show, {**env, "PBS_NODEFILE": str(tmp_path / "nodes")}, tmp_path) == "z9"
    for out_of_sight in ({"PBS_NODEFILE": str(tmp_path / "missing")}, {}):
        assert bash(show, {**env, **out_of_sight}, tmp_path) == "rank-0-host"


@pytest.mark.parametrize(
    ("options", "directives"),
    [
        ("pbs", []),
        ("pbs --stdout logs/ --stderr logs/e.txt", ["-o logs/", "-e logs/e.txt"]),
        ("pbs --stdout all.txt --stderr all.txt", ["-j oe", "-o all.txt"]),
        ("pbs --directive='-j oe'", ["-j oe"]),
        ("slurm", ["--output=train-%j.out", "--error=train-%j.err"]),
        ("slurm --stdout logs/ --stderr e-%j", ["--output=logs/train-%j.out", "--error=e-%j"]),
        ("slurm --stdout all-%j --stderr all-%j", ["--output=all-%j"]),
    ],
)
def test_output_files(options: str, directives: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    lines = rendered(capsys, options).splitlines()
    words = [line.split(" ", 1)[1] for line in lines if line.startswith(("#PBS", "#SBATCH"))]
    kinds = ("-o", "-e", "-j oe", "--output", "--error")
    assert [word for word in words if word.startswith(kinds)] == directives


def test_pbs_output_with_the_jobs_id(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """PBS replaces nothing in -o and -e, so the script itself writes there."""
    lines = rendered(capsys, "pbs --stdout 'logs/%j/out' --stderr 'logs/%j/out'").splitlines()
    begin = lines.index("set -u")
    text = "\n".join([*lines[begin : begin + 5], "echo one; echo two >&2"])
    assert bash(text, {"PATH": os.environ["PATH"], "PBS_JOBID": "4711.pbs-01.x"}, tmp_path) == ""
    assert (tmp_path / "logs" / "4711" / "out").read_text() == "one\ntwo\n"


def test_a_sites_conda_and_a_venv(capsys: pytest.CaptureFixture[str]) -> None:
    """A venv on top of the site's conda: conda first. An empty name leaves the site's out."""
    lines = rendered(capsys, "pbs --site polaris --account A --venv env").splitlines()
    assert lines.index("conda activate base") + 1 == lines.index(". env/bin/activate")
    assert "conda activate" not in rendered(capsys, "pbs --site polaris --account A --venv env --conda ''")


def test_modules_in_place_of_the_sites_are_found_where_those_are(capsys: pytest.CaptureFixture[str]) -> None:
    text = rendered(capsys, "pbs --site polaris --account A --modules nvhpc,python --venv env")
    modules = [line for line in text.splitlines() if line.startswith("module ")]
    assert modules == ["module use /soft/modulefiles", "module load nvhpc", "module load python"]


@pytest.mark.parametrize(
    "words", ["slurm --tool none --steps 3:5", "pbs --tool none --stats", "k8s --image a --tool none -t cuda"]
)
def test_without_a_profiler_its_options_are_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", *words.split(), *COMMAND]) == 2
    assert "is an option of a profiler, and --tool none runs without one" in capsys.readouterr().err


def test_torchrun_meets_at_the_first_node(capsys: pytest.CaptureFixture[str]) -> None:
    text = rendered(capsys, CASES["slurm-torchrun"])
    assert "srun --nodes=2 --ntasks=2 --ntasks-per-node=1" in text
    assert "torchrun --nnodes=2 --nproc-per-node=4 --no-python" in text
    assert '--rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT"' in text


def test_a_command_comes_through_exactly(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The shell itself takes the last words apart; the launcher and rankscope are stand-ins here."""
    words = ["printf", "%s\\0", "a b", "it's", '"', "$HOME `id`", "x\ny", "", "--", "-n", "\\", "é"]
    script = tmp_path / "job.sh"
    script.write_text(rendered(capsys, "slurm --ppn 1", ["--", *words]))
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name, text in {
        "srun": 'while [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"',
        "rankscope": '[ "$1" = profile ] || exit 0\nwhile [ "$1" != -- ]; do shift; done\nshift\n'
        f'"$@" >{tmp_path}/words',
        "scontrol": "echo localhost",
    }.items():
        (bin_ / name).write_text(f"#!/bin/sh\n{text}\n")
        (bin_ / name).chmod(0o755)
    env = {
        "PATH": f"{bin_}:{os.environ['PATH']}",
        "SLURM_JOB_ID": f"9{os.getpid()}",
        "SLURM_JOB_NODELIST": "n",
    }
    done = subprocess.run(
        ["bash", str(script)], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "words").read_bytes().decode().split("\0")[:-1] == words[2:]


def test_script_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.sh"
    assert main(["job", "slurm", "--script", str(path), "--", "true"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        f"Wrote {path}",
        "Its reports: rankscope-true-JOBID, seen from the folder that it is submitted from",
        f"Next: sbatch {path}",
    ]
    assert path.stat().st_mode & 0o777 == 0o700
    assert main(["job", "slurm", "--script", str(path), "--", "true"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_wait_is_two_words(capsys: pytest.CaptureFixture[str]) -> None:
    """Alone it follows the job; with a number it is torch.profiler's."""
    assert "--wait 3 --quiet" in rendered(capsys, "slurm --wait 3")
    assert main(["job", "slurm", "--wait", "--", "true"]) == 2
    assert "--wait needs --submit" in capsys.readouterr().err
    assert "--wait 3 --quiet" in rendered(capsys, "slurm --submit --wait --wait 3 --dry-run")


def test_options_in_the_tools_own_spelling(capsys: pytest.CaptureFixture[str]) -> None:
    script = rendered(capsys, "slurm --tool nsys --show-output false --python-sampling true --stats false")
    assert "--tool nsys --show-output=false --tool-arg=--python-sampling=true --quiet --" in script
    assert "rankscope stats" not in script
    assert 'stats "$run" --nsys=/opt/nsys/bin/nsys ||' in rendered(
        capsys, "slurm --tool nsys --nsys /opt/nsys/bin/nsys"
    )
