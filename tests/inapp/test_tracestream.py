"""A trace is compressed as it comes, and is valid JSON wherever it ends."""

import gzip
import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import examples
from rankscope.inapp.added_events import AddedEvents, header_text
from rankscope.inapp.trace_stream import TraceStream

EVENT = '  {\n    "ph": "X",\n    "name": "%s",\n    "args": {\n      "a": [1, 2]\n    }\n  }'
HEAD = '{\n    "schemaVersion": 1,\n    "baseTimeNanoseconds": 7,\n    "traceEvents": [\n'


def kineto(names: list[str]) -> bytes:
    """The layout that torch writes."""
    return (HEAD + ",\n".join(EVENT % name for name in names) + '\n  ],"traceName": "x" }').encode()


def through(
    data: bytes, chunk: int, max_size: int | None = None, cut: int | None = None
) -> tuple[bytes, bool]:
    out: list[bytes] = []
    stream = TraceStream(out.append, max_size)
    for start in range(0, len(data[:cut]), chunk):
        stream.feed(data[:cut][start : start + chunk])
        if stream.full:
            stream.close_early()
            return b"".join(out), False
    whole = stream.finish()
    assert stream.bytes == len(b"".join(out))
    return b"".join(out), whole


names = st.lists(st.text("abc}{[],: ", max_size=8), min_size=1, max_size=20)


@given(names, st.integers(1, 300))
def test_a_whole_trace_comes_out_as_it_went_in(events: list[str], chunk: int) -> None:
    data = kineto(events)
    packed, whole = through(data, chunk)
    assert whole
    assert gzip.decompress(packed) == data


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(names, st.integers(1, 300), st.data())
def test_cut_anywhere_it_is_json_with_whole_events(
    events: list[str], chunk: int, draw: st.DataObject
) -> None:
    data = kineto(events)
    cut = draw.draw(st.integers(0, len(data) - 1))
    packed, _ = through(data, chunk, cut=cut)
    parsed = json.loads(gzip.decompress(packed))
    assert [event["name"] for event in parsed["traceEvents"]] == events[: len(parsed["traceEvents"])]


@given(st.integers(1, 300))
def test_our_own_frames_are_left_out(chunk: int) -> None:
    frame = EVENT.replace('"ph": "X",', '"ph": "X",\n    "cat": "python_function",')
    ours = ["rankscope/inapp/engine.py(1): step", "/opt/rankscope/capture/schedule.py(55): is_over"]
    ours += ["rankscope/host.py(60): resident_bytes", "/opt/rankscope/text/visible_text.py(9): visible"]
    theirs = [
        "rankscope/train.py(1): step",
        "torch/nn/modules/module.py(9): inner",
        "mypackage.py(1): rankscope/inapp/x",
    ]
    mixed = [
        EVENT % "first",
        *(frame % name for name in (ours[0], theirs[0], *ours, *theirs[1:])),
        EVENT % ours[0],
    ]
    packed, whole = through((HEAD + ",\n".join(mixed) + '\n  ],"traceName": "x" }').encode(), chunk)
    assert whole
    names = [event["name"] for event in json.loads(gzip.decompress(packed))["traceEvents"]]
    assert names == ["first", *theirs, ours[0]]


def test_at_max_size_it_ends_after_a_whole_event_near_the_limit() -> None:
    import random

    noise = random.Random(0)
    data = kineto([f"{noise.getrandbits(256):x}" for _ in range(5000)])
    packed, whole = through(data, 4096, max_size=50_000)
    assert not whole
    assert 50_000 <= len(packed) < 60_000
    parsed = json.loads(gzip.decompress(packed))
    assert parsed["baseTimeNanoseconds"] == 7
    assert 100 < len(parsed["traceEvents"]) < 5000


@given(names.filter(lambda drawn: len(drawn) > 1), st.integers(1, 300), st.booleans(), st.data())
def test_added_events_stand_first_also_in_a_trace_that_is_cut(
    events: list[str], chunk: int, compress: bool, draw: st.DataObject
) -> None:
    added = AddedEvents()
    added.add('pause "1"', 1_000_000_007, 2_500, {"objects": 3})
    added.add("pause 2", 2_000_001_007, 70, {})
    data = kineto(events)
    second = data.index(b"\n  },\n  {") + len(b"\n  },\n  {")
    cut = draw.draw(st.integers(second, len(data)))
    out: list[bytes] = []
    stream = TraceStream(out.append, compress=compress, added=added)
    for start in range(0, cut, chunk):
        stream.feed(data[: min(cut, start + chunk)][start:])
    assert stream.finish() == (cut == len(data))
    written = b"".join(out)
    first, other, *rest = json.loads(gzip.decompress(written) if compress else written)["traceEvents"]
    assert [event["name"] for event in rest] == events[: len(rest)]
    assert (first["name"], first["ts"], first["dur"]) == ('pause "1"', 1_000_000.0, 2.5)
    assert (first["cat"], first["pid"], first["args"]) == ("user_annotation", os.getpid(), {"objects": 3})
    assert (other["name"], other["ts"], other["dur"], other["args"]) == ("pause 2", 2_000_001.0, 0.07, {})


def test_an_added_event_that_json_cannot_hold_leaves_the_trace_as_it_is() -> None:
    added = AddedEvents()
    added.add("pause", 1, 2, {"what": object()})
    out: list[bytes] = []
    stream = TraceStream(out.append, compress=False, added=added)
    stream.feed(kineto(["a", "b"]))
    assert stream.finish()
    assert b"".join(out) == kineto(["a", "b"])


def test_a_large_field_leaves_the_rank_in_the_header() -> None:
    text = header_text({"rank": 3}, {"small": [1], "large": [7] * 50_000})
    assert json.loads(text) == {"rank": 3, "small": [1]}
