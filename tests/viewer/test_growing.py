"""The picture of a trace that is being read: against counting, in any order of batches, and while a file is read."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.bench.synthetic import Plan, write
from rankscope.readers.columns import NULL, EventColumns, Texts
from rankscope.store.ingest import Options
from rankscope.viewer import growing
from rankscope.viewer.growing import BINS, GrowingPicture, coverage
from rankscope.viewer.startup import Opening

TEXTS = ["1", "7", "kernel", "gemm", "cpu_op", "ncclDevKernel"]
slices = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5_000), st.integers(1, 3_000)), max_size=20)


def batch(rows: list[tuple[int, int, int, int, int]]) -> EventColumns:
    """Of tid, category, name, time and duration: codes of TEXTS, and ns."""
    tid, category, name, time, duration = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    nothing = np.zeros(0, dtype=np.int64)
    values: dict[str, Any] = {field.name: nothing for field in fields(EventColumns)}
    values |= {"texts": Texts.of(TEXTS), "pid": np.zeros(len(tid), np.int32), "tid": tid.astype(np.int32)}
    values |= {"category": category.astype(np.int32), "name": name.astype(np.int32)}
    return EventColumns(**values | {"time": time, "duration": duration})


@given(slices)
def test_coverage_against_counting(pieces: list[tuple[int, int, int]]) -> None:
    """In tenths of a bin."""
    row, first, length = np.array(pieces, dtype=np.int64).reshape(-1, 3).T
    counted = np.zeros((2, BINS * 10))
    for each, start, size in pieces:
        counted[each, start : start + size] += 1
    covered = coverage(row, first / 10, (first + length) / 10, 2)
    np.testing.assert_allclose(covered, counted.reshape(2, BINS, 10).mean(axis=2), atol=1e-9)


@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 10**8)), min_size=1, max_size=12),
    st.integers(0, 3),
)
def test_batches_in_any_order_are_the_same_time(pieces: list[tuple[int, int]], cut: int) -> None:
    """Bins move and grow, and no time is lost."""
    picture = GrowingPicture()
    rows = [(1, 2, 3, time, duration) for time, duration in pieces]
    for part in (rows[cut:], rows[:cut]):
        picture.add(batch(part))
    busy_ns = float(picture._busy.sum() * picture._step)
    assert busy_ns == pytest.approx(sum(duration for _, duration in pieces), rel=1e-6)
    header = picture.answer()[0]
    assert header["begin_ns"] <= min(time for time, _ in pieces)
    assert header["end_ns"] >= max(time + duration for time, duration in pieces)


def test_tracks_have_the_kind_of_their_events() -> None:
    picture = GrowingPicture()
    picture.add(
        batch(
            [(0, 4, 3, 0, 100), (1, 2, 3, 0, 40), (1, 2, 5, 50, 50), (1, 2, 3, NULL, 5), (0, 4, 3, 9, NULL)]
        )
    )
    header, columns = picture.answer()
    assert header["labels"] == ["stream 7", "thread 1"]
    kinds = columns["kind"].reshape(2, -1)
    busy = columns["busy"].reshape(2, -1)
    assert [header["kinds"][kind] for kind in kinds[0, [0, 39, 50, 99]]] == [
        "compute",
        "compute",
        "comm",
        "comm",
    ]
    assert busy[0, [0, 45, 99]].tolist() == [255, 0, 255]
    assert header["kinds"][kinds[1, 0]] == "op" and (busy[1] == 255).all()


def test_an_event_far_away_does_not_stretch_the_picture() -> None:
    picture = GrowingPicture()
    picture.add(batch([(1, 2, 3, time, 10) for time in (10**18, 10**18 + 50, 10**18 + 90, 5)]))
    header = picture.answer()[0]
    assert header["end_ns"] - header["begin_ns"] <= 200


def test_the_picture_grows_while_a_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(Plan(ranks=1, events_per_rank=1_500, steps=3), tmp_path)
    states: list[Any] = []
    add = GrowingPicture.add

    def asked_meanwhile(picture: GrowingPicture, columns: EventColumns) -> None:
        add(picture, columns)
        states.append((opening.state(), opening.routes()["growing"]({})))

    monkeypatch.setattr(growing.GrowingPicture, "add", asked_meanwhile)
    opening = Opening([tmp_path], Options, lambda text: None)
    opening.start()
    assert opening.wait(60)
    (state, (header, columns)), *_ = states
    assert (state["state"], state["batches"]) == ("reading", 1)
    assert state["phases"][0]["name"] == "read" and state["phases"][-1]["done"] is False
    ((name, share),) = state["files"]
    assert state["count"] == 1 and name.startswith("rank-") and 0 <= share <= 1
    assert any(label.startswith("stream") for label in header["labels"])
    assert len(columns["busy"]) == len(header["labels"]) * header["bins"] and columns["busy"].any()
    phases = opening.state()["phases"]
    assert opening.state()["state"] == "open" and [phase["done"] for phase in phases] == [True, True]
    opening.close()
    again = Opening([tmp_path], Options, lambda text: None)
    again.start()
    assert again.wait(60)
    assert len(states) == 1 and again.routes()["growing"]({}) == {}, "nothing is read"
    assert again.state()["phases"] == []
    again.close()
