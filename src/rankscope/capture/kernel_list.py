"""A list of kernels for ncu to profile: chosen once, where the store is, and taken to a job as a small file.

Demanglers spell a kernel's name in different ways (`float const*` and `const float *`, `4` and `(int)4`), so names are
compared in a canonical form; `ncu_selection` makes ncu's filter from the list.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from rankscope.capture.job_name import script_name
from rankscope.errors import UsageError
from rankscope.files import write_json
from rankscope.tools import Launch

FORMAT = 2
LIST_NAME = "kernels.json"


class HotKernel(NamedTuple):
    """One kernel with one launch size, and what it cost in the run it was chosen from."""

    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    calls: int
    total_ns: int

    def matches(self, launch: Launch) -> bool:
        """Whether this launch is one of this kernel: the same name, grid and block."""
        same_size = (self.grid, self.block) == (launch.grid, launch.block)
        return same_size and canonical_name(self.name) == canonical_name(launch.name)

    @property
    def size(self) -> str:
        return f"grid {size_text(self.grid)}, block {size_text(self.block)}"


class KernelList(NamedTuple):
    """The chosen kernels, and in which order their functions were launched in the run."""

    kernels: tuple[HotKernel, ...]
    step: int | None = None
    """The recorded step that ``order`` is of; None for a run without steps."""
    order: tuple[Launch, ...] = ()
    """Every launch of the functions of these kernels in that step, in order of launch; empty when it is not known."""

    def top(self, count: int) -> KernelList:
        return self._replace(kernels=self.kernels[:count])

    def is_launch_of(self, kernel: HotKernel, launch: Launch) -> bool:
        """Whether a launch is one of this kernel: the same name, grid and block.

        Of the name the function is enough, where the run had no other kernel of that function with this size: a
        demangler may spell template arguments in a way that is not known here.
        """
        if kernel.matches(launch):
            return True
        if _function_and_size(launch) != _function_and_size(kernel):
            return False
        alike = [
            other for other in set(self.order) if _function_and_size(other) == _function_and_size(kernel)
        ]
        return len({canonical_name(other.name) for other in alike}) == 1

    def missed(self, met: Sequence[Launch]) -> list[HotKernel]:
        """The kernels of which there is no launch."""
        return [
            kernel for kernel in self.kernels if not any(self.is_launch_of(kernel, launch) for launch in met)
        ]


def _function_and_size(launch: HotKernel | Launch) -> tuple[object, ...]:
    return function_name(launch.name), launch.grid, launch.block


def size_text(dimensions: Sequence[int]) -> str:
    return "x".join(map(str, dimensions))


@lru_cache(maxsize=10_000)
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


_LAMBDA = re.compile(r"[{\[]lambda\([^{}\[\]]*?\)\s*(?:#|\(instance )(\d+)\)?[}\]]")
_PARENTHESES = re.compile(r"\([^()]*\)")


def template_name(name: str) -> str:
    """A kernel's name with its template arguments, without what demanglers spell in different ways.

    That is parameter lists and casts, the return type, `const`, unnamed namespaces, and how lambdas and literals are
    written.
    """
    # ncu 2025 drops part of the brackets where it shortens names.
    text = name.replace("(anonymous namespace)", "").replace("<unnamed>", "").replace("unnamed>::", "")
    text = _LAMBDA.sub(r"lambda#\1", text)
    while (fewer := _PARENTHESES.sub("", text)) != text:
        text = fewer
    text = re.sub(r"\b(?:const|void)\b", "", text)
    text = re.sub(r"\bfalse\b", "0", re.sub(r"\btrue\b", "1", text))
    return re.sub(r"\b(\d+)(?:u|l|ul|ull)\b", r"\1", text)


def short_name(name: str) -> str:
    """For a table: without namespaces, so that what tells two kernels of a function apart comes early."""
    return re.sub(r"\b(?:\w*::)+(?!lambda|operator)", "", template_name(name)).strip()


@lru_cache(maxsize=10_000)
def canonical_name(name: str) -> str:
    """The same text for a kernel's name by the demanglers of torch, nsys and ncu; ncu 2025 leaves out namespaces.

    >>> canonical_name("void fill<4, Op<float> >(int, Op<float>)") == canonical_name("void fill<(int)4, Op<float>>(T2)")
    True
    """
    return "".join(short_name(name).split())


def default_folder(command: Sequence[str], in_front: bool) -> str:
    """A name for the reports' folder. The ranks behind a launcher could not agree on one."""
    if not in_front:
        raise UsageError(
            "-o DIR is needed behind a launcher",
            why="Every rank must find the same folder, and the list of kernels is written there too.",
            hint="Name it: rankscope profile --tool ncu --kernels FILE -o DIR -- COMMAND",
        )
    return f"rankscope-ncu-{script_name(command)}-{time.strftime('%Y%m%d-%H%M%S')}"


def write_kernels(path: Path, listed: KernelList, run: str) -> None:
    """Atomic: several ranks may write the same list at once. Each different launch is written once."""
    different = list(dict.fromkeys(listed.order))
    index_of = {launch: index for index, launch in enumerate(different)}
    content = {
        "format": FORMAT,
        "run": run,
        "kernels": [kernel._asdict() for kernel in listed.kernels],
        "step": listed.step,
        "launches": [launch._asdict() for launch in different],
        "order": [index_of[launch] for launch in listed.order],
    }
    write_json(path, content)


def read_kernels(path: Path) -> KernelList:
    """A list that --kernels-out wrote; the order of launches is missing in older ones."""
    try:
        value = json.loads(path.read_text())
        kernels = [
            HotKernel(*_launch(entry), int(entry["calls"]), int(entry["total_ns"]))
            for entry in value["kernels"]
        ]
        different = [_launch(entry) for entry in value.get("launches", [])]
        order = [different[int(index)] for index in value.get("order", [])]
        step = value.get("step")
        return KernelList(tuple(kernels), None if step is None else int(step), tuple(order))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} is not a list of kernels",
            why=f"{type(error).__name__}: {error}.",
            hint="Make one where rankscope is installed in full: profile --tool ncu --from RUN --kernels-out FILE",
        ) from error


def _launch(entry: dict[str, Any]) -> Launch:
    return Launch(str(entry["name"]), tuple(map(int, entry["grid"])), tuple(map(int, entry["block"])))
