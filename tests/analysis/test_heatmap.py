"""The map adds up to the breakdown, and each cell is what a count of nanoseconds gives."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import DATA
from rankscope.analysis.across_ranks.heatmap import RankTime, rank_times
from rankscope.analysis.core.intervals import EMPTY, union
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.within_rank.breakdown import breakdown
from rankscope.timeline.run import Run

times = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)


@pytest.mark.slow
@given(times, st.lists(st.integers(-5, 90), min_size=2, max_size=8, unique=True))
def test_cells_against_counting(pairs: list[tuple[int, int]], cuts: list[int]) -> None:
    edges = np.array(sorted(cuts), dtype=np.int64)
    start = np.array([a for a, _ in pairs], dtype=np.int64)
    end = start + np.array([d for _, d in pairs], dtype=np.int64)
    shares = RankTime(0, union(start, end), EMPTY, EMPTY, False, EMPTY).shares(edges)
    covered = {t for a, d in pairs for t in range(a, a + d)}
    expected = [len(covered & set(range(a, b))) / (b - a) for a, b in pairwise(edges)]
    assert shares[0].tolist() == expected and not shares[1:].any()


def test_a_row_adds_up_to_the_breakdown(open_real: Callable[[Path], Run]) -> None:
    for name in ("seqpar-gloo4-slow2", "gpt-h200-stack"):
        run = open_real(DATA / name)
        for row in breakdown(run, Scope()).rows[: len(run.ranks)]:
            time = rank_times(run, Scope(frozenset({row["rank"]})), [row["rank"]])[0]
            compute = int((time.compute.end - time.compute.start).sum())
            copies = int((time.copy.end - time.copy.start).sum())
            assert (compute, copies) == (row["compute_ns"], row["exposed_copy_ns"])
