"""Which optimizer call ends a step."""

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.inapp.step_counter import IDLE_AFTER, StepCounter


class Adam:
    pass


class Muon:
    pass


def test_one_optimizer_every_call() -> None:
    adam = Adam()
    counter = StepCounter(None, lambda: [adam])
    assert [counter.ends_step(adam) for _ in range(4)] == [True] * 4


def test_a_gan_counts_its_generator() -> None:
    discriminator, generator = Adam(), Adam()
    counter = StepCounter(None, lambda: [discriminator, generator])
    for _ in range(3):
        assert [counter.ends_step(discriminator) for _ in range(5)] == [False] * 5
        assert counter.ends_step(generator)


def test_two_optimizers_in_turn_end_a_step_with_the_later_one() -> None:
    adam, muon = Adam(), Muon()
    counter = StepCounter(None, lambda: [muon, adam])
    assert [counter.ends_step(one) for one in (adam, muon) * 3] == [False, True] * 3


def test_an_optimizer_nobody_steps_is_left_out_after_a_while() -> None:
    adam, unused = Adam(), Muon()
    counter = StepCounter(None, lambda: [adam, unused])
    ended = [counter.ends_step(adam) for _ in range(IDLE_AFTER + 5)]
    assert ended == [False] * (IDLE_AFTER + 2) + [True] * 3


def test_an_optimizer_that_comes_later_joins() -> None:
    adam, muon = Adam(), Muon()
    counter = StepCounter(None, lambda: [adam])
    assert [counter.ends_step(adam) for _ in range(3)] == [True] * 3
    assert not counter.ends_step(muon)
    assert [counter.ends_step(one) for one in (adam, muon, adam, muon)] == [True, False, True, False]


@pytest.mark.slow
def test_an_optimizer_that_is_gone_is_forgotten() -> None:
    adam, others = Adam(), [Muon()]
    counter = StepCounter(None, lambda: [adam, *others])
    counter.ends_step(adam)
    others.clear()
    gc.collect()
    assert [counter.ends_step(adam) for _ in range(3)] == [True] * 3


def test_step_on_counts_one_class_only() -> None:
    adam, muon = Adam(), Muon()
    counter = StepCounter("Muon", lambda: [adam, muon])
    assert [counter.ends_step(one) for one in (adam, adam, muon, adam, muon)] == [
        False,
        False,
        True,
        False,
        True,
    ]
    assert counter.calls == {"Adam": 3, "Muon": 2}


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 10))
def test_as_many_steps_as_the_rarest_takes(first: int, second: int, rounds: int) -> None:
    one, two = Adam(), Muon()
    counter = StepCounter(None, lambda: [one, two])
    calls = ([one] * first + [two] * second) * rounds
    assert sum(counter.ends_step(call) for call in calls) == rounds * min(first, second)


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ("ab" * 6, None),
        ("aaab" * 6, None),
        ("aaabaa" * 4, None),  # begun and cut in the middle of a step
        ("aabab" * 6, "Adam 1 to 2 times"),
    ],
)
def test_optimizers_that_do_not_step_in_turn_are_reported(calls: str, text: str | None) -> None:
    optimizers = {"a": Adam(), "b": Muon()}
    counter = StepCounter(None, lambda: optimizers.values())
    for name in calls:
        counter.ends_step(optimizers[name])
    said = counter.uneven()
    assert said is None if text is None else said is not None and text in said
