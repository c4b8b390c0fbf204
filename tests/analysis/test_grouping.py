"""Grouping by several numbers is what numpy does, only sooner."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rankscope.analysis.core.grouping import distinct

SMALL = st.integers(-3, 3)
LARGE = st.sampled_from([-(2**63), -(2**61), -1, 0, 2**40, 2**61, 2**62, 2**63 - 1])


@given(arrays(np.int64, st.tuples(st.integers(1, 4), st.integers(1, 30)), elements=st.one_of(SMALL, LARGE)))
def test_as_numpy_does(columns: np.ndarray) -> None:
    groups, group = distinct(columns)
    expected, place = np.unique(columns, axis=1, return_inverse=True)
    assert (groups == expected).all() and (group == place.reshape(-1)).all()


def test_nothing() -> None:
    groups, group = distinct(np.zeros((2, 0), dtype=np.int64))
    assert groups.shape == (2, 0) and len(group) == 0
