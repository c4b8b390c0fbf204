"""The matched collectives of a run are kept in the store, and made again where they do not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rankscope.store.arrays import Ints
from rankscope.timeline.collectives.entries import Collectives, Group, Message, Unmatched
from rankscope.timeline.collectives.loading import KEPT


def made(count: int) -> Collectives:
    source = np.random.default_rng(0)

    def column(high: int) -> Ints:
        return source.integers(-1, high, count)

    return Collectives(
        rank=column(3), segment=column(1), slice=column(1 << 40), track=column(9), group=column(2), kind=column(7),
        dtype=column(1), bytes=column(1 << 33), seq=column(1 << 17), step=column(6), start=column(1 << 60),
        end=column(1 << 60), on_device=column(1).astype(bool), call=column(99), call_start=column(1 << 60),
        peer=column(3), in_elements=column(1 << 20), out_elements=column(1 << 20), match=column(count),
        batch=column(2), sends=column(count)[:50], recvs=column(count)[:50],
        batches=((Message(True, 1, "0"), Message(False, -1, "?")), ()),
        groups=(Group("0", "default_pg", (0, 1, 2), 3), Group("?")), dtypes=("bfloat16",),
        unmatched=(Unmatched("their process group has one rank", 2, (0, 1)),),
    )  # fmt: skip


def test_they_come_back_as_they_were(tmp_path: Path) -> None:
    rows = made(2_000)
    KEPT.save(tmp_path, [[0, 0, "a", 5]], rows)
    found = KEPT.load(tmp_path, [[0, 0, "a", 5]])
    assert found is not None
    for name, value in vars(rows).items():
        other = getattr(found, name)
        if isinstance(value, np.ndarray):
            assert (other == value).all() and other.dtype == value.dtype
        else:
            assert other == value
    assert KEPT.load(tmp_path, [[0, 0, "b", 5]]) is None, "another file"
