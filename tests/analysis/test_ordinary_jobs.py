"""Ordinary jobs with planted faults, recorded for real: the first screen names the rank and the reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ordinary_job import FAULTS
from ordinary_record import HEALTHY
from ordinary_score import EXPECTED, ask

RECORDED = Path(__file__).parents[1] / "data" / "ordinary"
NAMES = sorted(folder.name for folder in RECORDED.iterdir())


@pytest.fixture
def recording(dataset: Callable[[str], Path]) -> Callable[[str], Path]:
    return lambda name: dataset(f"ordinary/{name}")


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith(HEALTHY)])
def test_fault_is_named(recording: Callable[[str], Path], name: str) -> None:
    answer = ask(recording(name))
    assert answer.ranks == FAULTS[name].ranks
    assert re.search(EXPECTED[name], answer.text, re.DOTALL), answer.text


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(HEALTHY)])
def test_nobody_is_named_in_a_healthy_job(recording: Callable[[str], Path], name: str) -> None:
    answer = ask(recording(name))
    assert answer.ranks == ()
    assert answer.alarms == 0
