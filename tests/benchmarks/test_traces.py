"""A repeated trace is a valid longer run: times, links and steps of the repetitions do not meet."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from itertools import chain, pairwise
from typing import Any

import pytest

from conftest import DATA
from traces import Repeatable, repeatable

COPIES = 3
Event = dict[str, Any]


@pytest.fixture(scope="module")
def source() -> str:
    return gzip.decompress((DATA / "seqpar-nccl1-bf16" / "rank-0-of-1.json.gz").read_bytes()).decode()


@pytest.fixture(scope="module")
def parts(source: str) -> Repeatable:
    return repeatable(source)


@pytest.fixture(scope="module")
def copies(parts: Repeatable) -> list[list[Event]]:
    """The events of each repetition, from the text of the whole trace."""
    text = parts.head + "".join(parts.copy(number) for number in range(COPIES)) + parts.tail
    events = json.loads(text)["traceEvents"]
    assert len(events) == COPIES * parts.events + parts.events_once
    return [events[number * parts.events : (number + 1) * parts.events] for number in range(COPIES)]


def test_the_first_repetition_is_the_source(source: str, parts: Repeatable) -> None:
    """Also what is written once: nothing is lost."""
    original = json.loads(source)
    text = parts.head + parts.copy(0) + parts.tail
    again = json.loads(text)
    key = json.dumps
    assert Counter(map(key, again.pop("traceEvents"))) == Counter(map(key, original.pop("traceEvents")))
    assert again == original


def test_a_repetition_begins_after_the_end_of_the_one_before(copies: list[list[Event]]) -> None:
    for before, after in pairwise(copies):
        end = max(event["ts"] + event.get("dur", 0) for event in before)
        assert min(event["ts"] for event in after) > end


def test_repetitions_have_the_same_durations_and_names(copies: list[list[Event]]) -> None:
    def kept(event: Event) -> tuple[object, ...]:
        return event["name"].partition("#")[0], event.get("dur"), event["pid"], event["tid"]

    assert [kept(event) for event in copies[0]] == [kept(event) for event in copies[2]]


@pytest.mark.parametrize("key", ["correlation", "External id", "Ev Idx"])
def test_links_stay_within_their_repetition(copies: list[list[Event]], key: str) -> None:
    numbers = [{event["args"][key] for event in copy if key in event.get("args", {})} for copy in copies]
    assert numbers[0]
    assert not numbers[0] & numbers[1]
    assert not numbers[1] & numbers[2]
    assert len(numbers[0]) == len(numbers[2])


def test_flows_to_kernels_have_the_correlation_of_their_launch(copies: list[list[Event]]) -> None:
    for copy in copies:
        flows = {event["id"] for event in copy if event.get("cat") == "ac2g" and event["ph"] == "s"}
        launches = {event["args"]["correlation"] for event in copy if event.get("cat") == "cuda_runtime"}
        assert flows
        assert flows <= launches | {
            event["args"]["correlation"] for event in copy if event.get("cat") == "cuda_driver"
        }


def test_steps_are_numbered_on(copies: list[list[Event]]) -> None:
    steps = [
        sorted(
            {
                int(event["name"].partition("#")[2])
                for event in copy
                if event["name"].startswith("ProfilerStep#")
            }
        )
        for copy in copies
    ]
    assert len(steps[0]) > 1
    assert list(chain(*steps)) == list(range(steps[0][0], steps[-1][-1] + 1))


def test_percent_signs_are_text() -> None:
    event = '{"ph": "X", "cat": "cpu_op", "name": "50 %d", "pid": 1, "tid": 1, "ts": 1.5, "dur": 2}'
    parts = repeatable(f'{{"traceEvents": [{event}]}}')
    assert json.loads(f"[{parts.copy(1)} 0]")[0]["name"] == "50 %d"


def test_a_file_without_events_is_refused() -> None:
    with pytest.raises(ValueError, match="no traceEvents"):
        repeatable("{}")
