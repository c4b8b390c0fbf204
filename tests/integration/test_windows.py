"""Which part of a job is recorded: cycles, time windows, signals, and which optimizer counts steps."""

from __future__ import annotations

import importlib.util
import os
import signal
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
    read_trace,
    run,
    run_folder,
    start,
    steps,
    wait_for_line,
)

pytestmark = [pytest.mark.slow, needs_torch]

DEEPSPEED = str(Path(__file__).with_name("train_deepspeed.py"))
# The first trace of `-o out`.
TRACE = "out/rank-00000.pt.trace.json.gz"

INFERENCE = (
    NOT_COMPILED
    + """\
import os, sys, time, torch
model = torch.nn.Linear(4, 4)
end = time.time() + 60
while time.time() < end and not os.path.exists(sys.argv[1]):
    with torch.no_grad():
        model(torch.randn(2, 4))
    time.sleep(0.02)
"""
)

GAN = (
    NOT_COMPILED
    + """\
import torch
nets = [torch.nn.Linear(4, 4) for _ in range(2)]
discriminator = torch.optim.SGD(nets[0].parameters(), lr=0.1)
generator = torch.optim.Adam(nets[1].parameters())
for step in range(8):
    for _ in range(3):
        nets[0](torch.randn(2, 4)).sum().backward()
        discriminator.step()
    nets[1](torch.randn(2, 4)).sum().backward()
    generator.step()
"""
)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.gz"))


def test_each_cycle_has_its_file(tmp_path: Path) -> None:
    options = ["--skip-first", "1", "--wait", "1", "--warmup", "1", "--active", "2", "--repeat", "2"]
    run([*PROFILE, "-o", "out", *options, PYTHON, STANDIN, "--steps", "14"], tmp_path)
    names = ["rank-00000.cycle-1.pt.trace.json.gz", "rank-00000.pt.trace.json.gz"]
    assert files(tmp_path / "out") == names
    assert [steps(read_trace(tmp_path / "out" / name)) for name in reversed(names)] == [[3, 4], [7, 8]]


@pytest.mark.thorough
def test_repeat_0_records_cycles_until_the_script_ends(tmp_path: Path) -> None:
    options = ["--wait", "1", "--warmup", "0", "--active", "1", "--repeat", "0"]
    run([*PROFILE, "-o", "out", *options, PYTHON, STANDIN, "--steps", "7"], tmp_path)
    windows = manifests(tmp_path / "out")[0]["windows"]
    assert [window["first_step"] for window in windows] == [1, 3, 5, 7]
    assert [window["state"] for window in windows] == ["whole", "whole", "whole", "partial"]


@pytest.mark.thorough
def test_a_step_of_several_optimizers_ends_with_the_rarest(tmp_path: Path) -> None:
    (tmp_path / "gan.py").write_text(GAN)
    run([*PROFILE, "-o", "out", "--steps", "2:3", PYTHON, "gan.py"], tmp_path)
    trace = read_trace(tmp_path / TRACE)
    assert steps(trace) == [2, 3]
    names = [event.get("name", "") for event in trace["traceEvents"]]
    assert (names.count("Optimizer.step#SGD.step"), names.count("Optimizer.step#Adam.step")) == (6, 2)
    assert manifests(tmp_path / "out")[0]["steps"] == 8


@pytest.mark.thorough
def test_step_on_names_the_optimizer(tmp_path: Path) -> None:
    (tmp_path / "gan.py").write_text(GAN)
    run([*PROFILE, "-o", "out", "--step-on", "SGD", "--steps", "9:11", PYTHON, "gan.py"], tmp_path)
    names = [e.get("name") for e in read_trace(tmp_path / TRACE)["traceEvents"]]
    assert (names.count("Optimizer.step#SGD.step"), names.count("Optimizer.step#Adam.step")) == (3, 1)


def test_an_optimizers_range_is_whole_and_inside_its_step(tmp_path: Path) -> None:
    run([*PROFILE, "-o", "out", PYTHON, TRAIN], tmp_path)
    trace = read_trace(tmp_path / TRACE)
    spans = {
        prefix: [
            (e["ts"], e["ts"] + e["dur"])
            for e in trace["traceEvents"]
            if e.get("name", "").startswith(prefix)
        ]
        for prefix in ("ProfilerStep#", "Optimizer.step#")
    }
    assert len(spans["ProfilerStep#"]) == len(spans["Optimizer.step#"]) == 6
    for step, optimizer in zip(spans["ProfilerStep#"], spans["Optimizer.step#"], strict=True):
        assert step[0] <= optimizer[0] <= optimizer[1] <= step[1]


SCALED = (
    NOT_COMPILED
    + """\
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for step in range(6):
    for micro in range(2):
        scaler.scale(model(torch.full((2, 4), float("inf") if step == 1 else 1.0)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
)


def test_accumulated_gradients_are_one_step_and_a_skipped_step_is_none(tmp_path: Path) -> None:
    (tmp_path / "scaled.py").write_text(SCALED)
    run([*PROFILE, "-o", "out", PYTHON, "scaled.py"], tmp_path)
    assert manifests(tmp_path / "out")[0]["steps"] == 5
    trace = read_trace(tmp_path / TRACE)
    assert [event.get("name") for event in trace["traceEvents"]].count("aten::linear") == 3 * 2


COMPILED = """\
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
forward, step = torch.compile(model, backend="eager"), torch.compile(optimizer.step, backend="eager")
for _ in range(6):
    forward(torch.randn(2, 4)).sum().backward()
    step()
"""


@pytest.mark.thorough
@pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None,
    reason="deepspeed is not installed (tests/requirements-thorough.txt)",
)
def test_the_steps_of_deepspeed_engines(tmp_path: Path) -> None:
    words = [*PROFILE, "--steps", "2:4", "-o", "out", "torchrun", "--nproc-per-node", "2", DEEPSPEED]
    done = run(words, tmp_path, env=environment(DS_ACCELERATOR="cpu"))
    assert (done.stdout.count("ZeRO 1: 6 steps"), done.stdout.count("ZeRO 2: 6 steps")) == (2, 2)
    assert "2 of 2 ranks" in done.stderr
    assert {(one["steps"], *one["notes"]) for one in manifests(tmp_path / "out").values()} == {(6,)}
    for path in (tmp_path / "out").glob("*.gz"):
        trace = read_trace(path)
        assert steps(trace) == [2, 3, 4]
        calls = [event for event in trace["traceEvents"] if event.get("name") == "Optimizer.step#AdamW.step"]
        assert len(calls) == 3 * 2 * 2, "one call for each engine and parameter group"


@pytest.mark.thorough
def test_a_compiled_optimizer_is_counted_and_rankscope_is_not_traced(tmp_path: Path) -> None:
    (tmp_path / "compiled.py").write_text(COMPILED)
    done = run([*PROFILE, "--steps", "2:4", "-o", "out", PYTHON, "compiled.py"], tmp_path)
    plain = run([PYTHON, "compiled.py"], tmp_path)
    assert steps(read_trace(tmp_path / TRACE)) == [2, 3, 4]
    assert done.stderr.count("Warning") == plain.stderr.count("Warning")


@pytest.mark.thorough
def test_a_time_window_records_the_main_thread(tmp_path: Path) -> None:
    (tmp_path / "infer.py").write_text(INFERENCE)
    run([*PROFILE, "-o", "out", "--after", "500ms", "--for", "1s", PYTHON, "infer.py", TRACE], tmp_path)
    [window] = manifests(tmp_path / "out")[0]["windows"]
    assert (window["kind"], window["state"]) == ("time", "whole")
    assert window["end"]["monotonic_ns"] - window["start"]["monotonic_ns"] > 0.9e9
    names = [e.get("name") for e in read_trace(tmp_path / "out" / window["file"])["traceEvents"]]
    assert names.count("aten::linear") > 5


def test_a_loop_without_an_optimizer_gets_a_time_window(tmp_path: Path) -> None:
    (tmp_path / "infer.py").write_text(WITH_STANDIN + INFERENCE)
    done = run([*PROFILE, "-v", "-o", "out", "--fallback-after", "1s", PYTHON, "infer.py", TRACE], tmp_path)
    assert "no optimizer step in 1 s: recording 5 s" in done.stderr
    [window] = manifests(tmp_path / "out")[0]["windows"]
    assert (window["kind"], window["state"]) == ("time", "whole")


@pytest.mark.thorough
def test_each_signal_starts_a_window(tmp_path: Path) -> None:
    words = [PYTHON, STANDIN, "--steps", "40", "--step-seconds", "0.1"]
    job = start([*PROFILE, "--on-signal", "USR2", "--active", "2", *words], tmp_path)
    wait_for_line(job, "step 3")
    job.send_signal(signal.SIGUSR2)  # to the command in front: it goes on to the ranks of this host
    wait_for_line(job, "step 15")
    os.kill(manifests(run_folder(tmp_path))[0]["pid"], signal.SIGUSR2)  # to the rank itself
    out, _ = job.communicate(timeout=60)
    assert job.returncode == 0, out
    windows = manifests(run_folder(tmp_path))[0]["windows"]
    assert [window["state"] for window in windows] == ["whole", "whole"]
    assert [window["last_step"] - window["first_step"] for window in windows] == [1, 1]
    assert len(files(run_folder(tmp_path))) == 2


def test_an_unselected_rank_survives_the_signal(tmp_path: Path) -> None:
    options = ["--rank", "1", "--ranks", "0", "--on-signal", "USR2"]
    job = start([*PROFILE, *options, "bash", "-c", "echo up; read -r; echo alive"], tmp_path)
    wait_for_line(job, "up")
    job.send_signal(signal.SIGUSR2)
    assert "alive" in job.communicate("go\n", timeout=30)[0]


@pytest.mark.thorough
def test_names_for_tensorboard(tmp_path: Path) -> None:
    run([*PROFILE, "-o", "out", "--tensorboard-dir", "tb", PYTHON, STANDIN], tmp_path)
    [path] = (tmp_path / "tb").iterdir()
    worker, stamp, *rest = path.name.split(".")
    assert worker.startswith("rank-00000_")
    assert stamp.isdecimal()
    assert rest == ["pt", "trace", "json", "gz"]
    assert manifests(tmp_path / "out")[0]["windows"][0]["file"] == str(path)


@pytest.mark.thorough
def test_a_folder_named_with_a_variable(tmp_path: Path) -> None:
    run(
        [*PROFILE, "-o", "runs/%q{USER_RUN}", PYTHON, STANDIN], tmp_path, env={**os.environ, "USER_RUN": "a7"}
    )
    assert (tmp_path / "runs" / "a7" / "rankscope.json").exists()


LONG_WINDOW = (
    NOT_COMPILED
    + """\
import datetime, sys, time, torch, rankscope
torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=float(sys.argv[1])))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
with rankscope.profile("prof", schedule=rankscope.schedule(wait=0, warmup=0, active=6), with_stack=True) as prof:
    for _ in range(7):
        out = model(torch.ones(2, 8))
        for _ in range(800):  # operations, by which the pause is estimated
            out = out + 1
        out.sum().backward()
        time.sleep(0.4)
        prof.step()
torch.distributed.destroy_process_group()
"""
)


@pytest.mark.thorough
def test_a_window_that_may_outlast_the_process_groups_timeout(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(LONG_WINDOW)
    torchrun = ["torchrun", "--standalone", "--nproc-per-node", "2", "job.py"]
    said = [line for line in run([*torchrun, "20"], tmp_path).stderr.splitlines() if "timeout" in line]
    assert len(said) == 1  # rank 0 reports for both
    assert "stopping this window may pause training for up to" in said[0]
    assert "the process group's timeout is 20.0 s" in said[0]  # the group's own, not torch's default
    assert all("timeout is 20.0 s" in one["notes"][0] for one in manifests(tmp_path / "prof").values())
