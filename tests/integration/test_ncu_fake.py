"""`--tool ncu` and `rankscope ncu` with a recording fake of ncu: the real one needs a GPU (tests/gpu/ncu.sh)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from integration.jobs import environment, manifests
from rankscope.capture.kernel_list import HotKernel, write_kernels

pytestmark = pytest.mark.slow

FAKE = """#!/bin/sh
# Runs the command it is given, notes its own arguments, and says what ncu says.
[ "$1" = --version ] && { echo "Version 2025.3.0.0 (build 1)"; exit 0; }
echo "$@" >"$FAKE_ARGUMENTS"
env >"$FAKE_ARGUMENTS.env"
for word in "$@"; do
  case $word in --export=*) out=${word#--export=} ;; --log-file=*) log=${word#--log-file=} ;; esac
done
while [ "${1#-}" != "$1" ]; do shift; done
"$@"
code=$?
if [ -n "$FAKE_NOTHING" ]; then
  printf '==WARNING== No kernels were profiled.\\nAvailable Kernels:\\n1. nvjet\\n2. fill\\n' >"$log"
else
  echo '==PROF== Profiling "gemm" - 0: 0%....50%....100% - 9 passes' >"$log"
  echo report >"$out"
fi
exit $code
"""
# ncu is refused where there is no driver, and no test machine need have one.
DRIVER = (
    "import sys; from rankscope.capture.under_tool import preflight; preflight.has_driver = lambda: True; "
)
DRIVER += "from rankscope.cli import main; sys.exit(main(sys.argv[1:]))"


def ncu(tmp_path: Path, *words: str, **env: str) -> tuple[subprocess.CompletedProcess[str], str]:
    fake = tmp_path / "bin" / "ncu"
    fake.parent.mkdir(exist_ok=True)
    fake.write_text(FAKE)
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
    assert (done.returncode, done.stdout) == (6, "job\n")
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


def test_a_pattern_without_a_match_lists_the_kernels(tmp_path: Path) -> None:
    done, _ = ncu(tmp_path, "profile", "--tool", "ncu", "-o", "out", "-k", "gem", "true", FAKE_NOTHING="1")
    assert done.returncode == 0
    assert "no kernel matched -k. These ran:\n    nvjet\n    fill" in done.stderr
    assert manifests(tmp_path / "out")[0]["windows"] == []


def test_a_list_of_kernels_needs_only_the_standard_library(tmp_path: Path) -> None:
    hot = HotKernel("void space::fill<4>(int)", (2, 1, 1), (128, 1, 1), 4, 4000)
    write_kernels(tmp_path / "hot.json", [hot, hot._replace(name="nvjet_a.b")], "run")
    done, arguments = ncu(tmp_path, "ncu", "--kernels", "hot.json", "-o", "out", "-c", "2", "--", "true")
    assert done.returncode == 0, done.stderr
    assert "--kernel-name=regex:^(fill|nvjet_a\\.b)$ --launch-count=4" in arguments
    assert "where rankscope is installed in full: rankscope ncu out" in done.stderr
    assert len(json.loads((tmp_path / "out" / "kernels.json").read_text())["kernels"]) == 2


def test_a_dry_run_prints_the_line(tmp_path: Path) -> None:
    write_kernels(tmp_path / "hot.json", [HotKernel("fill", (1, 1, 1), (1, 1, 1), 1, 1)], "run")
    done, arguments = ncu(tmp_path, "ncu", "--kernels", "hot.json", "-n", "-o", "out", "--", "true")
    assert arguments == ""
    assert "--kernel-name=regex:^(fill)$" in done.stdout
    assert not (tmp_path / "out").exists()


def test_choosing_needs_the_store(tmp_path: Path) -> None:
    done, _ = ncu(tmp_path, "ncu", "RUN", "--", "true")
    assert done.returncode == 2
    assert "choosing kernels needs duckdb" in done.stderr
