"""The dataclasses of rankscope.records behave as those of the standard library."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from rankscope import records


def _classes(make: Any) -> list[Any]:
    class Point:
        """Two numbers."""

        x: int
        y: int = 2
        tags: list[str] = dataclasses.field(default_factory=list, hash=False)
        label: str = dataclasses.field(default="", compare=False, repr=False)

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("x")

    class Named:
        """Keywords only."""

        name: str
        size: int = 1

    class Plain:
        """Can be changed."""

        name: str
        size: int = 1

    return [make(frozen=True)(Point), make(frozen=True, kw_only=True)(Named), make(Plain)]


OURS, THEIRS = _classes(records.dataclass), _classes(dataclasses.dataclass)


@pytest.mark.parametrize(
    ("which", "values", "named"),
    [
        (0, (1,), {}),
        (0, (1, 3), {"label": "a"}),
        (0, (1, 3, ["t"], "b"), {}),
        (0, (), {"x": 5}),
        (0, (), {}),
        (0, (1,), {"x": 2}),
        (0, (1,), {"z": 2}),
        (0, (1, 2, [], "", 5), {}),
        (0, (-1,), {}),
        (1, (), {"name": "a"}),
        (1, ("a",), {}),
        (2, ("a", 4), {}),
        (2, ("a",), {"size": 4}),
    ],
)
def test_the_same_instances(which: int, values: tuple[Any, ...], named: dict[str, Any]) -> None:
    def made(cls: Any) -> object:
        try:
            one = cls(*values, **named)
        except (TypeError, ValueError) as error:
            return type(error)
        try:
            hashed: object = hash(one)
        except TypeError:
            hashed = None
        again = dataclasses.replace(one)
        return repr(one), dataclasses.asdict(one), hashed, one == again, one == 1, again is one

    assert made(OURS[which]) == made(THEIRS[which])


def test_frozen_and_not() -> None:
    point, plain = OURS[0](1), OURS[2]("a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x
    plain.size = 7
    assert plain == OURS[2]("a", 7)
    assert OURS[0](1, label="a") == OURS[0](1, label="b") != OURS[0](2)
    assert hash(OURS[0](1, tags=["a"])) == hash(OURS[0](1))
    assert dataclasses.is_dataclass(OURS[0])


@records.dataclass(frozen=True)
class Kept:
    """At module level, so that it can be pickled."""

    name: str


def test_pickled() -> None:
    assert pickle.loads(pickle.dumps(Kept("a"))) == Kept("a")
