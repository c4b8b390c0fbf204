"""Columns of batches joined to columns of the file: in as few bytes as their numbers need, and with the same values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rankscope import native
from rankscope.readers.columns import NULL, Texts
from rankscope.readers.sql_columns import columns_of
from rankscope.store.event_log import EventLog, _narrow, _shortened, _wide, flow_texts, joined, read_batch

NUMBERS = st.sampled_from([NULL, -(1 << 31), -1, 0, 7, 1 << 31, (1 << 62)])
PIECES = st.lists(st.lists(NUMBERS, max_size=4), min_size=1, max_size=4)


@given(PIECES)
@example([[NULL], [-(1 << 31)]])
def test_numbers_are_the_same_in_fewer_bytes(pieces: list[list[int]]) -> None:
    column = joined([_shortened(_narrow(np.array(piece, dtype=np.int64))) for piece in pieces])
    assert _wide(column).tolist() == [number for piece in pieces for number in piece]


def test_what_was_added_comes_out_in_the_order_of_the_batches() -> None:
    """Codes of two batches differ; sparse columns begin with a batch that has none."""
    none, one = ("NULL::BIGINT", "5::BIGINT")
    log = EventLog()
    for name, stream in (("b", none), ("a", one), ("b", one)):
        log.add(
            read_batch(
                columns_of(
                    f"""SELECT 'X' AS ph, 'kernel' AS category, '{name}' AS name, '1' AS pid, '2' AS tid,
                    3::BIGINT AS ts_ns, 4::BIGINT AS dur_ns, 'x' AS flow, '{{}}' AS args, NULL::BIGINT AS correlation,
                    NULL::BIGINT AS external_id, NULL::BIGINT AS device, {stream} AS stream, NULL::BIGINT AS bytes,
                    NULL::VARCHAR AS collective, NULL::STRUCT("Bytes" BIGINT, "Total Allocated" BIGINT,
                    "Total Reserved" BIGINT, "Device Type" BIGINT, "Device Id" BIGINT, "Addr" BIGINT) AS memory,
                    NULL::VARCHAR[] AS shapes"""
                )
            )
        )
    events = log.events()
    assert [events.texts[code] for code in events.name.tolist()] == ["b", "a", "b"]
    assert events.number("stream", events.places(np.arange(3))).tolist() == [NULL, 5, 5]
    assert events.number("stream", events.places(np.array([2, 0, 1, 1, 0]))).tolist() == [5, NULL, 5, 5, NULL]
    assert {events.texts[code] for code in events.category[:].tolist()} == {"kernel"}
    assert [events.texts[-1 - flow] for flow in events.flow.tolist()] == ["x"] * 3


@given(st.sets(st.integers(0, 60)), st.lists(st.integers(0, 60)))
def test_places_of_events(linked: set[int], wanted: list[int]) -> None:
    """In any order; those that are not there are after the last."""
    if native.functions is None:
        pytest.skip("the C parts are not built")
    ascending = sorted(linked)
    columns = (np.array(column, dtype=np.int32) for column in (ascending, wanted))
    places = np.frombuffer(native.functions.places(*columns), np.int32)
    assert places.tolist() == [ascending.index(event) if event in linked else len(linked) for event in wanted]


def test_ids_of_flows_are_spelt_as_they_were() -> None:
    texts = Texts.of(["0x1", "a"])
    chunk = flow_texts(np.array([NULL, 0, 12, -1, -2]), texts)
    data = bytes(chunk.data)
    spelt = [
        None if at == 0xFFFFFFFF else data[at + 4 : at + 4 + int.from_bytes(data[at : at + 4], "little")]
        for at in chunk.offsets.tolist()
    ]
    assert spelt == [None, b"0", b"12", b"0x1", b"a"]
    only_numbers = flow_texts(np.array([NULL, 10**17, 0]), texts)
    assert bytes(only_numbers.data)[4:22] == b"1" + b"0" * 17
