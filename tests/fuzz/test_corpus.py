"""Every input that a fuzzer found worth keeping, and every seed, gives an answer or a message."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.targets import TARGETS, attempt

pytestmark = pytest.mark.slow

CORPUS = Path(__file__).with_name("corpus")
KEPT = sorted(path.relative_to(CORPUS) for path in CORPUS.glob("*/*"))


@pytest.mark.parametrize("name", TARGETS)
def test_seeds(name: str) -> None:
    for seed in TARGETS[name].seeds():
        attempt(TARGETS[name], seed)


@pytest.mark.parametrize("path", KEPT, ids=str)
def test_kept(path: Path) -> None:
    attempt(TARGETS[path.parts[0]], (CORPUS / path).read_bytes())
