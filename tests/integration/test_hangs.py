"""Hangs and failures of real jobs: the verdict names the rank and the line. `benchmarks/hangs.py` prints a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.jobs import PYTHON, needs_torch, run

pytestmark = [pytest.mark.slow, needs_torch]

HANGS = str(Path(__file__).parents[2] / "benchmarks" / "hangs.py")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kinds",
    [
        ("c-code", "dead", "skipped", "worker"),
        ("own-code", "blocked-read", "frozen", "mismatch"),
        ("order", "no-partner", "teardown"),
        ("raises", "killed", "worker-killed"),
    ],
    ids=lambda kinds: kinds[0],
)
def test_the_verdict_names_the_rank_and_the_line(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    run([PYTHON, HANGS, *kinds, "--at-once", "4"], tmp_path, timeout_s=400)
