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
from rankscope.analysis.across_ranks import heatmap
from rankscope.analysis.across_ranks.heatmap import rank_times, rank_times_in_store
from rankscope.analysis.core import rollups
from rankscope.analysis.core.device_events import CLASSES
from rankscope.analysis.core.intervals import share_of, union
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.within_rank.breakdown import breakdown
from rankscope.timeline.run import Run, open_run
from rankscope_bench.synthetic import Plan, write

times = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)


@pytest.mark.slow
@given(times, st.lists(st.integers(-5, 90), min_size=2, max_size=8, unique=True))
def test_cells_against_counting(pairs: list[tuple[int, int]], cuts: list[int]) -> None:
    edges = np.array(sorted(cuts), dtype=np.int64)
    start = np.array([a for a, _ in pairs], dtype=np.int64)
    end = start + np.array([d for _, d in pairs], dtype=np.int64)
    shares = share_of(union(start, end), edges)
    covered = {t for a, d in pairs for t in range(a, a + d)}
    expected = [len(covered & set(range(a, b))) / (b - a) for a, b in pairwise(edges)]
    assert shares.tolist() == expected


def test_a_row_adds_up_to_the_breakdown(open_real: Callable[[Path], Run]) -> None:
    for name in ("seqpar-gloo4-slow2", "gpt-h200-stack"):
        run = open_real(DATA / name)
        for row in breakdown(run, Scope()).rows[: len(run.ranks)]:
            time = rank_times(run, Scope(frozenset({row["rank"]})), [row["rank"]])[0]
            compute = int((time.compute.end - time.compute.start).sum())
            copies = int((time.copy.end - time.copy.start).sum())
            assert (compute, copies) == (row["compute_ns"], row["exposed_copy_ns"])


@pytest.mark.slow
def test_what_is_kept_when_ranks_are_read_is_their_time_on_any_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The viewer's map of many ranks reads no events; of a long recording nothing is kept, and it reads them."""
    write(Plan(ranks=2, events_per_rank=1_300, steps=3, max_offset_ns=2_000_000), tmp_path / "run")
    for most, ranks in ((20_000, [0, 1]), (3, [])):
        monkeypatch.setattr(heatmap, "_MOST_KEPT", most)
        run = open_run([tmp_path / "run"], cache=tmp_path / f"cache-{most}")
        stored = rollups.Rollups(run)
        stored.add([rollups.make(run, run.ranks, Scope())])
        for clocks in ("aligned", "raw"):
            again = open_run([tmp_path / "run"], cache=tmp_path / f"cache-{most}").with_options(clocks=clocks)
            times = rank_times_in_store(again, again.ranks)
            assert list(times) == ranks
            for expected in rank_times(again, Scope(), ranks):
                for name in (*CLASSES, "recorded"):
                    for part in ("start", "end"):
                        read, made = (
                            getattr(getattr(time, name), part) for time in (times[expected.rank], expected)
                        )
                        assert read.tolist() == made.tolist()
                assert len(expected.compute.start) > 10
