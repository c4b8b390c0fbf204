"""A small loop to profile."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("torch") is not None:
    from integration import fake_compiler  # noqa: F401 - it saves importing torch's compiler, seconds of CPU time


@pytest.fixture
def train() -> Callable[[], None]:
    """One training step of a tiny model."""
    torch: Any = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()

    return step
