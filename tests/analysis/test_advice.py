"""Advice fits the framework, the profiler and the device of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rankscope.analysis.core.advice import framework
from rankscope.analysis.core.ceilings import device_names
from rankscope.analysis.core.scope import Scope
from rankscope.timeline.run import Run

OpenData = Callable[[str], Run]


@pytest.fixture(scope="module")
def opened(
    dataset: Callable[[str], Path], open_real: Callable[[Path], Run], without_workers: None
) -> OpenData:
    return lambda name: open_real(dataset(name))


@pytest.mark.parametrize(
    ("name", "expected", "device"),
    [
        ("jax/mlp-h200", "jax", "NVIDIA H200"),
        ("proton/matmul-h200", "triton", ""),
        ("nsys/gpt-h200", "nsys", "NVIDIA H200"),
        ("gpt-h200", "torch", "NVIDIA H200"),
    ],
)
def test_the_framework_and_the_device_of_a_recording(
    opened: OpenData, name: str, expected: str, device: str
) -> None:
    run = opened(name)
    assert framework(run) == expected
    assert device_names(run, Scope()) == {0: device}
