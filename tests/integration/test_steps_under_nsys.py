"""Steps of an unchanged script in a report of the real nsys. torch is the CPU build, which has no NVTX of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from integration.jobs import PROFILE, PYTHON, TRAIN, manifests, needs_torch, run
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
    assert nvtx_ranges(tmp_path / "out" / "rank-00000.nsys-rep") == names
    assert steps_read(tmp_path / "out") == list(range(8)), "the ninth never ended"


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
