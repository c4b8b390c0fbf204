"""The permutation test against brute force, and what it promises: few false alarms, however many rows."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import examples
from rankscope.analysis.diff.compare import adjusted_p, smallest_p


def brute_force(base: Any, new: Any) -> list[float]:
    """Every split, row by row, in plain Python."""
    values, count = np.concatenate([base, new], axis=1), base.shape[1]
    total = values.shape[1]

    def statistics(chosen: tuple[int, ...]) -> list[float]:
        rest = [i for i in range(total) if i not in chosen]
        found = []
        for row in values:
            a, b = row[list(chosen)], row[rest]
            within = ((a - a.mean()) ** 2).sum() + ((b - b.mean()) ** 2).sum()
            error = (within / max(total - 2, 1) * (1 / len(a) + 1 / len(b))) ** 0.5
            found.append(
                abs(a.mean() - b.mean()) / error if error > 1e-6 else 0.0 if a.mean() == b.mean() else 1e9
            )
        return found

    real = statistics(tuple(range(count)))
    largest = [max(statistics(split)) for split in combinations(range(total), count)]
    return [sum(one >= row * (1 - 1e-7) for one in largest) / len(largest) for row in real]


@settings(max_examples=examples(80), deadline=None)
@given(st.integers(2, 4), st.integers(2, 4), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_p_values_are_those_of_trying_every_split(first: int, second: int, rows: int, seed: int) -> None:
    source = np.random.default_rng(seed)
    base, new = source.normal(100, 5, (rows, first)), source.normal(101, 5, (rows, second))
    assert adjusted_p(base, new) == pytest.approx(brute_force(base, new))


def test_a_certain_difference_reaches_the_smallest_p() -> None:
    source = np.random.default_rng(1)
    base, new = source.normal(100, 1, (50, 6)), source.normal(100, 1, (50, 6))
    new[7] += 40
    found = adjusted_p(base, new)
    assert found[7] == smallest_p(6, 6) == 2 / 924
    assert (np.delete(found, 7) > 0.01).all()


def test_rows_that_do_not_vary() -> None:
    """Counts and sizes: equal is equal, and another value in every step is no accident."""
    base, new = np.full((2, 5), 8.0), np.full((2, 5), 8.0)
    new[1] = 9.0
    assert adjusted_p(base, new).tolist() == [1.0, smallest_p(5, 5)]


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "pairs", "allowed"), [(6, 200, 6), (12, 30, 2)])
def test_noise_is_called_noise(steps: int, pairs: int, allowed: int) -> None:
    """Family-wise: over 100 rows at once, less than 1 % of pairs may show anything. Random splits included."""
    source = np.random.default_rng(steps)
    level = source.uniform(1e3, 1e7, (100, 1))
    alarms = 0
    for _ in range(pairs):
        common = source.normal(1, 0.01, (1, 2 * steps))  # the clock moves all rows of a step alike
        values = level * common * source.normal(1, 0.02, (100, 2 * steps))
        alarms += bool((adjusted_p(values[:, :steps], values[:, steps:]) <= 0.01).any())
    assert alarms <= allowed  # 1 % expected; more than this happens less than once in a hundred


def test_samples_that_cannot_be_tested() -> None:
    assert adjusted_p(np.empty((3, 0)), np.ones((3, 4))).tolist() == [1, 1, 1]
    assert adjusted_p(np.empty((0, 4)), np.empty((0, 4))).tolist() == []
    assert smallest_p(3, 3) == 0.1
    assert smallest_p(0, 3) == 1.0
