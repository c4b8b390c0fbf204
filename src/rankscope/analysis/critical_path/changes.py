"""The changes that a user of whatif can ask for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar, Literal

from rankscope.errors import UsageError
from rankscope.ranges import numbers_in, parse_ranges
from rankscope.records import dataclass


@dataclass(frozen=True)
class Changes:
    """The changes that a user asks for, as they are written."""

    OPTIONS: ClassVar = """\
--hide-comm  collectives take no time once all ranks have arrived
--bandwidth 2x  transfers are this many times as fast; latency stays
--rank R=median ...  rank R (or R-S) computes, copies and launches as fast as the median rank (may be repeated)
--kernel NAME=2x ...  kernels with NAME in their name are this many times as fast (may be repeated)
--balance {ranks,stages,all} ...  work is spread evenly: ranks: over the ranks of a stage;
    stages: also over the stages; all: also over micro-batches and steps, with transfers at their median (may be
    repeated)
--no-gaps  the host and its data are always ready
--data-ready  no step waits for its batch
--no-sync  synchronising calls do not wait
"""
    hide_comm: bool = False
    bandwidth: str | None = None
    rank: Sequence[str] = ()
    kernel: Sequence[str] = ()
    no_gaps: bool = False
    data_ready: bool = False
    no_sync: bool = False
    balance: Sequence[Literal["ranks", "stages", "all"]] = ()


def parse_ranks_at_median(text: str) -> list[int]:
    """The ranks of 'R=median' or 'R-S=median'; 'R' is the same."""
    ranks, _, change = text.partition("=")
    try:
        numbers = sorted(numbers_in(parse_ranges(ranks)))
    except ValueError:
        numbers = []
    if change not in ("", "median") or not numbers:
        raise UsageError(
            f"--rank {text} is not R=median",
            why="The only change of a rank is to set it to the median of all ranks.",
            hint="Write it like --rank 2=median",
        )
    return numbers


def parse_kernel(text: str) -> tuple[str, float]:
    """The name and the factor of 'NAME=2x'."""
    name, equals, factor = text.rpartition("=")
    if not equals or not name:
        raise UsageError(
            f"--kernel {text} is not NAME=FACTOR",
            why="NAME is a part of a kernel's name.",
            hint="Write it like --kernel gelu=2x",
        )
    return name, parse_factor("--kernel", factor)


def parse_factor(option: str, text: str) -> float:
    """'2x' or '1.5'."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)x?", text.strip().lower())
    value = float(match[1]) if match else 0.0
    if value <= 0:
        raise UsageError(
            f"{option}: '{text}' is not a factor",
            why="A factor is a number above 0.",
            hint="Write it like 2x or 1.5x.",
        )
    return value
