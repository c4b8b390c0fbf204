"""Rows numbered as np.unique numbers them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rankscope.store.arrays import number_rows

values = st.one_of(st.integers(-3, 3), st.integers(-(2**61), 2**61))


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(values, values, values), max_size=20))
def test_as_unique_by_axis(rows: list[tuple[int, int, int]]) -> None:
    columns = [np.array([row[i] for row in rows], dtype=np.int64) for i in range(3)]
    found, place = number_rows(columns)
    assert [tuple(row) for row in found.tolist()] == sorted(set(rows))
    assert [tuple(row) for row in found[place].tolist()] == rows


SMALL = st.integers(-3, 3)
LARGE = st.sampled_from([-(2**63), -(2**61), -1, 0, 2**40, 2**61, 2**62, 2**63 - 1])


@given(arrays(np.int64, st.tuples(st.integers(1, 4), st.integers(1, 30)), elements=st.one_of(SMALL, LARGE)))
def test_as_numpy_does(columns: np.ndarray) -> None:
    groups, group = number_rows(list(columns))
    expected, place = np.unique(columns, axis=1, return_inverse=True)
    assert (expected == groups.T).all() and (group == place.reshape(-1)).all()


def test_nothing() -> None:
    groups, group = number_rows(list(np.zeros((2, 0), dtype=np.int64)))
    assert groups.shape == (0, 2) and len(group) == 0
