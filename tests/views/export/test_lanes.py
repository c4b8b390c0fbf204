"""Lanes: whatever slices a track holds, none is lost, and on one lane they nest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.protobuf import varint
from rankscope.views.export.timeline_events import SliceEvent, _in_lanes

SLICES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), max_size=40)


def lanes(slices: list[tuple[int, int, int]]) -> list[SliceEvent]:
    ordered = sorted(slices, key=lambda s: (s[0], s[1], -s[2]))
    return list(_in_lanes((track, start, dur, "a", "b", None, None, None) for track, start, dur in ordered))


@pytest.mark.slow
@given(SLICES)
def test_nothing_is_lost(slices: list[tuple[int, int, int]]) -> None:
    placed = lanes(slices)
    assert sorted((e.track, e.start_ns, e.dur_ns) for e in placed) == sorted(slices)


@pytest.mark.slow
@given(SLICES)
def test_on_one_lane_slices_nest(slices: list[tuple[int, int, int]]) -> None:
    placed = lanes(slices)
    for i, a in enumerate(placed):
        for b in placed[i + 1 :]:
            if (a.track, a.lane) != (b.track, b.lane):
                continue
            a_end, b_end = a.start_ns + a.dur_ns, b.start_ns + b.dur_ns
            crosses = a.start_ns < b.start_ns < a_end < b_end or b.start_ns < a.start_ns < b_end < a_end
            assert not crosses


def test_slices_that_nest_need_one_lane() -> None:
    assert {e.lane for e in lanes([(0, 0, 10), (0, 0, 4), (0, 4, 6), (0, 5, 5), (0, 10, 3)])} == {0}


def test_one_that_crosses_gets_its_own() -> None:
    assert [e.lane for e in lanes([(0, 0, 10), (0, 5, 10), (0, 12, 1)])] == [0, 1, 0]


@given(st.integers(-(2**63), 2**64 - 1))
def test_varint(value: int) -> None:
    encoded = varint(value)
    decoded = sum((byte & 127) << (7 * at) for at, byte in enumerate(encoded))
    assert decoded == value % 2**64
    assert all(byte & 128 for byte in encoded[:-1]) and not encoded[-1] & 128
