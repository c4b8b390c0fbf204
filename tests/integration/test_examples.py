"""Every example runs as its first lines describe and writes the files they name."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from integration.jobs import NOT_COMPILED, PROFILE, PYTHON, environment, manifests, needs_torch, run
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

pytestmark = [pytest.mark.slow, needs_torch]

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> list[str]:
    return [PYTHON, str(EXAMPLES / f"{name}.py")]


def steps_of(folder: Path) -> set[tuple[int, int]]:
    """Rank and step of every step that `rankscope stats` finds in the folder."""
    rows = Run(ingest([folder])).rows("SELECT DISTINCT rank, step FROM steps")
    return {(rank, step) for rank, step in rows}


@pytest.mark.thorough
def test_plain_loop(tmp_path: Path) -> None:
    done = run(example("plain_loop"), tmp_path)
    assert "forward-backward: mean" in done.stderr
    assert "Next: rankscope stats" in done.stderr
    prof = tmp_path / "prof"
    trace = json.loads((prof / "plain_loop-0-of-1.json").read_text())
    names = {event.get("name") for event in trace["traceEvents"]}
    assert names >= {"make_batch", "train_step", "ProfilerStep#2"}
    assert "aten::addmm" in (prof / "profiler_list.dat").read_text()
    assert steps_of(prof) == {(0, 2), (0, 3), (0, 4)}


@pytest.mark.thorough
def test_under_rankscope_profile_the_code_only_counts_steps(tmp_path: Path) -> None:
    done = run([*PROFILE, "-o", "out", *example("plain_loop")], tmp_path)
    assert "captures this job already" in done.stderr
    assert not (tmp_path / "prof").exists()
    assert steps_of(tmp_path / "out") == {(0, step) for step in range(2, 8)}
    assert manifests(tmp_path / "out")[0]["steps"] == 8, "the optimizer's steps are not counted as well"


@pytest.mark.thorough
def test_megatron_style(tmp_path: Path) -> None:
    flags = "--torch-profile --torch-profile-ranks 0 --torch-profile-active 2 --torch-profile-with-flops"
    run([*example("megatron_style"), *flags.split(), "--tensorboard-dir", "tb"], tmp_path)
    assert steps_of(tmp_path / "tb") == {(0, 2), (0, 3)}
    assert "FLOPs" in (tmp_path / "prof" / "profiler_list.dat").read_text()


@pytest.mark.thorough
def test_a4s_style(tmp_path: Path) -> None:
    done = run([*example("a4s_style"), "train", "--profiling", "--prof_dir", "out", "--debug"], tmp_path)
    assert "step 7 after backward: host " in done.stderr
    assert (tmp_path / "out" / "a4s-0-of-1.json").exists()
    run([*example("a4s_style"), "train"], tmp_path / "out")
    assert not (tmp_path / "out" / "prof").exists(), "not asked for"


@pytest.mark.thorough
def test_ddp_over_gloo(tmp_path: Path) -> None:
    torchrun = ["torchrun", "--standalone", "--nproc-per-node", "2"]
    done = run([*torchrun, str(EXAMPLES / "ddp_gloo.py")], tmp_path)
    assert "(rank 1)" in done.stderr
    prof = tmp_path / "prof"
    files = sorted(path.name for path in prof.iterdir() if path.is_file())
    assert [name for name in files if name.startswith("ddp_gloo")] == [
        "ddp_gloo-0-of-2.json",
        "ddp_gloo-1-of-2.json",
    ]
    assert {"profiler_list.dat", "profiler_list-1-of-2.dat"} <= set(files)
    assert steps_of(prof) == {(rank, step) for rank in (0, 1) for step in (2, 3, 4)}


def test_the_demo_names_the_slow_rank(tmp_path: Path) -> None:
    """As `make demo` runs it, but without a browser and torch's compiler."""
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    script = tmp_path / "examples" / "slow_rank.py"
    script.write_text(NOT_COMPILED + script.read_text())
    (tmp_path / "bin").mkdir()
    for program in ("rankscope", "torchrun", "python"):
        (tmp_path / "bin" / program).symlink_to(Path(PYTHON).parent / program)
    for program in ("sh", "rm", "mkdir", "cat", "dirname", "readlink"):
        (tmp_path / "bin" / program).symlink_to(shutil.which(program) or "")
    done = run(["sh", "examples/demo.sh"], tmp_path, env=environment() | {"PATH": str(tmp_path / "bin")})
    assert "Rank 2 costs " in done.stdout and "for its next batch" in done.stdout
    assert "RUN" not in done.stdout and "rankscope stats demo/run -r findings" in done.stdout
    report = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    # The picture is of the first finding: on a busy machine that may be the lack of cores.
    first = next(line for line in done.stdout.splitlines() if line.startswith("1. "))
    assert "loads data, " in report if "rank 2" in first.lower() else "cores" in first, first
    assert "rankscope view demo/run" in report
    assert not (tmp_path / "demo" / "viewer.png").exists()
    answered = run([*PROFILE[:-1], "stats", "demo/run", "-r", "stragglers", "--format", "json"], tmp_path)
    assert json.loads(answered.stdout)["rows"][0]["rank"] == 2


@pytest.mark.thorough
def test_watch_me(tmp_path: Path) -> None:
    torchrun = [PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "4"]
    words = [*torchrun, str(EXAMPLES / "watch_me.py"), "10"]
    run([*PROFILE, "--watch", "-o", "watched", *words], tmp_path, env=environment())
    done = run([*PROFILE[:-1], "watch", "watched", "--once"], tmp_path)
    assert " · ended · 0 of 4 ranks alive · step " in done.stdout


@pytest.mark.thorough
@pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None,
    reason="deepspeed is not installed (tests/requirements-thorough.txt)",
)
def test_deepspeed_engine(tmp_path: Path) -> None:
    # Without its own operator for shared memory, which takes two minutes to compile.
    gloo_only = (
        "import runpy, sys, deepspeed; sys.modules['deepspeed.comm.torch'].build_shm_op = lambda: None; "
    )
    words = [
        PYTHON,
        "-c",
        f"{gloo_only} runpy.run_path({example('deepspeed_engine')[-1]!r}, run_name='__main__')",
    ]
    run(words, tmp_path, env=environment(DS_ACCELERATOR="cpu"))
    profile = (tmp_path / "prof" / "profiler_ds.txt").read_text()
    assert "DeepSpeed Flops Profiler" in profile
    assert "Linear" in profile
    summary = (tmp_path / "prof" / "profiler_list.dat").read_text()
    assert "DeepSpeed's memory figures (see_memory_usage)" in summary
    assert "At the end of profiling" in summary
