"""The reference is the plain product, and a wrong result cannot pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rankscope.bench.seqpar import block  # noqa: E402
from rankscope.bench.seqpar.block import (  # noqa: E402
    TOLERANCE,
    reference_rows,
    relative_error,
    sample_rows,
    tensors,
)
from rankscope.bench.seqpar.config import PARTS, Config  # noqa: E402
from rankscope.bench.seqpar.stopwatch import Stopwatch  # noqa: E402

CONFIG = Config(sequence=24, hidden=16)
RANKS = 4


def test_shapes_are_those_of_sequence_parallelism() -> None:
    shapes = [tuple(one.shape) for one in tensors(CONFIG, 1, RANKS)]
    assert shapes == [(6, 1, 16), (4, 16), (16, 4)]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_reference_is_the_whole_product(precision: str) -> None:
    config = Config(sequence=24, hidden=16, precision=precision)
    parts = [tensors(config, rank, RANKS) for rank in range(RANKS)]
    inputs = torch.cat([one[0] for one in parts]).double()
    weight1, weight2 = (torch.cat([one[i] for one in parts], i - 1).double() for i in (1, 2))
    product = inputs[:, 0] @ weight1.T @ weight2.T
    rows = sample_rows(config, RANKS)
    torch.testing.assert_close(reference_rows(config, 2, RANKS), product[12:18][rows])


def test_a_wrong_result_is_far_outside_the_tolerance() -> None:
    rows = sample_rows(CONFIG, RANKS)
    reference = reference_rows(CONFIG, 0, RANKS)
    right = torch.zeros(6, 1, 16)
    right[rows, 0] = reference.float()
    assert relative_error(right, reference, rows) < TOLERANCE["float32"]
    other = reference_rows(CONFIG, 1, RANKS)
    assert relative_error(right, other, rows) > 10 * max(TOLERANCE.values())
    right[rows, 0] *= 1.1  # a tenth of a term lost
    assert relative_error(right, reference, rows) > max(TOLERANCE.values())
    assert not relative_error(right * float("nan"), reference, rows) <= 1


def test_a_range_around_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """--range: the CUDA profiler range holds that part, and no other."""
    noted: list[str] = []

    @contextmanager
    def noted_range(name: str) -> Iterator[None]:
        noted.append(f"{name} begins")
        yield
        noted.append(f"{name} ends")

    def collective(*_names: str) -> Callable[[Any, Any], Any]:
        return lambda output, given: output.copy_(given)

    monkeypatch.setattr(block, "renamed_collective", collective)
    monkeypatch.setattr(block, "cuda_profiler_range", lambda: noted_range("range"))
    monkeypatch.setattr(block, "trace", noted_range)
    world: Any = SimpleNamespace(rank=0, size=1, device=torch.device("cpu"))
    one = block.Block(CONFIG, world)
    one.ranged = "matmul1"
    one.synchronous(Stopwatch(world.device))
    parts = [(name, f"{name} begins", f"{name} ends") for name in PARTS]
    expected = [
        [*words] if name != "matmul1" else ["range begins", *words, "range ends"] for name, *words in parts
    ]
    assert noted == [word for words in expected for word in words]
