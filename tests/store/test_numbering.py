"""Rows numbered as np.unique numbers them."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankscope.store.arrays import number_rows

values = st.one_of(st.integers(-3, 3), st.integers(-(2**61), 2**61))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(values, values, values), max_size=20))
def test_as_unique_by_axis(rows: list[tuple[int, int, int]]) -> None:
    columns = [np.array([row[i] for row in rows], dtype=np.int64) for i in range(3)]
    found, place = number_rows(columns)
    assert [tuple(row) for row in found.tolist()] == sorted(set(rows))
    assert [tuple(row) for row in found[place].tolist()] == rows
