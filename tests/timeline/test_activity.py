"""Device time of ops against adding it up one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankscope.readers.columns import NULL
from rankscope.store.arrays import NONE
from rankscope.timeline.segment import device_time


@given(st.lists(st.tuples(st.integers(-1, 30), st.booleans(), st.integers(0, 9)), max_size=30))
def test_device_time_is_handed_to_every_op_around(rows: list[tuple[int, bool, int]]) -> None:
    # An op is around those after it only, so no chain is a circle; device activity is around nothing.
    gpu = [is_gpu for _, is_gpu, _ in rows]
    op = [at if at < i and at >= 0 and not gpu[at] else NONE for i, (at, _, _) in enumerate(rows)]
    time = [length for _, _, length in rows]
    own, total = [0] * len(rows), [0] * len(rows)
    for i in range(len(rows)):
        if gpu[i]:
            at = op[i]
            own[at] += time[i] if at != NONE else 0
            while at != NONE:
                total[at] += time[i]
                at = op[at]
    columns = np.array(op, dtype=np.int64), np.array(gpu, dtype=bool), np.array(time, dtype=np.int64)
    found = device_time(*columns, np.arange(len(rows)))
    is_op = np.array([i in op for i in range(len(rows))], dtype=bool)
    of_rows = found.of_rows(np.arange(len(rows)), is_op)
    assert [values[is_op].tolist() for values in of_rows] == [
        np.array(values)[is_op].tolist() for values in (own, total)
    ]
    assert all((values[~is_op] == NULL).all() for values in of_rows)
