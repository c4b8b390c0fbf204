"""Which columns of a table are shown at a given width, and how wide each is.

If not everything fits, in this order: headings are stacked; minor columns are omitted, then numeric ones, from the
right, down to the first four; names shrink to 24 cells (12 if there are several); short text columns are omitted;
then the rest, from the right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankscope.records import dataclass
from rankscope.views.columns import Kind

GAP = 2
_NAME_SHARE = 0.35  # of the width is reserved for names, enough to distinguish kernels
_NAME_LEAST = 24
_TEXT_LEAST = 12
_CORE_MEASURES = 4  # of nsys's columns: Time %, Total, Instances, Avg
# Columns wider than this are flexible: their cells are cut to the room that is left.
_FIXED_TEXT = 16
_FIXED_NUMBER = 28


@dataclass(frozen=True)
class Shape:
    """The sizes of a column, in cells."""

    kind: Kind
    cells: int
    """The widest cell."""
    heading: int
    """The heading on one line."""
    stacked: int
    """The widest line of the stacked heading."""
    minor: bool = False

    @property
    def flexible(self) -> bool:
        """Whether cells are cut to the available room; other columns are shown whole or not at all."""
        return max(self.cells, self.stacked) > (_FIXED_TEXT if self.kind == "text" else _FIXED_NUMBER)

    def natural(self, stacked: bool) -> int:
        return max(self.cells, self.stacked if stacked else self.heading)


@dataclass(frozen=True)
class Layout:
    """The columns kept (index -> width, in order), and whether their headings are stacked."""

    widths: dict[int, int]
    stacked: bool


def fit(shapes: Sequence[Shape], width: int) -> Layout:
    """The layout with the most columns that fits; at least the first column, cut to the width."""
    for kept, stacked, text_room in _plans(shapes, width):
        room = width - GAP * (len(kept) - 1)
        least = {index: _least(shapes[index], stacked, text_room) for index in kept}
        if sum(least.values()) <= room:
            return Layout(_spread(shapes, least, stacked, room), stacked)
    return Layout({0: min(width, shapes[0].natural(True))} if shapes else {}, True)


def _plans(shapes: Sequence[Shape], width: int) -> Iterator[tuple[list[int], bool, int]]:
    """Candidates (columns, stacked, least width of a flexible column), the best first."""
    kept = list(range(len(shapes)))
    several = sum(shape.flexible for shape in shapes) > 1
    wanted = max(_NAME_LEAST, int(width * _NAME_SHARE))
    minor = [index for index in kept[1:] if shapes[index].minor]
    measures = [index for index in kept if shapes[index].kind == "measure" and index not in minor]
    extra, core = measures[_CORE_MEASURES:], measures[1:_CORE_MEASURES]
    side_text = [
        i for i in kept[1:] if shapes[i].kind == "text" and not shapes[i].flexible and i not in minor
    ]
    for stacked in (False, True):
        yield kept, stacked, wanted
    for index in (*reversed(minor), *reversed(extra)):
        kept = [i for i in kept if i != index]
        for stacked in (False, True):
            yield kept, stacked, wanted
    least = _TEXT_LEAST if several else _NAME_LEAST
    yield kept, True, least
    rest = [index for index in kept[1:] if index not in (*core, *side_text)]
    for index in (*reversed(side_text), *reversed(core), *reversed(rest)):
        kept = [i for i in kept if i != index]
        yield kept, True, least


def _least(shape: Shape, stacked: bool, text_room: int) -> int:
    natural = shape.natural(stacked)
    return min(natural, text_room) if shape.flexible else natural


def _spread(shapes: Sequence[Shape], least: dict[int, int], stacked: bool, room: int) -> dict[int, int]:
    """Distribute the remaining room evenly over the flexible columns, up to what each needs."""
    widths = dict(least)
    growing = [index for index in widths if widths[index] < shapes[index].natural(stacked)]
    left = room - sum(widths.values())
    while growing and left:
        share = max(1, left // len(growing))
        for index in growing:
            more = min(share, left, shapes[index].natural(stacked) - widths[index])
            widths[index] += more
            left -= more
        growing = [index for index in growing if widths[index] < shapes[index].natural(stacked)]
    return widths
