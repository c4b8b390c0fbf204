"""Which launches ncu profiles, so that each kernel of a list is among them and few others are.

ncu filters by name, and skips and counts the launches that match; it cannot filter by grid or block. So the order of
launches in the earlier run decides what is skipped and counted, and what ncu measured is compared with what was asked:
for the kernels it did not meet, the command runs again with a wider selection (docs/adr/0123-nsys-and-ncu.md).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from rankscope.capture.kernel_list import HotKernel, KernelList, canonical_name, function_name, template_name
from rankscope.tools import NCU_PASSES, Launch
from rankscope.units import format_ns

BY_SIZE = "per-launch-config"
"""ncu's filter mode that counts the launches of each grid and block on its own."""
# Each launch takes about half a second besides its passes.
_MOST_LAUNCHES = 200
_WANTED = (5, 3, 1)
"""Launches of each kernel: the first number for which the selection has at most _MOST_LAUNCHES."""
# Words of template arguments that say nothing about the kernel, or that demanglers spell in different ways.
_COMMON_WORDS = frozenset(
    ("std", "at", "int", "unsigned", "long", "char", "bool", "lambda", "operator", "type", "native")
)


class Selection(NamedTuple):
    """One run of the command under ncu."""

    kernels: tuple[HotKernel, ...]
    wanted: int
    """Launches of each kernel."""
    step: int | None = None
    """Only launches of this step; None is the whole run."""
    whole_names: bool = False
    """Names are compared with their template arguments, else only the function's name."""
    by_size: bool = False
    """Skip and count for each grid and block on its own."""
    skip: int = 0
    take: int = 0

    @property
    def pattern(self) -> str:
        """The value of `ncu -k`."""
        pattern_of = (
            _template_pattern if self.whole_names else lambda kernel: re.escape(function_name(kernel.name))
        )
        return f"regex:^(?:{'|'.join(dict.fromkeys(map(pattern_of, self.kernels)))})$"

    def matching(self, order: Sequence[Launch]) -> list[Launch]:
        """The launches whose names match."""
        pattern = re.compile(self.pattern.removeprefix("regex:"))
        names = {
            launch.name: launch.name if self.whole_names else function_name(launch.name) for launch in order
        }
        matches = {name: bool(pattern.search(compared)) for name, compared in names.items()}
        return [launch for launch in order if matches[launch.name]]

    def profiled(self, order: Sequence[Launch]) -> list[Launch]:
        """The launches that ncu profiles when the command launches these."""
        met: Counter[object] = Counter()
        chosen = []
        for launch in self.matching(order):
            size = launch[1:] if self.by_size else None
            met[size] += 1
            if self.skip < met[size] <= self.skip + self.take:
                chosen.append(launch)
        return chosen

    def options(self) -> dict[str, Any]:
        """Of `rankscope profile`, by their names there; None is not given."""
        return {
            "kernel_name": [self.pattern],
            "launch_count": self.take,
            "kernel_name_base": "demangled" if self.whole_names else None,
            "filter_mode": BY_SIZE if self.by_size else None,
            "launch_skip": self.skip or None,
            "steps": f"{self.step}:{self.step}" if self.step is not None else None,
        }


def select(listed: KernelList, wanted: int | None, *, by_size: bool) -> Selection:
    """The cheapest selection with ``wanted`` launches of each kernel; None is five, or fewer where that is too many.

    ``by_size``: this ncu can count by size.
    """
    for number in _WANTED if wanted is None else (wanted,):
        selection = _cheapest(listed, number, by_size=by_size)
        if expected_launches(selection, listed.order) <= _MOST_LAUNCHES:
            break
    return selection


def _cheapest(listed: KernelList, wanted: int, *, by_size: bool) -> Selection:
    if not listed.order:
        count = wanted if by_size else wanted * len(listed.kernels)
        return Selection(listed.kernels, wanted, by_size=by_size, take=count)
    every = Selection(listed.kernels, wanted, listed.step, whole_names=True)
    order = every.matching(listed.order)
    choices = [_counted_by_size(every, order)] if by_size else []
    if listed.step is not None:
        choices.append(_shortest_stretch(every, order))
    elif not choices:  # what was launched before the recording is not known, so nothing is skipped
        stretch = _shortest_stretch(every, order)
        choices.append(stretch._replace(skip=0, take=stretch.skip + stretch.take))
    return min(choices, key=lambda choice: len(choice.profiled(order)))


def select_again(
    listed: KernelList,
    before: Selection,
    missed: Sequence[HotKernel],
    met: Sequence[Launch],
    *,
    by_size: bool,
) -> Selection:
    """A wider selection, for the kernels that ``before`` missed; ``met`` are the launches it profiled.

    First all of the step, then, or when nothing at all was met there, the whole run by the function's name only.
    """
    rest = Selection(tuple(missed), before.wanted, before.step, whole_names=True)
    narrow = before.step is not None and not before.by_size and bool(met)
    if not narrow:
        rest = rest._replace(step=None, whole_names=False)
    if not by_size:
        return rest._replace(take=_MOST_LAUNCHES)
    order = rest.matching(listed.order)
    if not order:
        return rest._replace(by_size=True, take=before.wanted)
    wide = _counted_by_size(rest, order)
    # In a whole run, launches from before the recorded step are counted first.
    count = wide.take if narrow else 2 * wide.take
    sizes = Counter(launch[1:] for launch in order)
    while count > 1 and sum(min(count, size) for size in sizes.values()) > _MOST_LAUNCHES:
        count -= 1
    return wide._replace(take=count)


def expected_launches(selection: Selection, order: Sequence[Launch]) -> int:
    """How many launches ncu will profile, if the command launches what the earlier run did."""
    if not order:
        return selection.wanted * len(selection.kernels)
    return len(selection.profiled(order))


def plan_text(selection: Selection, listed: KernelList, section_set: str) -> str:
    """What ncu will do, and how long that takes at least."""
    launches = expected_launches(selection, listed.order)
    where = "the whole run" if selection.step is None else f"step {selection.step}"
    # A lower bound: passes x launches x duration, without saving and restoring memory.
    mean_ns = [kernel.total_ns / max(1, kernel.calls) for kernel in selection.kernels]
    least = format_ns(round(NCU_PASSES[section_set] * launches * sum(mean_ns) / len(mean_ns)), 2)
    return (
        f"ncu will profile about {launches} launches of {where}: at least {least} of kernel time, and about half a "
        "second more for each launch"
    )


def why_missed(kernel: HotKernel, met: Sequence[Launch]) -> str:
    """Why none of the profiled launches is one of this kernel."""
    function = function_name(kernel.name)
    namesakes = [launch for launch in met if function_name(launch.name) == function]
    same = [launch for launch in namesakes if canonical_name(launch.name) == canonical_name(kernel.name)]
    if not namesakes:
        return f"ncu met no launch of {function}"
    if not same:
        return f"the {len(namesakes)} profiled launches of {function} have other template arguments"
    return f"its {len(same)} profiled launches have other sizes than {kernel.size}"


def _needed(kernels: Sequence[HotKernel], order: Sequence[Launch]) -> list[list[int]]:
    """For each kernel the places of its launches in the order; none for a kernel that is not in it."""
    by_launch: dict[Launch, list[int]] = {}
    for index, launch in enumerate(order):
        by_launch.setdefault(launch, []).append(index)
    needed = []
    for kernel in kernels:
        matching = [launch for launch in by_launch if kernel.matches(launch)]
        needed.append(sorted(index for launch in matching for index in by_launch[launch]))
    return [indices for indices in needed if indices]


def _counted_by_size(every: Selection, order: Sequence[Launch]) -> Selection:
    """The smallest count for each grid and block that reaches enough launches of each kernel."""
    met: Counter[object] = Counter()
    rank_in_size = []
    for launch in order:
        met[launch[1:]] += 1
        rank_in_size.append(met[launch[1:]])
    needed = _needed(every.kernels, order)
    last = [rank_in_size[places[min(every.wanted, len(places)) - 1]] for places in needed]
    return every._replace(by_size=True, take=max(last, default=every.wanted))


def _shortest_stretch(every: Selection, order: Sequence[Launch]) -> Selection:
    """The shortest run of successive launches that has enough of each kernel."""
    needed = _needed(every.kernels, order)
    enough = [min(every.wanted, len(places)) for places in needed]
    kernel_at = {index: number for number, places in enumerate(needed) for index in places}
    first, length = 0, max(1, len(order))
    inside: Counter[int] = Counter()
    start = 0
    for end in range(len(order)):
        if end in kernel_at:
            inside[kernel_at[end]] += 1
        while needed and all(inside[number] >= least for number, least in enumerate(enough)):
            if end - start + 1 < length:
                first, length = start, end - start + 1
            if start in kernel_at:
                inside[kernel_at[start]] -= 1
            start += 1
    return every._replace(skip=first, take=length)


def _template_pattern(kernel: HotKernel) -> str:
    """A pattern for the whole demangled name: it has the function's name and the words of its template arguments."""
    words = dict.fromkeys(re.findall(r"[A-Za-z_]\w+", template_name(kernel.name)))
    telling = [word for word in words if word not in _COMMON_WORDS]
    return "".join(rf"(?=.*\b{word}\b)" for word in telling) + ".*"
