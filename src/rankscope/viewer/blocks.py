"""Route for the block map: which address was allocated when, in as many cells as the picture has."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from rankscope.analysis.core.scope import Scope
from rankscope.analysis.memory.block_map import (
    NO_LINE,
    Blocks,
    block_map,
    devices_with_blocks,
    read_blocks,
)
from rankscope.viewer.answers import Answer, integer
from rankscope.viewer.session import Session

_MOST_COLUMNS, _MOST_ROWS = 1000, 400
_LARGEST = 1500
"""Blocks that the page can describe when the pointer is on them."""
_FRAMES = 8
"""Of a stack, that are shown."""
_KEPT = 4
"""Devices whose blocks are kept for the next window."""


def blocks(session: Session, query: dict[str, str]) -> Answer:
    """The devices of a rank that have a snapshot; with `device` also the picture of one, or of a window of it."""
    rank = integer(query["rank"])
    latest: dict[tuple[int, int], Blocks] = session.once("blocks", dict)
    with session.database() as run:
        devices = [device for _, device in devices_with_blocks(run, Scope(ranks=frozenset((rank,))))]
        if "device" not in query:
            return {"devices": devices}
        device = integer(query["device"])
        if device not in devices:
            raise ValueError(f"rank {rank} has no snapshot of a device {device}")
        if (rank, device) not in latest:
            while len(latest) >= _KEPT:
                latest.pop(next(iter(latest)))
            latest[rank, device] = read_blocks(run, rank, device)
        of_device = latest[rank, device]
    columns = min(max(integer(query.get("columns", "400")), 1), _MOST_COLUMNS)
    rows = min(max(integer(query.get("rows", "170")), 1), _MOST_ROWS)
    window = (integer(query["begin"]), integer(query["end"])) if "begin" in query and "end" in query else None
    picture = block_map(of_device, columns, rows, window, _LARGEST)
    header = {
        "devices": devices,
        "width": columns,
        "height": rows,
        "begin": picture.begin,
        "end": picture.end,
        "first": of_device.begin,
        "last": of_device.end,
        "has_times": of_device.has_times,
        "reserved_bytes": picture.reserved_bytes,
        "lines": picture.lines,
        "allocations": len(of_device.allocations.begin),
        "largest": [asdict(block) for block in picture.largest],
        "stacks": {
            stack: {
                "line": of_device.sources.get(stack, NO_LINE),
                "op": of_device.ops.get(stack, ""),
                "frames": of_device.frames.get(stack, ())[:_FRAMES],
            }
            for stack in {block.stack for block in picture.largest}
        },
    }
    held = picture.held if len(picture.lines) else np.zeros((1, rows, columns))
    return header, {
        "line": held.argmax(axis=0).astype(np.uint8).reshape(-1),
        "held": np.round(255 * np.minimum(held.sum(axis=0), 1.0)).astype(np.uint8).reshape(-1),
        "reserved": np.round(255 * picture.reserved).astype(np.uint8).reshape(-1),
    }
