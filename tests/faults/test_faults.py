"""The short form of `make faults`: some trials of each part."""

from __future__ import annotations

from random import Random

import pytest

from faults.outcome import Part
from faults.parts import PARTS


@pytest.mark.parametrize("part", PARTS, ids=[part.name for part in PARTS])
def test_nothing_differs(part: Part) -> None:
    outcomes = list(part.trials(part.few, Random(0)))
    assert len(outcomes) == part.few
    assert [outcome for outcome in outcomes if outcome.difference] == []
