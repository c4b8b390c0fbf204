"""Where rankscope puts itself in a launcher's own command line."""

import shlex
import sys
from pathlib import Path

import pytest

from rankscope.capture import launcher_command
from rankscope.capture.deepspeed import place_local_rank
from rankscope.capture.launcher_command import is_launcher, rewrite
from rankscope.cli import main

WE = ["PY", "-m", "rankscope", "profile", "--ranks", "all", "--"]
OURS = " ".join(WE)


@pytest.fixture(autouse=True)
def python_of_console_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_command, "interpreter_of", lambda script: "python3")


def rewritten(text: str, env: dict[str, str] | None = None) -> str | None:
    words = rewrite(shlex.split(text), WE, env or {})
    return None if words is None else shlex.join(words)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "torchrun --nproc-per-node 4 train.py --lr 1",
            f"torchrun --nproc-per-node 4 --no-python {OURS} python3 -u train.py --lr 1",
        ),
        (
            "torchrun --standalone --nproc_per_node=4 -m pkg.train x",
            f"torchrun --standalone --nproc_per_node=4 --no-python {OURS} python3 -u -m pkg.train x",
        ),
        ("torchrun --no-python bash run.sh", f"torchrun --no-python {OURS} bash run.sh"),
        ("torchrun --nnodes 1 -- train.py", f"torchrun --nnodes 1 --no-python {OURS} python3 -u train.py"),
        ("torchrun --mod -r3 pkg.train", f"torchrun -r3 --no-python {OURS} python3 -u -m pkg.train"),
        ("torchrun --no_py -- ./run", f"torchrun --no_py {OURS} ./run"),
        (
            "python -m torch.distributed.run --nnodes 2 train.py",
            f"python -m torch.distributed.run --nnodes 2 --no-python {OURS} python -u train.py",
        ),
        ("mpiexec -n 4 python train.py", f"mpiexec -n 4 {OURS} python train.py"),
        (
            "mpirun --mca btl self,tcp -x PATH --oversubscribe -np 4 -H a:2,b:2 python train.py -n 3",
            f"mpirun --mca btl self,tcp -x PATH --oversubscribe -np 4 -H a:2,b:2 {OURS} python train.py -n 3",
        ),
        (
            "mpiexec.hydra -launcher fork -hosts a:2,b:2 -genv A B -n 4 python train.py",
            f"mpiexec.hydra -launcher fork -hosts a:2,b:2 -genv A B -n 4 {OURS} python train.py",
        ),
        (
            "mpiexec -n 1 python a.py : -n 3 python b.py",
            f"mpiexec -n 1 {OURS} python a.py : -n 3 {OURS} python b.py",
        ),
        (
            "mpiexec --np 8 --ppn 4 --cpu-bind list:0:1 --env A=1 -l --line-buffer ./train.sh",
            f"mpiexec --np 8 --ppn 4 --cpu-bind list:0:1 --env A=1 -l --line-buffer {OURS} ./train.sh",
        ),
        (
            "srun -N2 -n 4 --ntasks-per-node=2 -l --mpi pmi2 python train.py",
            f"srun -N2 -n 4 --ntasks-per-node=2 -l --mpi pmi2 {OURS} python train.py",
        ),
        ("srun -n 2 torchrun train.py", f"srun -n 2 {OURS} torchrun train.py"),
        ("mpiexec -n 2 -- python t.py", f"mpiexec -n 2 -- {OURS} python t.py"),
        (
            "accelerate launch --num_processes 2 --cpu train.py --lr 1",
            f"accelerate launch --num_processes 2 --cpu --no_python {OURS} python3 train.py --lr 1",
        ),
        (
            "accelerate launch --config_file c.yaml -m pkg.train",
            f"accelerate launch --config_file c.yaml --no_python {OURS} python3 -m pkg.train",
        ),
        (
            "accelerate launch --fsdp_offload_params true -- train.py",
            f"accelerate launch --fsdp_offload_params true --no_python {OURS} python3 train.py",
        ),
    ],
)
def test_inserted_before_the_program(command: str, expected: str) -> None:
    assert rewritten(command) == expected


def test_an_option_not_in_the_table_is_not_guessed() -> None:
    assert rewritten(f"mpiexec --unheard-of {shlex.quote(sys.executable)} t.py") is None


def test_a_module_flag_bundled_with_another_is_left_to_the_environment() -> None:
    assert rewritten("torchrun -mr 3 pkg.train") is None


@pytest.mark.parametrize(
    "command", ["bash train.sh", "python train.py", "python -m pkg", "torchrun --nproc-per-node 2"]
)
def test_anything_else_is_left_to_the_environment(command: str) -> None:
    assert rewritten(command) is None


def test_a_tool_is_not_wrapped_around_a_launcher_that_starts_the_ranks_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.chdir(tmp_path)
    command = ["srun", "--new-option", "3", "python", "t.py"]
    assert main(["profile", "--tool", "nsys", "--dry-run", *command]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{shlex.join(command)}\n"
    assert "the job runs without nsys" in printed.err
    assert "srun OPTIONS rankscope profile --tool nsys PROGRAM" in printed.err


def test_torchrun_honours_python_exec() -> None:
    assert "/other/python -u train.py" in (
        rewritten("torchrun train.py", {"PYTHON_EXEC": "/other/python"}) or ""
    )


def test_deepspeed_argument_reaches_the_script() -> None:
    command = rewritten("deepspeed --num_gpus 2 train.py --deepspeed ds.json")
    assert command is not None
    words = shlex.split(command)
    assert words[:5] == ["deepspeed", "--num_gpus", "2", "--module", "rankscope.capture.deepspeed"]
    # What deepspeed starts: python -u -m rankscope.capture.deepspeed --local_rank=1 <the rest>
    for given, expected in (["--local_rank=1"], ["--local_rank=1"]), ([], []):
        started = place_local_rank([*given, *words[5:]])
        assert started == [*WE[3:], "python3", "-u", "train.py", *expected, "--deepspeed", "ds.json"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("python /bin/torchrun --nproc-per-node 2 train.py", True),
        ("python -m torch.distributed.run train.py", True),
        ("python -u -m accelerate.commands.launch train.py", True),
        ("python -X dev train.py accelerate", False),
        ("python -m pkg.train", False),
        ("python", False),
    ],
)
def test_a_launchers_own_process_is_known(words: str, expected: bool) -> None:
    assert is_launcher(words.split()) is expected


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("#!/opt/env/bin/python3.11\n", "/opt/env/bin/python3.11"),
        ("#!/bin/sh\n'''exec' /very/long/path/bin/python \"$0\" \"$@\"\n", "/very/long/path/bin/python"),
        ("#!/bin/bash\necho\n", None),
        ("no script at all\n", None),
    ],
)
def test_the_python_of_a_console_script(
    head: str, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    script = tmp_path / "torchrun"
    script.write_text(head)
    script.chmod(0o755)
    assert launcher_command.interpreter_of(str(script)) == expected
