"""The short form of `make faults`: some trials of each part."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from faults.outcome import Part
from faults.parts import PARTS

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("part", PARTS, ids=[part.name for part in PARTS])
def test_nothing_differs(part: Part) -> None:
    # In a process of its own: trials fork, and this one has threads.
    program = [sys.executable, str(Path(__file__).with_name("run.py")), "--part", part.name]
    ended = subprocess.run([*program, "--count", str(part.few)], capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"| **{part.name}** |" in ended.stdout
