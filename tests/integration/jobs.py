"""Starts real jobs and reads their run folders."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

TRAIN = str(Path(__file__).with_name("train.py"))
STANDIN = str(Path(__file__).with_name("train_standin.py"))
"""The same loop with a stand-in for torch, in a tenth of the CPU time: for tests of processes and folders."""
BIN = Path(sys.executable).parent
PYTHON = sys.executable
PROFILE = [PYTHON, "-m", "rankscope", "profile"]
TIMEOUT_S = 120
NOT_COMPILED = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import fake_compiler\n"
"""The first line of a script that compiles nothing: it saves importing torch's compiler, half of the CPU time."""
WITH_STANDIN = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1] / 'torch_standin')!r})\n"
"""The first line of a script whose torch is the stand-in."""

_LAUNCHERS = ("SLURM", "PMI", "OMPI", "PALS", "TORCHELASTIC", "RANKSCOPE", "PBS")


def environment(**more: str) -> dict[str, str]:
    """The environment of the tests without variables that a launcher sets."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        env.pop(name, None)
    return {
        **env,
        "PATH": f"{BIN}{os.pathsep}{env['PATH']}",
        "OMP_NUM_THREADS": "1",
        "PET_MASTER_PORT": str(free_port()),  # torchrun's; with the default, two tests would meet in one job
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        **more,
    }


_ports = count(26_000 + 1_500 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")))
"""Below those that the system gives to connections: nobody takes one before the job has it."""


def free_port() -> int:
    for port in _ports:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError


def wait_until_in_front(terminal: int, is_meant: Callable[[int], bool]) -> None:
    """Until the terminal belongs to the group of the process that is meant, and that goes on."""

    def goes_on(pid: int) -> bool:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T"

    deadline = time.monotonic() + 60
    while not (is_meant(pid := os.tcgetpgrp(terminal)) and goes_on(pid)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def run(
    words: Sequence[str],
    cwd: Path,
    *,
    check: bool = True,
    stdin: str = "",
    env: dict[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        input=stdin,
        env=env or environment(),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


def start(words: Sequence[str], cwd: Path, **more: str) -> subprocess.Popen[str]:
    """Start a job that the test will signal; its stderr goes to stdout."""
    return subprocess.Popen(
        [str(word) for word in words],
        cwd=cwd,
        env=environment(PYTHONUNBUFFERED="1", **more),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_line(job: subprocess.Popen[str], text: str) -> str:
    """Read the job's output up to a line with this text."""
    assert job.stdout is not None
    seen = []
    for line in job.stdout:
        seen.append(line)
        if text in line:
            return line
    raise AssertionError(f"'{text}' is not in the output:\n{''.join(seen)}")


def run_folder(cwd: Path) -> Path:
    """The one run folder below cwd."""
    [folder] = cwd.glob("rankscope-*")
    return folder


def manifests(folder: Path) -> dict[int, dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("rank-*.rankscope.json"))]
    return {manifest["rank"]: manifest for manifest in found}


def read_trace(path: Path) -> dict[str, Any]:
    trace: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return trace


def traces(folder: Path) -> dict[int, dict[str, Any]]:
    """The first trace of every rank, by rank; no unfinished file may be left."""
    assert not list(folder.glob(".*")), "an unfinished file is left"
    return {
        int(path.name[5:10]): read_trace(path) for path in sorted(folder.glob("rank-?????.pt.trace.json.gz"))
    }


def steps(trace: dict[str, Any]) -> list[int]:
    """The numbers of the steps in a trace, in order."""
    names = [event.get("name", "") for event in trace["traceEvents"] if event.get("cat") == "user_annotation"]
    return sorted(int(name.partition("#")[2]) for name in names if name.startswith("ProfilerStep#"))


def our_lines(text: str) -> list[str]:
    """The lines of rankscope, without the one that predicts a window. Torch's log writes lines in pieces, so ours can
    follow part of one."""
    return [line for line in re.findall("rankscope: .*", text) if "will be recorded: " not in line]


def needs(program: str, package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        shutil.which(program) is None,
        reason=f"{program} is not installed (tests/install-packages.sh: {package})",
    )


needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torch is not installed in this environment (tests/requirements-torch.txt)",
)
