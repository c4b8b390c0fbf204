"""`--tool ncu` and `rankscope ncu` with a recording fake of ncu: the real one needs a GPU (tests/gpu/ncu.sh)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from integration.jobs import environment, manifests
from rankscope.capture.kernel_list import HotKernel, KernelList, write_kernels
from rankscope.tools import Launch

pytestmark = pytest.mark.slow

FAKE = Path(__file__).with_name("fake_ncu.py").read_text()
# ncu is refused where there is no driver, and no test machine need have one.
DRIVER = (
    "import sys; from rankscope.capture.under_tool import preflight; preflight.has_driver = lambda: True; "
)
DRIVER += "from rankscope.cli import main; sys.exit(main(sys.argv[1:]))"


def ncu(tmp_path: Path, *words: str, **env: str) -> tuple[subprocess.CompletedProcess[str], str]:
    fake = tmp_path / "bin" / "ncu"
    fake.parent.mkdir(exist_ok=True)
    fake.write_text(f"#!{sys.executable}\n{FAKE}")
    fake.chmod(0o755)
    noted = tmp_path / "arguments"
    path = f"{fake.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-S", "-c", DRIVER, *words],
        cwd=tmp_path,
        env=environment(PATH=path, FAKE_ARGUMENTS=str(noted), **env),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done, noted.read_text() if noted.exists() else ""


@pytest.fixture(autouse=True)
def sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """With -S there are no site-packages: only the standard library and rankscope's sources."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))


def test_a_report_of_one_rank(tmp_path: Path) -> None:
    words = [
        "profile",
        "--tool",
        "ncu",
        "-o",
        "out",
        "-k",
        "regex:gemm",
        "-c",
        "3",
        "--clock-control",
        "none",
    ]
    done, arguments = ncu(tmp_path, *words, "sh", "-c", "echo job; exit 6")
    assert (done.returncode, done.stdout) == (6, "job\n"), done.stderr
    assert arguments.startswith(
        "--set=roofline --kernel-name-base=function --kernel-name=regex:gemm --launch-count=3 --clock-control=none"
    )
    assert "ncu runs each profiled kernel about" in done.stderr
    assert "ncu profiled 1 launches in 9 passes" in done.stderr
    assert ", 1 of 1 rank" in done.stderr
    [window] = manifests(tmp_path / "out")[0]["windows"]
    assert (window["file"], window["state"]) == ("rank-00000.ncu-rep", "whole")


def test_steps_are_counted_in_the_job_only(tmp_path: Path) -> None:
    """At the end ncu runs its own rules in Python; on a GPU that process was taken for the rank."""
    words = ["profile", "--tool", "ncu", "-o", "out", "--steps", "2:3", "env"]
    done, arguments = ncu(tmp_path, *words, TMPDIR=str(tmp_path))
    assert "--profile-from-start=off" in arguments
    assert "RANKSCOPE_PLAN=" in done.stdout
    assert f"TMPDIR={tmp_path}\n" in done.stdout
    assert "RANKSCOPE_PLAN=" not in (tmp_path / "arguments.env").read_text()


def test_the_programs_own_range(tmp_path: Path) -> None:
    words = ["profile", "--tool", "ncu", "-o", "out", "-c", "cudaProfilerApi", "--launch-count", "4"]
    done, arguments = ncu(tmp_path, *words, "env")
    assert "--launch-count=4" in arguments
    assert "--profile-from-start=off" in arguments
    assert '"opens_range":false' in done.stdout, "rankscope opens no range of its own"


NEITHER = json.dumps([[0, name, [1, 1, 1], [1, 1, 1]] for name in ("nvjet", "fill")])


def test_a_pattern_without_a_match_lists_the_kernels(tmp_path: Path) -> None:
    done, _ = ncu(
        tmp_path, "profile", "--tool", "ncu", "-o", "out", "-k", "regex:^gem$", "true", FAKE_LAUNCHES=NEITHER
    )
    assert done.returncode == 0
    assert "no kernel matched -k. These ran:\n    nvjet\n    fill" in done.stderr
    assert manifests(tmp_path / "out")[0]["windows"] == []


def test_a_list_without_the_order_of_launches(tmp_path: Path) -> None:
    """Of an older rankscope, or written by hand. Needs only the standard library."""
    hot = HotKernel("void space::fill<4>(int)", (2, 1, 1), (128, 1, 1), 4, 4000)
    write_kernels(tmp_path / "hot.json", KernelList((hot, hot._replace(name="nvjet_a.b"))), "run")
    words = ["ncu", "--kernels", "hot.json", "-o", "out", "-c", "2", "--runs", "1", "--", "true"]
    done, arguments = ncu(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert (
        "--kernel-name=regex:^(?:fill|nvjet_a\\.b)$ --filter-mode=per-launch-config --launch-count=2"
        in arguments
    )
    assert "ncu measured 0 of 2 kernels, 0 launches in 1 run of the command" in done.stderr
    assert (
        "not measured: nvjet_a.b (grid 2x1x1, block 128x1x1): ncu met no launch of nvjet_a.b" in done.stderr
    )
    assert len(json.loads((tmp_path / "out" / "kernels.json").read_text())["kernels"]) == 2
    _, arguments = ncu(tmp_path, *words[:4], "again", *words[5:], FAKE_OLD="1")
    assert "--filter-mode" not in arguments.splitlines()[-1]
    assert "--launch-count=4" in arguments.splitlines()[-1]


def test_a_dry_run_prints_the_line(tmp_path: Path) -> None:
    write_kernels(tmp_path / "hot.json", KernelList((HotKernel("fill", (1, 1, 1), (1, 1, 1), 1, 1),)), "run")
    done, arguments = ncu(tmp_path, "ncu", "--kernels", "hot.json", "-n", "-o", "out", "--", "true")
    assert arguments == ""
    assert "--kernel-name=regex:^(?:fill)$" in done.stdout
    assert not (tmp_path / "out").exists()


# A step as a real Trainer has it: many launches of one function, with other sizes first, and two hot kernels that share
# function and size. Names as torch and as ncu write them.
COPY, ADD = "at::native::copy_cuda(at::TensorIteratorBase{})::{}", "at::native::CUDAFunctor_add<float>"
TORCH = {
    "copy": f"void at::native::elementwise<8, {COPY.format('&', '{lambda(float)#1}')}, 2ul>(int, Long<float>)",
    "add": f"void at::native::elementwise<8, {ADD}, 3ul>(int, {ADD})",
    "gemm": "gemm_TNT",
}
NCU = {
    "copy": f"void at::native::elementwise<(int)8, {COPY.format(' &', '[lambda(float) (instance 1)]')}, "
    "(unsigned long)2>(int, T2)",
    "add": f"void at::native::elementwise<(int)8, {ADD}, (unsigned long)3>(int, T2)",
    "gemm": "gemm_TNT",
}
SMALL, LARGE, BLOCK = (8, 1, 1), (8192, 1, 1), (128, 1, 1)
STEP = [
    *[("copy", SMALL)] * 40,
    *[("add", SMALL)] * 30,
    *[("gemm", LARGE), ("add", LARGE), ("copy", LARGE)] * 8,
]


def listed(step: int | None = 2) -> KernelList:
    hot = [HotKernel(TORCH[name], LARGE, BLOCK, 8, 8000) for name in ("copy", "add", "gemm")]
    order = [Launch(TORCH[name], grid, BLOCK) for name, grid in STEP]
    return KernelList(tuple(hot), step, tuple(order))


def launches(*more: tuple[int, str, tuple[int, ...]], steps: int = 4) -> str:
    """Some launches before the steps, and four steps."""
    before = [(0, "copy", SMALL)] * 50
    script = [*before, *more, *((step, *one) for step in range(steps) for one in STEP)]
    return json.dumps([[step, NCU[name], grid, BLOCK] for step, name, grid in script])


def measured(folder: Path) -> list[str]:
    """Which kernels the fake's reports have."""
    known = {name: short for short, name in NCU.items()}
    found = []
    for report in sorted(folder.glob("*.ncu-rep")):
        found += [f"{known[name]} {grid[0]}" for _, name, grid, _ in json.loads(report.read_text())]
    return found


# What the fake needs to know: which steps the environment of the job asks for.
JOB = ["sh", "-c", 'printf %s "$RANKSCOPE_PLAN" >plan']


def measure(
    tmp_path: Path, kernels: KernelList, *words: str, **env: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    write_kernels(tmp_path / "hot.json", kernels, "run")
    command = ["ncu", "--kernels", "hot.json", "-o", "out", "-c", "2", *words, "--", *JOB]
    done, arguments = ncu(tmp_path, *command, **env)
    assert done.returncode == 0, done.stderr
    return done, arguments.splitlines()


def test_the_hot_launches_of_a_step(tmp_path: Path) -> None:
    """The first launches of the functions have other sizes; they are skipped."""
    done, runs = measure(tmp_path, listed(), FAKE_LAUNCHES=launches())
    assert measured(tmp_path / "out") == ["gemm 8192", "add 8192", "copy 8192"] * 2
    assert len(runs) == 1
    assert "--launch-skip=70 --launch-count=6" in runs[0]
    assert "ncu will profile about 6 launches of step 2" in done.stderr
    assert "ncu measured 3 of 3 kernels, 6 launches in 1 run of the command" in done.stderr
    assert "where rankscope is installed in full: rankscope profile --tool ncu --from out" in done.stderr


def test_the_command_runs_again_for_what_was_missed(tmp_path: Path) -> None:
    """This time step 2 begins with other launches, so that the skipped ones are the wrong ones."""
    done, runs = measure(tmp_path, listed(), FAKE_LAUNCHES=launches(*[(2, "copy", SMALL)] * 60))
    assert len(runs) == 2
    assert "--filter-mode=per-launch-config" in runs[1]
    assert "--profile-from-start=off" in runs[1]
    assert "running the command again" in done.stderr
    assert "ncu measured 3 of 3 kernels" in done.stderr
    assert {"gemm 8192", "add 8192", "copy 8192"} < set(measured(tmp_path / "out"))
    files = [window["file"] for window in manifests(tmp_path / "out")[0]["windows"]]
    assert files == ["rank-00000.ncu-rep", "rank-00000.2.ncu-rep"]
    assert not (tmp_path / "out" / "run-2").exists()


def test_a_command_that_opens_no_step(tmp_path: Path) -> None:
    """Then the whole run is filtered, by the functions' names."""
    done, runs = measure(tmp_path, listed(), FAKE_LAUNCHES=launches(), FAKE_NO_STEPS="1")
    assert "--profile-from-start" not in runs[1]
    assert "--kernel-name=regex:^(?:elementwise|gemm_TNT)$" in runs[1]
    assert "ncu measured 3 of 3 kernels" in done.stderr


def test_an_ncu_that_cannot_count_by_size(tmp_path: Path) -> None:
    done, runs = measure(tmp_path, listed(step=None), "--runs", "1", FAKE_LAUNCHES=launches(), FAKE_OLD="1")
    assert "--filter-mode" not in runs[0]
    assert "ncu measured 0 of 3 kernels" in done.stderr
    assert "have other sizes than grid 8192x1x1, block 128x1x1" in done.stderr
    done, runs = measure(tmp_path, listed(), "-f", FAKE_LAUNCHES=launches(), FAKE_OLD="1")
    assert "ncu measured 3 of 3 kernels" in done.stderr


def test_a_folder_that_holds_another_run(tmp_path: Path) -> None:
    measure(tmp_path, listed(), FAKE_LAUNCHES=launches())
    done, _ = measure(tmp_path, listed(), FAKE_LAUNCHES=launches())
    assert "this one goes to out-2" in done.stderr
    assert "ncu measured 3 of 3 kernels, 6 launches" in done.stderr
    assert (tmp_path / "out-2" / "kernels.json").exists()


def test_a_kernel_that_is_never_launched_is_named(tmp_path: Path) -> None:
    only = json.dumps([launch for launch in json.loads(launches()) if launch[1] != "gemm_TNT"])
    done, runs = measure(tmp_path, listed(), FAKE_LAUNCHES=only)
    assert len(runs) == 2, "the command runs at most twice"
    assert "ncu measured 2 of 3 kernels" in done.stderr
    assert (
        "not measured: gemm_TNT (grid 8192x1x1, block 128x1x1): ncu met no launch of gemm_TNT" in done.stderr
    )


def test_a_job_that_fails_does_not_run_again(tmp_path: Path) -> None:
    write_kernels(tmp_path / "hot.json", listed(), "run")
    done, arguments = ncu(tmp_path, "ncu", "--kernels", "hot.json", "-o", "out", "--", "sh", "-c", "exit 3")
    assert (done.returncode, len(arguments.splitlines())) == (3, 1)


def test_an_ncu_that_fails_does_not_run_again(tmp_path: Path) -> None:
    done, runs = measure(tmp_path, listed(), FAKE_LAUNCHES=launches(), FAKE_ERROR="1")
    assert len(runs) == 1
    assert "ncu wrote no report: ERR_NVGPUCTRPERM" in done.stderr
    assert "ncu measured 0 of 3 kernels, 0 launches in 1 run of the command" in done.stderr


def test_choosing_needs_the_store(tmp_path: Path) -> None:
    done, _ = ncu(tmp_path, "ncu", "RUN", "--", "true")
    assert done.returncode == 2
    assert "choosing kernels needs duckdb" in done.stderr
