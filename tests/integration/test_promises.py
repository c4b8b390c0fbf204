"""Profiling leaves the job as it is: exit code, signals, stdin, stdout, environment, processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
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
    run_folder,
    start,
    steps,
    traces,
    wait_for_line,
)

pytestmark = pytest.mark.slow

UNSELECTED = [*PROFILE, "--rank", "1", "--ranks", "0"]


def test_exit_code_stdin_and_stdout_are_unchanged(tmp_path: Path) -> None:
    words = [PYTHON, STANDIN, "--exit-code", "7", "--echo-stdin"]
    captured = run([*PROFILE, *words], tmp_path, check=False, stdin="hello\n")
    plain = run(words, tmp_path, check=False, stdin="hello\n")
    assert captured.returncode == plain.returncode == 7
    assert captured.stdout.partition(" pid ")[0] == plain.stdout.partition(" pid ")[0]
    assert "stdin: hello" in captured.stdout
    assert sorted(traces(run_folder(tmp_path))) == [0]


@pytest.mark.slow(every_variation=True)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_that_ends_the_job_ends_the_wrapper(tmp_path: Path, number: signal.Signals) -> None:
    job = start([*PROFILE, "bash", "-c", f"kill -{int(number)} $$"], tmp_path)
    assert job.communicate(timeout=30) and job.returncode == -number


@pytest.mark.parametrize(
    ("end", "status"), [("os.kill(os.getpid(), signal.SIGKILL)", -9), ("os._exit(9)", 9)]
)
def test_a_rank_that_dies_without_pythons_exit_keeps_its_status(
    tmp_path: Path, end: str, status: int
) -> None:
    """Its trace is written, or being written, and its manifest says that it runs."""
    script = Path(TRAIN).read_text()
    code = script.replace("    sys.exit(args.exit_code)\n", f"    import signal\n    {end}\n")
    (tmp_path / "dies.py").write_text(WITH_STANDIN + NOT_COMPILED + code)
    done = run([*PROFILE, "-o", "out", PYTHON, "dies.py"], tmp_path, check=False)
    assert done.returncode == status
    assert "Traceback" not in done.stderr


def test_a_signal_sent_to_the_wrapper_reaches_the_job(tmp_path: Path) -> None:
    script = "trap 'echo got USR1; exit 9' USR1; echo ready; while :; do sleep 0.05; done"
    job = start([*PROFILE, "bash", "-c", script], tmp_path)
    wait_for_line(job, "ready")
    job.send_signal(signal.SIGUSR1)
    out, _ = job.communicate(timeout=30)
    assert "got USR1" in out
    assert job.returncode == 9


def test_an_unselected_rank_is_the_plain_command(tmp_path: Path) -> None:
    """The same process, environment and signal dispositions as without rankscope."""
    look = (
        "import os, re; status = open('/proc/self/status').read()\n"
        "print([os.getpid(), dict(os.environ), re.findall('Sig...:.*', status)])"
    )
    env = environment()
    words = ["env", PYTHON, "-S", "-c", look]
    job = subprocess.Popen([*UNSELECTED, *words], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
    pid, captured, signals = eval(job.communicate(timeout=30)[0])  # our own output, two lines up
    assert pid == job.pid
    plain = eval(subprocess.check_output(words, cwd=tmp_path, env=env, text=True))
    assert (captured, signals) == (plain[1], plain[2])
    assert not list(tmp_path.iterdir())


@needs_torch
@pytest.mark.parametrize("context", ["spawn", "fork"])
@pytest.mark.thorough
def test_workers_are_never_captured(tmp_path: Path, context: str) -> None:
    words = [PYTHON, TRAIN, "--workers", "1", "--worker-context", context]
    done = run([*PROFILE, "-v", "--steps", "0:3", *words], tmp_path)
    assert len([line for line in our_lines(done.stderr) if "capture is ready" in line]) == 1
    [window] = manifests(run_folder(tmp_path))[0]["windows"]
    assert window["state"] == "whole"
    assert steps(traces(run_folder(tmp_path))[0]) == [0, 1, 2, 3]


def test_children_of_a_rank_have_the_jobs_environment(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        f"{WITH_STANDIN}import torch, os; print(os.environ.get('PYTHONPATH'), 'RANKSCOPE_PLAN' in os.environ)\n"
    )
    words = [*PROFILE, "--rank", "0", "--world-size", "1", "-q", PYTHON, str(script)]
    done = run(words, tmp_path, env=environment(PYTHONPATH="/theirs"))
    assert done.stdout == "/theirs False\n"


def test_the_jobs_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('their sitecustomize')\n")
    words = [*PROFILE, PYTHON, "-c", "import sys; print(sys.modules['sitecustomize'].__file__)"]
    done = run(words, tmp_path, env=environment(PYTHONPATH=str(tmp_path)))
    lines = done.stdout.splitlines()
    assert lines[-2:] == ["their sitecustomize", str(tmp_path / "sitecustomize.py")]


def test_tables_are_of_this_job_and_not_of_an_earlier_one_in_its_folder(tmp_path: Path) -> None:
    """Behind a launcher. The third job has the second's id, as a PyTorchJob that is applied again: it is refused."""

    def job(port: str, window: str) -> subprocess.CompletedProcess[str]:
        env = environment(RANK="0", LOCAL_RANK="0", WORLD_SIZE="2", MASTER_ADDR="host", MASTER_PORT=port)
        words = [*PROFILE, "-o", "out", "--ranks", "0", "--steps", window, "--stats=steps", PYTHON, STANDIN]
        return run(words, tmp_path, env=env)

    assert "Steps · steps 2:3" in job("1", "2:3").stdout
    second = job("2", "3:4")
    assert "Steps · steps 3:4" in second.stdout
    assert f"Next: rankscope stats {tmp_path}/out-2" in second.stderr
    third = job("2", "1:2")
    assert "Steps" not in third.stdout
    assert "rank 0 of this run is captured already" in third.stderr


def test_only_torch_is_needed(tmp_path: Path) -> None:
    """None of rankscope's own libraries can be imported, in the wrapper or in the job."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nfor name in ('duckdb', 'fsspec', 'isal', 'rich'): sys.modules[name] = None\n"
    )
    env = environment(PYTHONPATH=str(tmp_path))
    done = run([*PROFILE, "--stats", "-o", "out", PYTHON, STANDIN], tmp_path, env=env)
    assert sorted(traces(tmp_path / "out")) == [0]
    assert "--stats cannot run here" in done.stderr
    assert "rankscope stats out" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_mid_capture_leaves_a_readable_partial_file(
    tmp_path: Path, number: signal.Signals
) -> None:
    words = [PYTHON, STANDIN, "--steps", "500", "--step-seconds", "0.1"]
    job = start([*PROFILE, "--steps", "1:400", *words], tmp_path)
    wait_for_line(job, "step 6")
    job.send_signal(number)
    out, _ = job.communicate(timeout=60)
    assert job.returncode == -number, out
    [window] = manifests(run_folder(tmp_path))[0]["windows"]
    assert window["state"] == "partial"
    assert window["why"]
    recorded = steps(traces(run_folder(tmp_path))[0])
    assert recorded == list(range(1, recorded[-1] + 1))
    assert recorded[-1] >= 6


def test_the_jobs_own_sigterm_handler_still_runs(tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(
        "import signal, sys, runpy\n"
        "def bye(*_):\n    print('their handler', flush=True)\n    sys.exit(5)\n"
        "signal.signal(signal.SIGTERM, bye)\n"
        "sys.argv = ['t', '--steps', '500', '--step-seconds', '0.1']\n"
        f"runpy.run_path({STANDIN!r}, run_name='__main__')\n"
    )
    job = start([*PROFILE, "-o", "out", "--steps", "1:400", PYTHON, str(script)], tmp_path)
    wait_for_line(job, "step 4")
    job.send_signal(signal.SIGTERM)
    out, _ = job.communicate(timeout=60)
    assert "their handler" in out
    assert job.returncode == 5
    assert manifests(tmp_path / "out")[0]["windows"][0]["state"] == "partial"


STUCK = (
    WITH_STANDIN
    + """\
import ctypes, torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
mutex, libc = ctypes.create_string_buffer(64), ctypes.CDLL(None)
libc.pthread_mutex_lock(mutex)
print("stuck", flush=True)
libc.pthread_mutex_lock(mutex)  # never returns to Python, like a collective whose peer is gone
"""
)


def test_sigterm_ends_a_rank_that_hangs_in_mid_capture(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    job = start([*PROFILE, "-o", "out", "--steps", "2:100", PYTHON, "stuck.py"], tmp_path)
    wait_for_line(job, "stuck")
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=30)
    assert job.returncode == -signal.SIGTERM


@pytest.mark.thorough
@needs_torch
def test_at_max_size_the_file_ends_after_a_whole_event(tmp_path: Path) -> None:
    done = run([*PROFILE, "--max-size", "8kB", "--with-stack", "-o", "out", PYTHON, TRAIN], tmp_path)
    trace = read_trace(tmp_path / "out" / "rank-00000.pt.trace.json.gz")
    assert len(trace["traceEvents"]) > 10
    [window] = manifests(tmp_path / "out")[0]["windows"]
    assert window["state"] == "partial"
    assert "--max-size (8.00 kB)" in window["why"]
    assert "1 partial" in done.stderr


# Trains until the trace is there, and prints how many steps it did between the end of the window and that moment.
BUSY = (
    NOT_COMPILED
    + """\
import os, sys, torch
model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(100)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
meanwhile = 0
for step in range(100_000):
    optimizer.zero_grad()
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    if step > 30:
        if os.path.exists(sys.argv[1]):
            break
        meanwhile += 1
print(meanwhile)
"""
)


@pytest.mark.thorough
@needs_torch
def test_training_continues_while_the_trace_is_written(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(BUSY)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    env = environment(TMPDIR=str(temporary))
    trace = "out/rank-00000.pt.trace.json.gz"
    done = run([*PROFILE, "-o", "out", "--steps", "10:30", PYTHON, "busy.py", trace], tmp_path, env=env)
    assert int(done.stdout) > 0
    [window] = manifests(tmp_path / "out")[0]["windows"]
    assert window["raw_bytes"] > 4 * window["bytes"] > 0
    assert not list(temporary.glob("rankscope-*")), "no temporary trace is left"


def test_dry_run_shows_what_each_rank_does(tmp_path: Path) -> None:
    shown = run(
        [*PROFILE, "--dry-run", "--steps", "2:3", "torchrun", "--nproc-per-node", "2", "t.py"], tmp_path
    )
    assert "torchrun --nproc-per-node 2 --no-python" in shown.stdout
    assert "rankscope/__main__.py profile --steps 2:3 -o" in shown.stdout
    shown = run([*UNSELECTED, "--dry-run", "echo", "x"], tmp_path)
    assert shown.stdout == "rank 1: echo x\n"
    shown = run([*PROFILE, "--dry-run", "bash", "train.sh"], tmp_path)
    assert "RANKSCOPE_PLAN=" in shown.stdout
    assert not list(tmp_path.iterdir())


def test_the_wrapper_imports_nothing_heavy(tmp_path: Path) -> None:
    """An unselected rank starts quickly because it imports little; benchmarks/capture.py measures the time."""
    env = environment(PYTHONPROFILEIMPORTTIME="1")

    def imported_by(*words: str) -> set[str]:
        done = run(words, tmp_path, env=env)
        return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}

    imported = imported_by(*UNSELECTED, "true") - imported_by(PYTHON, "-c", "")
    assert "rankscope.capture.selector" in imported
    assert len(imported) < 100
    heavy = {"torch", "numpy", "duckdb", "rich", "dataclasses", "pathlib", "subprocess", "rankscope.inapp"}
    assert not heavy & imported


def test_manifest_holds_no_environment_values(tmp_path: Path) -> None:
    run([*PROFILE, "-o", "out", PYTHON, STANDIN], tmp_path, env=environment(MY_TOKEN="s3cret-value"))
    for path in (tmp_path / "out").glob("*.json"):
        assert "s3cret-value" not in path.read_text()
    job = json.loads((tmp_path / "out" / "rankscope.json").read_text())
    assert job["format"] == 1
    assert job["command"] == [PYTHON, STANDIN]
    assert manifests(tmp_path / "out")[0]["host"] == os.uname().nodename
    assert manifests(tmp_path / "out")[0]["python"] == sys.version.split()[0]
