"""Damage to the files of a store: a command gives the right figures, or says what is wrong; never anything else."""

from __future__ import annotations

import lzma
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from conftest import DATA
from faults.forked import Child, load_commands
from faults.outcome import Outcome, Part

COMMANDS = {
    "stats": ["stats", "run", "-q"],
    "doctor": ["doctor", "run", "-q"],
    "report": ["report", "run", "-q", "--format", "markdown", "-o", "-"],
}
RUN, RAW = "run", "raw"
_UNDAMAGED = ("store.json", "segment.json", "lock")
"""Without these the figures are still right: they are made again, or from each other."""


def flip_a_bit(content: bytearray, random: Random) -> bytearray:
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    return content


def cut_off(content: bytearray, random: Random) -> bytearray:
    return content[: random.randrange(len(content))]


def zero_a_block(content: bytearray, random: Random) -> bytearray:
    begin = random.randrange(len(content))
    size = min(512, len(content) - begin)
    content[begin : begin + size] = bytes(size)
    return content


def delete(content: bytearray, random: Random) -> None:
    return None


DAMAGES: dict[str, Callable[[bytearray, Random], bytearray | None]] = {
    "a flipped bit": flip_a_bit,
    "cut off": cut_off,
    "a zeroed block": zero_a_block,
    "deleted": delete,
}


def trials(count: int, random: Random) -> Iterator[Outcome]:
    load_commands(*COMMANDS)
    with tempfile.TemporaryDirectory(prefix="rankscope-faults-") as folder:
        base = Path(folder)
        _write_run(base)
        expected = {name: _undamaged(base, name) for name in COMMANDS}
        names = _names(base / "store")
        kinds = [(damage, raw) for damage in DAMAGES for raw in ("there", "gone")]
        commands = list(COMMANDS)
        for number in range(count):
            damage, raw = kinds[number % len(kinds)]
            command = commands[number % len(commands)]
            name = names[number % len(names)]
            path = random.choice(sorted((base / "store").rglob(name))).relative_to(base / "store")
            yield _trial(base, path, damage, raw, command, expected[command], random)


def _trial(
    base: Path, path: Path, damage: str, raw: str, command: str, expected: str, random: Random
) -> Outcome:
    _lay_out(base, raw)
    damaged = base / RUN / ".rankscope" / path
    content = bytearray(damaged.read_bytes())
    changed = DAMAGES[damage](content, random) if content else None
    damaged.unlink()
    if changed is not None:
        damaged.write_bytes(changed)
    ended = Child(_arguments(base, command), base).wait()
    difference = ""
    if ended.status == 0:
        difference = "other figures than of a whole store" if ended.stdout != expected else ""
    elif raw == "there" or path.name in _UNDAMAGED or path.parent.name == "derived":
        difference = f"could be repaired, and ended with {ended.status}: {ended.stderr[-500:]}"
    else:
        difference = ended.unclear()
    return Outcome(f"{damage}, trace {raw}", f"{command} with {path}", difference)


def _write_run(base: Path) -> None:
    """Two ranks that share collectives, a memory snapshot and measurements of ncu: every table of the store."""
    (base / RUN).mkdir()
    for rank in range(2):
        shutil.copy2(DATA / "seqpar-gloo4" / f"rank-{rank}-of-4.json.gz", base / RUN)
    measured = lzma.decompress((DATA / "ncu" / "gemm_bf16.raw.csv.xz").read_bytes())
    (base / RUN / "gemm_rank0.raw.csv").write_bytes(measured)
    entry = {"action": "alloc", "addr": 1, "size": 512, "stream": 0, "time_us": 10, "frames": []}
    block = {"address": 1, "size": 512, "state": "active_allocated", "frames": []}
    segment = {"address": 1, "total_size": 2048, "device": 0, "blocks": [block]}
    (base / RUN / "memory_rank0.pickle").write_bytes(
        pickle.dumps({"segments": [segment], "device_traces": [[entry]]})
    )
    read = Child(_arguments(base, "report"), base).wait()
    assert read.status == 0, read.stderr
    (base / RUN / ".rankscope").rename(base / "store")
    (base / RUN).rename(base / RAW)


def _undamaged(base: Path, command: str) -> str:
    _lay_out(base, "gone")
    ended = Child(_arguments(base, command), base).wait()
    assert ended.status == 0 and "damaged" not in ended.stderr, ended.stderr
    return ended.stdout


def _arguments(base: Path, command: str) -> list[str]:
    return [str(base / RUN) if word == RUN else word for word in COMMANDS[command]]


def _lay_out(base: Path, raw: str) -> None:
    """The run as it was, with or without its raw files; their times are kept, as by `mv`."""
    shutil.rmtree(base / RUN, ignore_errors=True)
    (base / RUN).mkdir()
    if raw == "there":
        for file in (base / RAW).iterdir():
            shutil.copy2(file, base / RUN)
    shutil.copytree(base / "store", base / RUN / ".rankscope")


def _names(store: Path) -> list[str]:
    """The kinds of files in a store."""
    return sorted({path.name for path in store.rglob("*") if path.is_file()})


BYTE_FLIPS = Part("damage to stores", trials, many=240, few=4)
