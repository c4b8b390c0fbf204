"""After any failure of rankscope the job continues and one line gives the reason. Wrong arguments exit with 2."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.jobs import (
    NOT_COMPILED,
    PROFILE,
    PYTHON,
    STANDIN,
    TRAIN,
    WITH_STANDIN,
    environment,
    manifests,
    needs_torch,
    our_lines,
    read_trace,
    run,
    steps,
)

pytestmark = pytest.mark.slow


@pytest.mark.slow(every_variation=True)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no-such-command", "x"], "'no-such-command' is not a command"),
        ([], "no COMMAND to profile"),
        (["--steps", "9:3", "true"], "--steps 9:3 ends before it begins"),
        (["--steps", "1:2", "--wait", "3", "true"], "two schedules at once"),
        (["--steps", "1:2", "--after", "3s", "true"], "two schedules at once"),
        (["--on-signal", "USR2", "--repeat", "2", "true"], "two schedules at once"),
        (["--active", "0", "true"], "--active 0 cannot be scheduled"),
        (["--ranks", "local", "true"], "is not a selection of ranks"),
        (["--on-signal", "KILL", "true"], "--on-signal KILL cannot be used"),
        (["--max-size", "big", "true"], "'big' is not a size"),
        (["--after", "soon", "true"], "'soon' is not a length of time"),
        (["--local-rank", "0", "true"], "need --rank"),
        (["--rank", "%q{NOT_SET}", "true"], "is not a rank"),
        (["--no-such-option", "true"], "unrecognized arguments"),
    ],
)
def test_wrong_arguments_exit_2_before_anything_starts(tmp_path: Path, words: list[str], said: str) -> None:
    done = run([*PROFILE, *words], tmp_path, check=False)
    assert done.returncode == 2
    assert said in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_selection_without_ranks_is_reported(tmp_path: Path) -> None:
    env = environment(OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="4", OMPI_COMM_WORLD_LOCAL_RANK="0")
    done = run([*PROFILE, "--ranks", "5", "echo", "ran"], tmp_path, env=env)
    assert done.stdout == "ran\n"
    assert our_lines(done.stderr) == [
        "rankscope: --ranks 5 selects none of the 4 ranks; the job runs without being captured"
    ]


def test_a_selection_by_what_the_launcher_does_not_provide(tmp_path: Path) -> None:
    done = run([*PROFILE, "--ranks", "local:0", "echo", "ran"], tmp_path, env=environment(ALPS_APP_PE="0"))
    assert done.stdout == "ran\n"
    assert "aprun does not set it" in done.stderr


def test_an_output_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run([*PROFILE, "-o", "file/run", "echo", "ran"], tmp_path)
    assert done.stdout == "ran\n"
    assert len(our_lines(done.stderr)) == 1
    assert "cannot write the run folder" in done.stderr


def test_an_output_folder_that_cannot_be_written_behind_a_launcher(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run([*PROFILE, "--rank", "0", "--ranks", "0", "-o", "file/run", PYTHON, STANDIN], tmp_path)
    assert "done rank" in done.stdout
    [line] = our_lines(done.stderr)
    assert "capture is off, the job goes on: cannot write the run folder" in line


@pytest.mark.thorough
@needs_torch
def test_a_folder_of_another_job_is_left_alone_and_a_new_name_is_used(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "rankscope.json").write_text('{"job": "yesterday"}')
    done = run([*PROFILE, "-o", "out", "torchrun", "--nproc-per-node", "2", TRAIN], tmp_path)
    assert "rankscope: out holds another job: this one goes to out-2 (-f replaces the other)" in done.stderr
    assert "Next: rankscope stats out-2" in done.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["rankscope.json"]
    assert sorted(manifests(tmp_path / "out-2")) == [0, 1]


def test_a_missing_script_leaves_no_folder(tmp_path: Path) -> None:
    done = run([*PROFILE, "-o", "out", PYTHON, "missing.py"], tmp_path, check=False)
    assert done.returncode == 2
    assert not list(tmp_path.iterdir())


def test_a_command_that_is_no_python(tmp_path: Path) -> None:
    done = run([*PROFILE, "echo", "ran"], tmp_path)
    assert "nothing was captured" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_script_with_no_torch(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("print('ran')\n")
    done = run([*PROFILE, "-o", "out", PYTHON, "plain.py"], tmp_path)
    assert done.stdout == "ran\n"
    assert our_lines(done.stderr) == [
        "rankscope: rank 0: nothing was captured: the script never imported torch"
    ]


@pytest.mark.parametrize("script", ["def f(:\n", "import torch\n"])
def test_a_script_that_fails_before_it_trains(tmp_path: Path, script: str) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no library')\n")
    (tmp_path / "train.py").write_text(script)
    done = run([*PROFILE, "-o", "out", PYTHON, "train.py"], tmp_path, check=False)
    plain = run([PYTHON, "train.py"], tmp_path, check=False)
    said, _, ours = done.stderr.partition("rankscope: ")
    assert (done.returncode, said) == (plain.returncode, plain.stderr)
    assert f"The command failed before that: status {plain.returncode}." in ours
    assert not (tmp_path / "out").exists()


def test_a_script_that_never_reaches_the_window(tmp_path: Path) -> None:
    done = run([*PROFILE, "--steps", "100:110", PYTHON, STANDIN], tmp_path)
    assert our_lines(done.stderr) == [
        "rankscope: rank 0: nothing was captured: "
        "the script ended after 8 steps, recording begins with step 100. To record all of them: --steps 0:7"
    ]


@pytest.mark.thorough
def test_a_script_that_ends_inside_the_window(tmp_path: Path) -> None:
    run([*PROFILE, "-o", "out", "--steps", "5:100", PYTHON, STANDIN], tmp_path)
    [window] = manifests(tmp_path / "out")[0]["windows"]
    assert (window["state"], window["why"]) == ("partial", "the script ended in the window")
    assert steps(read_trace(tmp_path / "out" / window["file"])) == [5, 6, 7, 8]


def test_a_torch_that_is_too_old(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '1.13.1+cu117'\n")
    env = environment(PYTHONPATH=str(tmp_path))
    done = run([*PROFILE, "-o", "out", PYTHON, "-c", "import torch; print('ran')"], tmp_path, env=env)
    assert done.stdout == "ran\n"
    assert "torch 1.13.1+cu117 is too old" in our_lines(done.stderr)[0]


def sabotaged(tmp_path: Path, code: str, *, first: str = "") -> list[str]:
    """The training script with part of its torch broken."""
    script = tmp_path / "broken.py"
    script.write_text(
        f"{first}import runpy, sys, torch\n"
        "def boom(*_):\n    raise RuntimeError('boom')\n"
        f"{code}\nsys.argv = ['train']\nrunpy.run_path({TRAIN!r}, run_name='__main__')\n"
    )
    return [PYTHON, str(script)]


@pytest.mark.thorough
@needs_torch
@pytest.mark.parametrize("method", ["prepare_trace", "start_trace", "stop_trace"])
def test_torchs_profiler_fails(tmp_path: Path, method: str) -> None:
    words = sabotaged(tmp_path, f"torch.profiler._KinetoProfile.{method} = boom")
    done = run([*PROFILE, "-o", "out", *words], tmp_path)
    assert "done rank" in done.stdout
    [line] = our_lines(done.stderr)
    assert line == "rankscope: rank 0: capture is off, the job goes on: RuntimeError: boom"


def test_our_hook_raises(tmp_path: Path) -> None:
    code = "import rankscope.inapp.step_counter as s\ns.StepCounter.ends_step = boom"
    done = run([*PROFILE, "-o", "out", *sabotaged(tmp_path, code, first=WITH_STANDIN)], tmp_path)
    assert "done rank" in done.stdout
    assert len(our_lines(done.stderr)) == 1
    assert "capture is off, the job goes on: RuntimeError: boom" in done.stderr


OWN_PROFILER = (
    NOT_COMPILED
    + """\
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps):
    for _ in range(steps):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
def own(steps):
    with torch.profiler.profile() as profiler:
        train(steps)
    print("their profiler:", sum("aten::linear" in event.key for event in profiler.key_averages()))
"""
)


@needs_torch
@pytest.mark.parametrize(
    ("body", "said", "states"),
    [
        ("own(8)", "the script runs torch.profiler itself", []),
        ("train(4); own(3)", "the script started its own torch.profiler", ["partial"]),
        ("own(1); train(8)", None, ["whole"]),
    ],
)
def test_the_script_profiles_itself(tmp_path: Path, body: str, said: str | None, states: list[str]) -> None:
    (tmp_path / "own.py").write_text(f"{OWN_PROFILER}{body}\n")
    done = run([*PROFILE, "-o", "out", PYTHON, "own.py"], tmp_path)
    assert "their profiler: 1" in done.stdout
    assert said is None or said in done.stderr
    assert [window["state"] for window in manifests(tmp_path / "out")[0]["windows"]] == states


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 32 kB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32k", "none", str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a small filesystem to fill can only be mounted by root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_the_disk_is_full(tmp_path: Path, tiny_disk: Path) -> None:
    done = run([*PROFILE, "-o", "tiny/out", "--with-stack", PYTHON, STANDIN], tmp_path)
    assert "done rank" in done.stdout
    # On a busy machine the job may have to wait for the export, which is said after some seconds.
    lines = [line for line in our_lines(done.stderr) if "still being written" not in line]
    assert len(lines) == 1, done.stderr
    assert "is lost: cannot write" in lines[0]
    assert "No space left on device" in lines[0]
    assert not list(tiny_disk.glob("out/.*")), "the half-written file is taken away"
    assert manifests(tiny_disk / "out")[0]["windows"][0]["state"] == "lost"
