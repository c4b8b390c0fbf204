"""Rank selectors: what they mean, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.capture.rank import Identity
from rankscope.capture.selector import parse_selector
from rankscope.errors import CaptureError, UsageError


def identity(rank: int, per_node: int = 4, world: int = 16) -> Identity:
    return Identity(rank, rank % per_node, world, per_node, rank // per_node, "test")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0,8-15", [0, *range(8, 16)]),
        ("local:0", [0, 4, 8, 12]),
        ("local:1-2", [1, 2, 5, 6, 9, 10, 13, 14]),
        ("node:0-1", list(range(8))),
        ("nodes:3", [12, 13, 14, 15]),
        ("local:0@nodes:0-1", [0, 4]),
        ("local:0@ranks:0-7", [0, 4]),
        ("0-15@node:1", [4, 5, 6, 7]),
        ("all", list(range(16))),
    ],
)
def test_selects(text: str, expected: list[int]) -> None:
    selector = parse_selector(text)
    assert [rank for rank in range(16) if selector.selects(identity(rank))] == expected


@pytest.mark.parametrize(
    "text",
    ["", "x", "3-1", "local:", "local", "node:a", "gpu:0", "0,,1", "-1", "local:0@1", "node:0@nodes:1", "0-"],
)
def test_refuses_in_three_parts(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_selector(text)
    assert caught.value.why
    assert "local:0@nodes:0-1" in caught.value.hint


@pytest.mark.slow
@given(st.sets(st.integers(0, 200), min_size=1), st.integers(0, 200))
def test_a_list_of_ranks_selects_exactly_those(wanted: set[int], rank: int) -> None:
    selector = parse_selector(",".join(map(str, sorted(wanted))))
    assert selector.selects(identity(rank, world=201)) == (rank in wanted)


@given(
    st.integers(1, 8),
    st.integers(1, 6),
    st.sampled_from(["{a}-{b}", "local:{a}-{b}", "node:{a}-{b}", "local:0@nodes:{a}-{b}"]),
    st.integers(0, 12),
    st.integers(0, 3),
)
def test_matches_none_is_said_exactly_when_nobody_matches(
    per_node: int, nodes: int, form: str, low: int, more: int
) -> None:
    selector = parse_selector(form.format(a=low, b=low + more))
    ranks = [identity(rank, per_node, per_node * nodes) for rank in range(per_node * nodes)]
    assert selector.matches_none(ranks[0]) == (not any(map(selector.selects, ranks)))


def test_a_missing_fact_is_an_error_only_where_it_is_needed() -> None:
    aprun = Identity(5, None, None, None, None, "aprun")
    assert parse_selector("5").selects(aprun)
    assert parse_selector("all").selects(aprun)
    assert not parse_selector("4@nodes:0").selects(aprun)
    with pytest.raises(CaptureError, match="needs the local rank, and aprun does not set it"):
        parse_selector("local:0").selects(aprun)
    with pytest.raises(CaptureError, match="needs the node"):
        parse_selector("5@nodes:0").selects(aprun)


@pytest.mark.parametrize(
    ("world", "local_rank", "rank", "selected"),
    [
        (4, 3, 3, True),
        (16, 7, 15, True),
        (17, 0, 8, True),
        (64, 3, 3, False),
        (None, 1, 1, False),
        (None, None, 0, True),
    ],
)
def test_auto_is_every_rank_of_a_small_job(
    world: int | None, local_rank: int | None, rank: int, selected: bool
) -> None:
    identity = Identity(rank, local_rank, world, None, None, "test")
    assert parse_selector("auto").selects(identity) is selected
    assert not parse_selector("auto").matches_none(identity)


@pytest.mark.parametrize(
    ("text", "world", "local", "count", "first"),
    [
        ("all", 64, 8, 64, 0),
        ("auto", 16, 4, 16, 0),
        ("auto", 64, 8, 8, 0),
        ("local:0@nodes:0-1", 64, 8, 2, 0),
        ("local:3@nodes:1", 64, 8, 1, 11),
        ("8-15,2", 12, 4, 5, 2),
    ],
)
def test_which_ranks_match(text: str, world: int, local: int, count: int, first: int) -> None:
    """The first of them speaks for the job."""
    leads = [
        rank
        for rank in range(world)
        if parse_selector(text).leads(Identity(rank, rank % local, world, local, 0, ""))
    ]
    assert leads == [first]
    assert len(parse_selector(text).matching(Identity(3, 3, world, local, 0, "test")) or ()) == count
