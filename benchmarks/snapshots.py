"""Writes memory snapshots of any size, as torch.cuda.memory._dump_snapshot does.

Every entry has a list of its own of the frames, the frames themselves are shared; a completed free has the list of its
request.

    python benchmarks/snapshots.py FILE 1GB              as torch writes them
    python benchmarks/snapshots.py FILE 1GB --one-list   one list for all entries with the same stack
    python benchmarks/snapshots.py FILE 1GB --no-stacks  entries without stacks

The instructions of the pickle are written one after the other: nothing of it is in memory as a whole. The history is
that of a training loop: each step allocates activations and frees them in the opposite order.
"""

from __future__ import annotations

import argparse
import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import IO

from rankscope.units import parse_bytes

SITES = 400
"""Calls in a step that allocate, each with a stack for the allocation and one for the free, and a segment."""
FRAMES = 4000
SEGMENT_BYTES = 20 << 20
BASE = 0x7F00_0000_0000
START_US = 1_790_000_000_000_000
_AGAIN = b"\x94"
"""Remember the value on top."""


class PickleWriter:
    """The instructions of Python's pickler, protocol 4."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._texts: dict[str, int] = {}
        self.size = self.remembered = 0
        self.write(b"\x80\x04")

    def write(self, instructions: bytes) -> None:
        self._file.write(instructions)
        self.size += len(instructions)

    def remember(self, instructions: bytes) -> int:
        """Write a value and remember it; returns its number."""
        self.write(instructions + _AGAIN)
        self.remembered += 1
        return self.remembered - 1

    def value(self, value: object) -> None:
        """Numbers, texts, and dictionaries and lists of them."""
        if isinstance(value, int):
            self.write(number(value))
        elif isinstance(value, str) and value in self._texts:
            self.write(recall(self._texts[value]))
        elif isinstance(value, str):
            content = value.encode()
            self._texts[value] = self.remember(b"\x8c" + bytes([len(content)]) + content)
        elif isinstance(value, dict):
            self.remember(b"}")
            self.write(b"(")
            for key, one in value.items():
                self.value(key)
                self.value(one)
            self.write(b"u")
        elif isinstance(value, list):
            self.remember(b"]")
            self.write(b"(")
            for one in value:
                self.value(one)
            self.write(b"e")

    def text(self, text: str) -> bytes:
        """The instruction for a text that is written already."""
        return recall(self._texts[text])


def recall(number: int) -> bytes:
    return b"h" + bytes([number]) if number < 256 else b"j" + struct.pack("<I", number)


def number(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if 0 <= value < 65536:
        return b"M" + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    content = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(content)]) + content


def frame(place: int) -> dict[str, object]:
    """A third are lines of Python, the others C++."""
    if place % 3:
        name = f"at::_ops::op_{place % 97}::call(at::Tensor const&, long, std::optional<at::ScalarType>)"
        return {"name": name, "filename": "??", "line": 0}
    if place % 2:
        file = f"/opt/venv/lib/python3.12/site-packages/torch/nn/modules/part_{place % 61}.py"
        return {"name": "forward", "filename": file, "line": place}
    return {"name": f"layer_{place}", "filename": f"/home/user/model/layer_{place % 53}.py", "line": place}


def stacks(random: Random) -> list[list[int]]:
    """Frames of each stack, innermost first; the outer ones are common to all."""
    trunk = [3 * place for place in range(30)]
    return [random.sample(range(100, FRAMES), random.randint(15, 45)) + trunk for _ in range(2 * SITES)]


def segment(place: int, frames: list[object]) -> dict[str, object]:
    address = BASE + place * SEGMENT_BYTES
    block = {
        "address": address,
        "size": SEGMENT_BYTES,
        "requested_size": 0,
        "state": "inactive",
        "frames": [],
    }
    return {
        "device": 0, "address": address, "total_size": SEGMENT_BYTES, "allocated_size": 0, "active_size": 0,
        "requested_size": 0, "stream": 0, "segment_type": "large", "frames": frames, "blocks": [block],
    }  # fmt: skip


class HistoryWriter:
    """The entries of one device."""

    def __init__(
        self,
        out: PickleWriter,
        stacks: list[list[int]],
        first_frame: list[int],
        one_list: bool,
        no_stacks: bool = False,
    ) -> None:
        self._out = out
        self._stacks = [
            b"]\x94(" + b"".join(recall(first_frame[f]) for f in stack) + b"e" for stack in stacks
        ]
        self._known: dict[int, int] = {}
        self._one_list = one_list
        self._no_stacks = no_stacks
        self.entries = 0
        self._keys = {key: out.text(key) for key in ("action", "addr", "size", "stream", "frames", "time_us")}

    def add(self, action: str, address: int, size: int, stack: int, of_last: bool = False) -> None:
        """`of_last`: with the list of the entry before."""
        out, keys = self._out, self._keys
        out.write(
            b"".join(
                (b"}\x94(", keys["action"], out.text(action), keys["addr"], number(address), keys["size"],
                 number(size), keys["stream"], b"K\0", keys["time_us"], number(START_US + 3 * self.entries))
            )
        )  # fmt: skip
        out.remembered += 1
        if not self._no_stacks:
            out.write(keys["frames"])
            self._add_stack(stack, of_last)
        out.write(b"u")
        self.entries += 1
        if self.entries % 1000 == 0:
            out.write(b"e(")

    def _add_stack(self, stack: int, of_last: bool) -> None:
        out = self._out
        if of_last or (self._one_list and stack in self._known):
            out.write(recall(self._known[stack]))
            return
        self._known[stack] = out.remembered
        out.write(self._stacks[stack])
        out.remembered += 1


def steps(history: HistoryWriter, sizes: list[int]) -> Iterator[None]:
    """One training step after the other."""
    while True:
        for place, size in enumerate(sizes):
            history.add("alloc", BASE + place * SEGMENT_BYTES, size, place)
        for place in reversed(range(len(sizes))):
            free = (BASE + place * SEGMENT_BYTES, sizes[place], SITES + place)
            history.add("free_requested", *free)
            history.add("free_completed", *free, of_last=True)
        yield


def write_snapshot(path: Path, size: int, one_list: bool = False, no_stacks: bool = False) -> dict[str, int]:
    """Write a file of at least this size; returns what is in it: entries, bytes at the peak, bytes reserved."""
    random = Random(1)
    sizes = [
        512 * random.choice((1, 2, 16, 200, 2000, 16384)) - random.choice((0, 100)) for _ in range(SITES)
    ]
    with path.open("wb", buffering=1 << 20) as file:
        out = PickleWriter(file)
        out.remember(b"}")
        out.write(b"(")
        out.value("segments")
        out.remember(b"]")
        out.write(b"(")
        for text in ("action", "addr", "size", "stream", "time_us", "name", "filename", "line", "frames",
                     "alloc", "free_requested", "free_completed"):  # fmt: skip
            out.value(text)
            out.write(b"0")  # POP: remembered, and no value here
        frames: list[int] = []
        out.remember(b"}")
        out.write(b"(")
        for key, value in segment(0, []).items():
            out.value(key)
            if key != "frames":
                out.value(value)
                continue
            out.remember(b"]")
            out.write(b"(")
            for place in range(FRAMES):
                frames.append(out.remembered)
                out.value(frame(place))
            out.write(b"e")
        out.write(b"u")
        for place in range(1, SITES):
            out.value(segment(place, []))
        out.write(b"e")
        out.value("device_traces")
        out.remember(b"]")
        out.remember(b"]")
        out.write(b"(")
        history = HistoryWriter(out, stacks(random), frames, one_list, no_stacks)
        for _ in steps(history, sizes):
            if out.size >= size:
                break
        out.write(b"eau.")
    return {"entries": history.entries, "peak": sum(sizes), "reserved": SITES * SEGMENT_BYTES}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("size")
    parser.add_argument("--one-list", action="store_true")
    parser.add_argument("--no-stacks", action="store_true")
    options = parser.parse_args()
    print(write_snapshot(options.file, parse_bytes(options.size), options.one_list, options.no_stacks))


if __name__ == "__main__":
    main()
