"""A list of kernels for ncu to profile: chosen once, where the store is, and taken to a job as a small file.

ncu and the traces agree on a kernel's function name, grid and block. In the rest of the name (namespaces, template
arguments) demanglers differ, so kernels are matched by those three.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rankscope.atomic_files import write_json
from rankscope.capture.job_name import script_name
from rankscope.errors import UsageError
from rankscope.tools import NCU_PASSES

FORMAT = 1
LIST_NAME = "kernels.json"


class HotKernel(NamedTuple):
    """One kernel with one launch size, and what it cost in the run it was chosen from."""

    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    calls: int
    total_ns: int

    @property
    def key(self) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
        return function_name(self.name), self.grid, self.block


def function_name(name: str) -> str:
    """A kernel's name without return type, namespaces, template arguments and parameters, like ncu's base name.

    >>> function_name("void at::native::(anonymous namespace)::fill<4, Op<float> >(int, Op<float>)")
    'fill'
    """
    text = name.strip()
    for closing, opening in ((")", "("), (">", "<")):
        if text.endswith(closing):
            text = text[: _opening(text, opening, closing)].rstrip()
    return re.split(r"::|\s", text)[-1] or name.strip()


def _opening(text: str, opening: str, closing: str) -> int:
    """The index of the bracket that the last character closes."""
    depth = 0
    for index in range(len(text) - 1, -1, -1):
        depth += (text[index] == closing) - (text[index] == opening)
        if depth == 0:
            return index
    return len(text)


def kernel_filter(kernels: Sequence[HotKernel]) -> str:
    """The value of `ncu -k` that selects just these functions."""
    names = dict.fromkeys(function_name(kernel.name) for kernel in kernels)
    return f"regex:^({'|'.join(re.escape(name) for name in names)})$"


def replay_ns(kernels: Sequence[HotKernel], section_set: str, launches: int) -> int:
    """A lower bound of ncu's kernel time: passes x launches x duration, without saving and restoring memory."""
    passes = NCU_PASSES[section_set]
    return sum(passes * min(launches, one.calls) * one.total_ns // max(1, one.calls) for one in kernels)


def ncu_words(
    kernels: Sequence[HotKernel], *, section_set: str, launches: int, ranks: str, output: str
) -> list[str]:
    """The options of `rankscope profile` that profile these kernels, ``launches`` of each."""
    words = ["--tool", "ncu", "-k", kernel_filter(kernels), "-c", str(launches * len(kernels))]
    return [*words, "--set", section_set, "--ranks", ranks, "-o", output]


def default_folder(command: Sequence[str], in_front: bool) -> str:
    """A name for the reports' folder. The ranks behind a launcher could not agree on one."""
    if not in_front:
        raise UsageError(
            "-o DIR is needed behind a launcher",
            why="Every rank must find the same folder, and the list of kernels is written there too.",
            hint="Name it: rankscope ncu --kernels FILE -o DIR -- COMMAND",
        )
    return f"rankscope-ncu-{script_name(command)}-{time.strftime('%Y%m%d-%H%M%S')}"


def write_kernels(path: Path, kernels: Sequence[HotKernel], run: str) -> None:
    """Atomic: several ranks may write the same list at once."""
    listed = [kernel._asdict() for kernel in kernels]
    write_json(path, {"format": FORMAT, "run": run, "kernels": listed})


def read_kernels(path: Path) -> list[HotKernel]:
    """A list that `rankscope ncu RUN --kernels-out FILE` wrote."""
    try:
        value = json.loads(path.read_text())
        return [
            HotKernel(
                str(one["name"]),
                tuple(map(int, one["grid"])),
                tuple(map(int, one["block"])),
                int(one["calls"]),
                int(one["total_ns"]),
            )
            for one in value["kernels"]
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} is not a list of kernels",
            why=f"{type(error).__name__}: {error}.",
            hint="Make one where rankscope is installed in full: rankscope ncu RUN --top 3 --kernels-out FILE",
        ) from error
