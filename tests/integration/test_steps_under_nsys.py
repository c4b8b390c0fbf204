"""Steps of an unchanged script in a report of the real nsys. torch is the CPU build, which has no NVTX of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from integration.jobs import NOT_COMPILED, PROFILE, PYTHON, TRAIN, manifests, needs_torch, run
from integration.nsight import needs_nsys, nvtx_ranges, with_nsys

pytestmark = [pytest.mark.slow, needs_nsys, needs_torch]

PROFILE_NSYS = [*PROFILE, "--tool", "nsys", "-t", "nvtx", "-o", "out"]


def steps_read(folder: Path) -> list[int]:
    words = [
        PYTHON,
        "-m",
        "rankscope",
        "query",
        str(folder),
        "SELECT step FROM steps ORDER BY step",
        "--format",
        "json",
    ]
    return [row["step"] for row in json.loads(run(words, folder, env=with_nsys()).stdout)["rows"]]


@pytest.mark.thorough
def test_every_step_is_marked_without_the_nvtx_package(tmp_path: Path) -> None:
    """Through the library that nsys names in the environment."""
    (tmp_path / "nvtx.py").write_text("raise ImportError('hides the package')\n")
    done = run([*PROFILE_NSYS, PYTHON, TRAIN], tmp_path, env=with_nsys(PYTHONPATH=str(tmp_path)))
    assert "1 nsys report, steps 0-7, " in done.stderr
    names = [f"ProfilerStep#{number}" for number in range(9)]
    assert nvtx_ranges(tmp_path / "out" / "rank-00000.nsys-rep") == [*names, "unfinished step 8"]
    assert steps_read(tmp_path / "out") == list(range(8)), "the ninth never ended"


CRASHES = (
    NOT_COMPILED
    + """
import os, sys, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    model(torch.randn(2, 4)).sum().backward()
    if step == 3:
        os.kill(os.getpid(), 9) if sys.argv[1:] else sys.exit("crash in step 3")
    optimizer.step()
"""
)


@pytest.mark.thorough
def test_after_a_crash_both_tools_have_the_same_steps(tmp_path: Path) -> None:
    """Those that ended: neither the step in which the script failed, nor one after the last."""
    (tmp_path / "crash.py").write_text(CRASHES)
    nsys = run([*PROFILE_NSYS, PYTHON, "crash.py"], tmp_path, check=False, env=with_nsys())
    torch = run([*PROFILE, "--steps", "0:9", "-o", "torch", PYTHON, "crash.py"], tmp_path, check=False)
    assert "1 nsys report, steps 0-2, " in nsys.stderr
    assert "1 trace, steps 0-2, " in torch.stderr
    assert steps_read(tmp_path / "out") == steps_read(tmp_path / "torch") == [0, 1, 2]


@pytest.mark.thorough
def test_a_killed_job_and_nvtx_that_is_not_traced(tmp_path: Path) -> None:
    """What is said about the steps is what the report has."""
    (tmp_path / "crash.py").write_text(CRASHES)
    killed = run([*PROFILE_NSYS, PYTHON, "crash.py", "kill"], tmp_path, check=False, env=with_nsys())
    assert "1 nsys report, steps not counted (the process was killed), " in killed.stderr
    # What a killed process had not handed to nsys yet is lost.
    assert steps_read(tmp_path / "out") in ([0, 1], [0, 1, 2])
    words = [*PROFILE, "--tool", "nsys", "-t", "cuda", "-o", "untraced", PYTHON, "crash.py"]
    untraced = run(words, tmp_path, check=False, env=with_nsys())
    assert "nsys does not record NVTX (-t ...,nvtx): the report has no steps" in untraced.stderr
    assert "1 nsys report, no steps found, " in untraced.stderr
    assert steps_read(tmp_path / "untraced") == []


@pytest.mark.thorough
def test_the_steps_asked_for_are_marked_and_modules_too(tmp_path: Path) -> None:
    done = run(
        [*PROFILE_NSYS, "--steps", "2:3", "--nvtx", "modules", PYTHON, TRAIN], tmp_path, env=with_nsys()
    )
    assert "the whole run is recorded, and only the steps asked for are marked in it" in done.stderr
    one_pass = ["model: Sequential", "0: Linear", "1: ReLU", "2: Linear"]
    names = nvtx_ranges(tmp_path / "out" / "rank-00000.nsys-rep")
    assert names == ["ProfilerStep#2", *one_pass, "ProfilerStep#3", *one_pass]
    assert steps_read(tmp_path / "out") == [2, 3]
    [window] = manifests(tmp_path / "out")[0]["windows"]
    assert (window["first_step"], window["last_step"]) == (2, 3)


def test_a_program_without_torch_is_left_alone(tmp_path: Path) -> None:
    done = run(
        [*PROFILE_NSYS, PYTHON, "-c", "import sys; print('torch' in sys.modules)"], tmp_path, env=with_nsys()
    )
    assert done.stdout == "False\n"
    assert "1 nsys report, no steps found, " in done.stderr
