"""Decisions made from bytes: the fuzzer changes the bytes, so it learns which decisions reach new code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

# What no profiler writes where a number or a name belongs, and what it does.
_VALUES: tuple[object, ...] = (
    0, 1, -1, 7, 100, 2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, -(2**63), 0.5, -0.5, 1e18, 1e-9, 1e308,
    "", "0", "1", "-1", "nan", "null", "true", "[0, 1]", "1e400", "a" * 300, "\x1b[31m", "\u202e", "é", "\ud800",
    "=1+1", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "nccl:all_reduce",
    "aten::mm", "ProfilerStep#3", "gloo:all_reduce", "[[2, 3], [3, 4]]", "Memcpy HtoD (Pinned -> Device)",
    None, True, False,
)  # fmt: skip


class Codes:
    """Reads bytes from the front; after the last one, everything is zero."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def ended(self) -> bool:
        return self._at >= len(self._data)

    def number(self, below: int) -> int:
        self._at += 1
        return self._data[self._at - 1] % below if self._at <= len(self._data) else 0

    def signed(self) -> int:
        return (self.number(256) - 64) * (10**12 if self.number(8) == 7 else 1)

    def choice(self, among: Sequence[T]) -> T:
        return among[self.number(len(among))]

    def value(self) -> object:
        return self.choice(_VALUES)

    def text(self) -> str:
        """Up to the next zero byte."""
        end = self._data.find(b"\0", self._at)
        end = len(self._data) if end < 0 else end
        text = self._data[self._at : end].decode("utf-8", "replace")
        self._at = end + 1
        return text

    def rest(self) -> str:
        text = self._data[self._at :].decode("utf-8", "replace")
        self._at = len(self._data)
        return text
