"""@trace keeps what it decorates, and its ranges are there when somebody looks."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

import pytest

from rankscope import trace
from rankscope.errors import UsageError
from rankscope.inapp import annotate
from rankscope.inapp.nvtx_ranges import Nvtx

torch: Any = pytest.importorskip("torch")


def recorded(action: Callable[[], object]) -> list[str]:
    """The names that torch's profiler sees while the action runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:
        action()
    return [event.name for event in prof.events() if not event.name.startswith(("aten::", "PyTorch"))]


@trace
def add(left: int, right: int = 2) -> int:
    """Adds."""
    return left + right


class Model:
    @trace
    def forward(self, x: int) -> int:
        return x + 1

    @classmethod
    @trace
    def build(cls) -> str:
        return cls.__name__

    @trace
    @classmethod
    def build_other_way(cls) -> str:
        return cls.__name__

    @trace("own name")
    @staticmethod
    def helper(x: int) -> int:
        return x


def test_signatures_names_and_docs_stay() -> None:
    assert str(inspect.signature(add)) == "(left: 'int', right: 'int' = 2) -> 'int'"
    assert (add.__name__, add.__doc__) == ("add", "Adds.")
    assert (add(1), add(1, right=5)) == (3, 6)
    assert (Model().forward(1), Model.build(), Model.build_other_way(), Model.helper(4)) == (
        2,
        "Model",
        "Model",
        4,
    )


@pytest.mark.slow
def test_ranges_have_the_qualified_name_or_the_one_given() -> None:
    names = recorded(
        lambda: (add(1), Model().forward(1), Model.build(), Model.build_other_way(), Model.helper(1))
    )
    assert names == ["add", "Model.forward", "Model.build", "Model.build_other_way", "own name"]


def test_lines_under_a_name_even_nested_and_when_they_raise() -> None:
    region = trace("outer")

    def action() -> None:
        with region, trace("inner"), region:
            pass
        with pytest.raises(KeyError), trace("failing"):
            raise KeyError

    assert sorted(recorded(action)) == ["failing", "inner", "outer", "outer"]


def test_generators_stay_generators() -> None:
    @trace("numbers")
    def numbers(count: int) -> Generator[int, int | None, str]:
        got: int | None = 0
        for number in range(count):
            try:
                got = yield number + (got or 0)
            except ValueError:
                yield -1
        return "the end"

    assert inspect.isgeneratorfunction(numbers)
    assert list(numbers(3)) == [0, 1, 2]
    generator: Any = numbers(3)
    assert next(generator) == 0
    assert generator.send(10) == 11
    assert generator.throw(ValueError()) == -1
    generator.close()
    assert list(generator) == []
    assert recorded(lambda: list(numbers(2))) == ["numbers"] * 3, "one for each turn: two values and the end"

    def outer() -> Iterator[int]:
        result = yield from numbers(1)
        assert result == "the end"

    assert list(outer()) == [0]


def test_coroutines_stay_coroutines_and_their_waiting_is_nobodys() -> None:
    @trace("fetch")
    async def fetch(value: int) -> int:
        await asyncio.sleep(0)
        return value

    async def several() -> list[int]:
        return list(await asyncio.gather(fetch(1), fetch(2)))

    assert inspect.iscoroutinefunction(fetch)
    assert asyncio.run(several()) == [1, 2]
    assert recorded(lambda: asyncio.run(several())) == ["fetch"] * 4, "two turns each, never interleaved"


def test_async_generators_stay_async_generators() -> None:
    closed = []

    @trace("stream")
    async def stream() -> AsyncIterator[int]:
        try:
            for number in range(3):
                await asyncio.sleep(0)
                try:
                    yield number
                except ValueError:
                    yield -1
        finally:
            closed.append(True)

    async def use() -> list[int]:
        assert [number async for number in stream()] == [0, 1, 2]
        generator: Any = stream()
        first = await generator.__anext__()
        thrown = await generator.athrow(ValueError())
        await generator.aclose()
        return [first, thrown]

    assert inspect.isasyncgenfunction(stream)
    assert asyncio.run(use()) == [0, -1]
    assert closed == [True, True]
    assert "stream" in recorded(lambda: asyncio.run(use()))


def test_what_cannot_be_marked_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot mark a int"):
        trace(3)  # type: ignore[call-overload]
    assert trace()(add)(1) == 3


def test_nvtx_under_nsys(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(annotate, "_under_nsys", True)
    ranges = Nvtx(calls.append, lambda: calls.append("pop"), calls.append, calls.append)
    monkeypatch.setattr(annotate, "find_nvtx", lambda: ranges)
    monkeypatch.setattr(annotate, "_recording", annotate._before_torch)
    add(1)
    with trace("lines"):
        pass
    assert calls == ["add", "pop", "lines", "pop"]
