"""The machine's figures; and reading without /proc, as on macOS (a fake: the calls are hidden)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import DATA, ROOT
from rankscope import host


def test_figures_of_this_machine() -> None:
    assert 1 <= host.usable_cores() <= (os.cpu_count() or 1)
    assert 0 < host.available_memory_bytes() <= host.physical_memory_bytes()


def test_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "PROC", tmp_path)
    assert host.resident_bytes() is None
    assert host.address_space_bytes() is None
    assert not host.has_descriptor_paths()


HIDE_LINUX = """
import os, pathlib
from rankscope import host
del os.sched_getaffinity
if hasattr(os, "memfd_create"):
    del os.memfd_create
real = os.sysconf
def sysconf(name):
    if name == "SC_AVPHYS_PAGES":
        raise ValueError("unrecognized configuration name")
    return real(name)
os.sysconf = sysconf
host.PROC = pathlib.Path("/nonexistent")
"""


@pytest.mark.thorough
def test_reads_and_answers_as_on_macos(tmp_path: Path) -> None:
    """The workers that read are processes of their own: a sitecustomize hides the calls in all of them."""
    hidden = tmp_path / "hide"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(HIDE_LINUX)
    environment = {**os.environ, "PYTHONPATH": f"{hidden}{os.pathsep}{ROOT / 'src'}"}
    trace = DATA / "seqpar-gloo4-slow2"
    command = [sys.executable, "-m", "rankscope", "stats", str(trace), "-r", "breakdown", "--format", "json"]
    outputs = [
        subprocess.run(
            [*command, "--cache", str(tmp_path / name)], env=env, capture_output=True, text=True, check=True
        ).stdout
        for name, env in (("linux", dict(os.environ)), ("macos", environment))
    ]
    assert outputs[0] == outputs[1]
