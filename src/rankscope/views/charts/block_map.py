"""The block map: addresses over time, each allocation in the colour of the line of Python that made it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.scope import Scope
from rankscope.analysis.memory.block_map import (
    NO_LINE,
    BlockMap,
    LargeBlock,
    block_map,
    devices_with_blocks,
    read_blocks,
)
from rankscope.timeline.run import Run
from rankscope.units import format_bytes, format_ns
from rankscope.views.charts.chart import Chart, NothingToDrawError
from rankscope.views.charts.plots import AXIS_HEIGHT, WIDTH, Axis, Key, legend, x_axis, y_axis
from rankscope.views.charts.scales import Linear
from rankscope.views.charts.svg import Drawing, rectangles

_COLUMNS, _ROWS = 330, 170
_HEIGHT = 340.0
_TIPS = 150
_LEVELS = (0.02, 0.3, 0.6, 0.9)
"""A cell of which less than the first share is allocated is drawn as free; the others are as opaque as full."""
_LEFT = 70.0
FREE = Key("reserved and free", "idle")


def blocks_of_run(run: Run, scope: Scope) -> Chart:
    """The device with the most reserved memory among the ranks in scope."""
    devices = devices_with_blocks(run, scope)
    if not devices:
        raise NothingToDrawError(
            "there is nothing to draw: no block map",
            why="The run has no memory snapshot.",
            hint="Write one with torch.cuda.memory._dump_snapshot(FILE), or with rankscope.memory_history().",
        )
    picture = block_map(read_blocks(run, *devices[0]), _COLUMNS, _ROWS, largest=_TIPS)
    more = f"; {len(devices) - 1} more: --ranks" if len(devices) > 1 else ""
    return _draw(picture, more)


def _draw(picture: BlockMap, more: str) -> Chart:
    blocks = picture.blocks
    drawing = Drawing()
    keys = [Key(line, f"s{number}") for number, line in enumerate(picture.lines, 1)]
    top = legend(drawing, [*keys, FREE], _LEFT, 0) + 20
    bottom = top + _HEIGHT
    times = Linear(picture.begin, picture.end, _LEFT, WIDTH - 12)
    offsets = Linear(0, picture.reserved_bytes, bottom, top)
    axis = ("Time from the start of the run", "ns") if blocks.has_times else ("Entries of the history", "")
    x_axis(drawing, Axis(times, *axis), top, bottom)
    y_axis(drawing, Axis(offsets, "Address, without what was never reserved", "bytes"), _LEFT, WIDTH - 12)
    x = np.linspace(_LEFT, WIDTH - 12, _COLUMNS + 1)
    y = np.linspace(bottom, top, _ROWS + 1)
    drawing.path(_cells((picture.reserved >= 0.5).astype(np.int64), 1, x, y), "idle")
    held = picture.held.sum(axis=0)
    level = np.searchsorted(_LEVELS, held, side="right")
    line = picture.held.argmax(axis=0) if len(picture.lines) else np.zeros(held.shape, np.int64)
    code = np.where(level > 0, 1 + line * len(_LEVELS) + level - 1, 0)
    for first, key in zip(range(1, 1 + len(keys) * len(_LEVELS), len(_LEVELS)), keys, strict=True):
        for number in range(len(_LEVELS)):
            path = _cells(code, first + number, x, y)
            if path:
                drawing.path(path, key.colour, fill_opacity=f"{(number + 1) / len(_LEVELS):g}")
    for block in picture.largest:
        begin, end = (times(min(max(at, picture.begin), picture.end)) for at in (block.begin, block.end))
        low, high = offsets(block.offset), offsets(block.offset + block.bytes)
        drawing.rect(begin, high, end - begin, low - high, "bg", _tip(picture, block), fill_opacity="0")
    count = len(blocks.allocations.begin)
    size = format_bytes(picture.reserved_bytes)
    subtitle = f"rank {blocks.rank}, GPU {blocks.device}; {count:,} allocations in {size} of addresses{more}"
    return Chart(
        "blocks", "Blocks over address and time", subtitle, WIDTH, bottom + AXIS_HEIGHT, drawing.body()
    )


def _tip(picture: BlockMap, block: LargeBlock) -> str:
    blocks, begin, end = picture.blocks, block.begin, block.end
    lifetime = (
        f"{format_ns(begin)} to {format_ns(end)}" if blocks.has_times else f"entries {begin:,} to {end:,}"
    )
    ends = (("or earlier", begin == blocks.begin), ("to the end", end == blocks.end))
    words = ", ".join((lifetime, *(words for words, is_so in ends if is_so)))
    line, op = blocks.sources.get(block.stack, NO_LINE), blocks.ops.get(block.stack, "")
    return "\n".join(part for part in (f"{format_bytes(block.bytes)}, {words}", line, op) if part)


def _cells(codes: NDArray[np.int64], wanted: int, x: NDArray[np.float64], y: NDArray[np.float64]) -> str:
    """A path with a rectangle for each run of cells with this code."""
    is_wanted = np.pad(codes == wanted, ((0, 0), (1, 1)))
    change = np.diff(is_wanted.astype(np.int8), axis=1)
    rows, begins = np.nonzero(change == 1)
    ends = np.nonzero(change == -1)[1]
    return rectangles(x[begins], x[ends], y[rows + 1], y[rows])
