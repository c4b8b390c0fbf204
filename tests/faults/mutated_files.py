"""Mutated files of every format that rankscope reads: an answer, or three lines that say what is wrong.

Each trial changes one small file, and runs two commands on it with 4 GB of memory and a minute of processor time.
"""

from __future__ import annotations

import gzip
import json
import lzma
import pickle
import re
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import ascend_files
import gpu_logs
from conftest import DATA, kernel_event, kineto_text, slice_event
from faults.forked import Child, Ended, load_commands
from faults.outcome import Outcome, Part
from flight_dumps import dump, op
from nccl_files import Op, inspector_line, plugin_dump, prometheus_text
from nsys_files import ExportFile
from rankscope.analysis import REPORTS
from rocprof_files import HIP, RCCL, Activity, Call, Copy, KernelRun, tool_json, write_rocpd
from xspace_files import gpu_planes, space, tpu_plane

MEMORY_BYTES, PROCESSOR_SECONDS, HANGING_SECONDS = 4 << 30, 60, 600
STATS = ["stats"]
SECOND = (["doctor"], ["report", "--format", "markdown", "-o", "-"], ["stats", "-r", ",".join(REPORTS)])
_GOOD_TRACE = "rank-0.json"
_ODD_NUMBERS = (
    0, -1, 1 << 31, 1 << 53, (1 << 63) - 1, 1 << 63, 1 << 64, -(1 << 63), 10**30, 0.1, -0.5, 1e18, 1e308,
    float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
_ODD_TEXTS = (
    "", "\0", "\x1b[2J\x1b]0;title\x07", "\u202e", "\x9b31m", "\n\n", "a" * 100_000, "é→😀", "nan", "-1", "1e400",
    "[[2, 3]", "../../etc/passwd", "%s%n", "'; DROP TABLE x; --", "ProfilerStep#99999999999999999999",
)  # fmt: skip
_ODD_VALUES: tuple[Any, ...] = (
    *_ODD_NUMBERS,
    *_ODD_TEXTS,
    None,
    True,
    [],
    {},
    [[]],
    {"a": {"a": [0]}},
    "\ud800",
)


@dataclass(frozen=True)
class Sample:
    """A small file of one format."""

    name: str
    """Of the file: readers look at its ending and the rank in it."""
    content: bytes
    beside_a_trace: bool = False
    """It adds to a trace, and the commands are given the folder of both."""


def _samples() -> Iterator[Sample]:
    events: list[Any] = [
        slice_event(f"ProfilerStep#{step}", 100.0 * step, 99.0, cat="user_annotation") for step in (1, 2, 3)
    ]
    events += [
        event
        for step in (1, 2, 3)
        for event in (
            slice_event("aten::mm", 100.0 * step + 1, 5.0, args={"External id": step}),
            kernel_event(
                "gemm", 100.0 * step + 9, 40.0, args={"correlation": step, "stream": 7, "device": 0}
            ),
        )
    ]
    header = {"distributedInfo": {"rank": 0, "world_size": 2}, "baseTimeNanosecond": 1}
    recorded = (DATA / "seqpar-gloo4" / "rank-0-of-4.json.gz").read_bytes()
    yield Sample("rank-0.json", kineto_text(events, **header).encode())
    yield Sample("rank-0-of-4.json.gz", recorded)
    yield Sample("rank-0-of-4.json", gzip.decompress(recorded))
    yield Sample("rank-0.chrome_trace", json.dumps(events).encode())
    yield Sample("trace_view.json", json.dumps(ascend_files.events()).encode())
    yield Sample("node.trace.json.gz", gzip.compress(_xla_json().encode()))
    yield Sample("node.xplane.pb", space(*gpu_planes(), tpu_plane()))
    activity = Activity(
        kernels=[KernelRun("gemm", 1_000, 1_500, call=11), KernelRun("ncclDevKernel", 1_600, 2_600, call=14)],
        copies=[Copy("HtoD", 500, 700, 4096, call=12)],
        calls=[Call(HIP, "hipLaunchKernel", 900, 950, 11), Call(RCCL, "ncclAllReduce", 1_500, 1_650, 13)],
    )
    yield Sample("rank_0_results.json", json.dumps(tool_json(activity)).encode())
    with tempfile.TemporaryDirectory() as folder:
        yield Sample("rank_0_results.db", write_rocpd(Path(folder) / "x.db", activity).read_bytes())
        export = ExportFile(Path(folder) / "x.sqlite").session(1_700_000_000_000_000_000)
        for number in range(3):
            export.call("cudaLaunchKernel", 100 * number, 100 * number + 10, number)
            export.kernel("gemm", 100 * number + 20, 100 * number + 90, number)
        export.environment(RANK="0", WORLD_SIZE="2").on_device(500, 0)
        yield Sample("rank_0.sqlite", export.write().read_bytes())
    yield Sample(
        "seq_rank0.sqlite", lzma.decompress((DATA / "nsys/seqpar-gloo2/seq_rank0.sqlite.xz").read_bytes())
    )
    yield Sample("rank_0.qdstrm", b"QDSTRM\0\0" + bytes(64))
    yield Sample("rank_0.nsys-rep", b"NSYS\0\0\0\0" + bytes(64))
    for kind in ("raw.csv", "details.csv", "ncu-rep"):
        yield Sample(f"gemm_rank0.{kind}", lzma.decompress((DATA / f"ncu/gemm_bf16.{kind}.xz").read_bytes()))
    flight = dump([op("0", 1), op("0", 2, "send")], {"0": [0, 1]}, {"0": (2, 1)})
    yield Sample("nccl_trace_rank_0", pickle.dumps(flight))
    yield Sample("flight_dump_0.json", json.dumps(flight).encode())
    yield Sample("memory_rank0.pickle.gz", (DATA / "memory" / "gpt-h200.pickle.gz").read_bytes())
    entry = {"action": "alloc", "addr": 1, "size": 512, "stream": 0, "time_us": 10, "frames": []}
    block = {"address": 1, "size": 512, "state": "active_allocated", "frames": []}
    segment = {"address": 1, "total_size": 2048, "device": 0, "blocks": [block]}
    yield Sample("memory_rank0.pickle", pickle.dumps({"segments": [segment], "device_traces": [[entry]]}))
    ops = [Op("AllReduce", 1, 8192, 10, 100), Op("Send", 1, 8192, 10, 200, peer=1)]
    lines = [json.dumps(inspector_line(one, 0)) for one in ops]
    yield Sample("node-pid77.log", "\n".join(lines).encode())
    yield Sample("nccl_0.prom", prometheus_text(0, [("AllReduce", "4-5GB", 1.5, 2.5)]).encode())
    yield Sample("ncclprof-0.txt", plugin_dump(0, ops, version="2.30").encode())
    readings = gpu_logs.evenly(0, 10**9, 10**8, [0, 1])
    for name, text in (
        ("smi.csv", gpu_logs.query_csv(readings)),
        ("dcgmi.log", gpu_logs.dcgmi(readings)),
        ("dcgm.prom", gpu_logs.prometheus(readings)),
    ):
        yield Sample(name, text.encode(), beside_a_trace=True)
    yield Sample("smi.csv.gz", gzip.compress(gpu_logs.query_csv(readings).encode()), beside_a_trace=True)


# Changes of the bytes.


def cut_off(content: bytes, random: Random) -> bytes:
    return content[: random.randrange(len(content))]


def flip_bits(content: bytes, random: Random) -> bytes:
    changed = bytearray(content)
    for _ in range(random.choice((1, 1, 8, 64))):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def duplicate_a_block(content: bytes, random: Random) -> bytes:
    begin, end = _block(content, random)
    at = random.choice((end, random.randrange(len(content))))
    times = min(random.choice((1, 3, 1000)), (4 << 20) // (end - begin) + 1)
    return content[:at] + content[begin:end] * times + content[at:]


def delete_a_block(content: bytes, random: Random) -> bytes:
    begin, end = _block(content, random)
    return content[:begin] + content[end:]


def overwrite_a_block(content: bytes, random: Random) -> bytes:
    begin, end = _block(content, random)
    filler = random.choice((bytes(end - begin), b"\xff" * (end - begin), random.randbytes(end - begin)))
    return content[:begin] + filler + content[end:]


def _block(content: bytes, random: Random) -> tuple[int, int]:
    begin = random.randrange(len(content))
    return begin, min(len(content), begin + random.choice((1, 8, 100, 4096)))


# Changes of the text.


def odd_numbers(content: bytes, random: Random) -> bytes:
    return _replaced(rb"-?\d+(?:\.\d+)?", content, random, lambda: str(random.choice(_ODD_NUMBERS)).encode())


def odd_texts(content: bytes, random: Random) -> bytes:
    return _replaced(rb"[A-Za-z_]{2,}", content, random, lambda: random.choice(_ODD_TEXTS).encode())


def _replaced(pattern: bytes, content: bytes, random: Random, new: Callable[[], bytes]) -> bytes:
    """In one place, in some, or everywhere by the same."""
    matches = list(re.finditer(pattern, content))
    if not matches:
        return flip_bits(content, random)
    if random.random() < 0.2:
        same = new()[:1000]
        share = random.choice((0.1, 1.0))
        return re.sub(pattern, lambda match: same if random.random() < share else match[0], content)
    chosen = sorted(
        random.sample(matches, min(len(matches), random.choice((1, 3, 20)))), key=lambda one: -one.start()
    )
    for match in chosen:
        content = content[: match.start()] + new() + content[match.end() :]
    return content


def repeat_lines(content: bytes, random: Random) -> bytes:
    lines = content.splitlines(keepends=True)
    at = random.randrange(len(lines))
    times = min(random.choice((2, 100, 5000)), (4 << 20) // len(lines[at]) + 1)
    return b"".join([*lines[:at], *[lines[at]] * times, *lines[at:]])


# Changes of what is in it.


def change_the_tree(content: bytes, random: Random) -> bytes:
    """Of JSON, of pickles and of databases: odd values, missing ones, the same everywhere, records again and again."""
    if content.startswith(b"SQLite"):
        return _changed_database(content, random)
    if content[:1] == b"\x80":
        tree = pickle.loads(content)
        return pickle.dumps(_changed_tree(tree, random))
    try:
        tree = json.loads(content)
    except ValueError:
        return random.choice((odd_numbers, odd_texts, repeat_lines))(content, random)
    return json.dumps(_changed_tree(tree, random)).encode()


def _changed_tree(tree: Any, random: Random) -> Any:
    containers = [node for node in _nodes(tree) if node]
    if not containers:
        return random.choice(_ODD_VALUES)
    way = random.choice(("values", "values", "one key", "again", "nested", "missing"))
    if way == "one key":
        keys = sorted(
            {key for node in containers if isinstance(node, dict) for key in node if isinstance(key, str)}
        )
        changed, same = random.choice(keys), random.choice(_ODD_VALUES)
        for node in containers:
            if isinstance(node, dict) and changed in node:
                node[changed] = same
        return tree
    for _ in range(random.choice((1, 3, 20))):
        node = random.choice(containers)
        if isinstance(node, list) and way == "again":
            node.extend([random.choice(node)] * random.choice((1, 100, 5000)))
            continue
        key = random.choice(list(node)) if isinstance(node, dict) else random.randrange(len(node))
        if way == "missing" and len(node) > 1:
            del node[key]
        elif way == "nested":
            value: Any = []
            for _ in range(random.choice((50, 500))):
                value = [value] if random.random() < 0.5 else {"a": value}
            node[key] = value
        else:
            node[key] = random.choice(_ODD_VALUES)
    return tree


def _nodes(tree: Any) -> Iterator[Any]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (dict, list)):
            yield node
            waiting += node.values() if isinstance(node, dict) else node


def _changed_database(content: bytes, random: Random) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.sqlite"
        path.write_bytes(content)
        with closing(sqlite3.connect(path)) as connection:
            for _ in range(random.choice((1, 3, 10))):
                with suppress(sqlite3.Error, OverflowError):
                    _change_a_table(connection, random)
            connection.commit()
        return path.read_bytes()


def _change_a_table(connection: sqlite3.Connection, random: Random) -> None:
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    counts = {name: connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in tables}
    table = random.choice([name for name in tables if counts[name]])
    column = random.choice([row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')])
    value = random.choice((*_ODD_NUMBERS, *_ODD_TEXTS, None, b"\xff\0"))
    row = f'WHERE rowid = (SELECT rowid FROM "{table}" LIMIT 1 OFFSET {random.randrange(counts[table])})'
    match random.randrange(8):
        case 0:
            connection.execute(f'DROP TABLE "{table}"')
        case 1:
            connection.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')
        case 2:
            connection.execute(f'INSERT INTO "{table}" SELECT * FROM "{table}"')
        case 3:
            connection.execute(f'UPDATE "{table}" SET "{column}" = ?', (value,))
        case 4:
            connection.execute(f'DELETE FROM "{table}"')
        case _:
            connection.execute(f'UPDATE "{table}" SET "{column}" = ? {row}', (value,))


def nested_garbage(content: bytes, random: Random) -> bytes:
    at = random.randrange(len(content))
    garbage = random.choice(
        (
            b"[" * 100_000,
            b'{"a":' * 50_000,
            b'"',
            b"\\",
            b"}" * 10,
            b"\x80\x05]" + b"]" * 50_000,
            b"\n" * 10**6,
        )
    )
    return content[:at] + garbage + content[at:]


CHANGES: dict[str, Callable[[bytes, Random], bytes]] = {
    "cut off": cut_off,
    "flipped bits": flip_bits,
    "a duplicated block": duplicate_a_block,
    "a deleted block": delete_a_block,
    "an overwritten block": overwrite_a_block,
    "odd numbers": odd_numbers,
    "odd texts": odd_texts,
    "repeated lines": repeat_lines,
    "changed values and records": change_the_tree,
    "nested garbage": nested_garbage,
}


def mutated(sample: Sample, change: str, random: Random) -> bytes:
    """What is compressed is changed inside, and sometimes outside."""
    packed = sample.content[:2] == b"\x1f\x8b" and random.random() < 0.75
    content = gzip.decompress(sample.content) if packed else sample.content
    changed = CHANGES[change](content, random)
    return gzip.compress(changed, 1) if packed else changed


def trials(count: int, random: Random) -> Iterator[Outcome]:
    load_commands("stats", *(words[0] for words in SECOND))
    samples, changes = list(_samples()), list(CHANGES)
    with tempfile.TemporaryDirectory(prefix="rankscope-mutated-") as name:
        base = Path(name)
        for number in range(count):
            sample = samples[number % len(samples)]
            # Each change with each format: the two go round at different speeds.
            change = changes[(number + number // len(samples)) % len(changes)]
            seed = random.randrange(10**9)
            difference = _trial(base, sample, change, Random(seed), SECOND[number % len(SECOND)], samples[0])
            yield Outcome(change, f"{sample.name}, seed {seed}", difference)


def _trial(base: Path, sample: Sample, change: str, random: Random, second: list[str], trace: Sample) -> str:
    folder = base / "run"
    folder.mkdir()
    path = folder / sample.name
    path.write_bytes(mutated(sample, change, random))
    if sample.beside_a_trace:
        (folder / _GOOD_TRACE).write_bytes(trace.content)
    target = folder if sample.beside_a_trace else path
    differences = []
    for words in (STATS, second):
        ended = Child([words[0], str(target), "-q", *words[1:]], base, _limit).wait()
        if wrong := _difference(ended):
            differences.append(f"{words[0]}: {wrong}")
    shutil.rmtree(folder)
    return "\n".join(differences)


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS, PROCESSOR_SECONDS))
    signal.alarm(HANGING_SECONDS)


def _difference(ended: Ended) -> str:
    for words in ("Traceback (most", "defect of rankscope", "The reader failed"):
        if words in ended.stderr + ended.stdout:
            at = ended.stderr.find(words)
            return f"{words}: {ended.stderr[max(0, at - 300) : at + 1500]}"
    if ended.status in (0, 3):
        return "" if ended.stdout.strip() else "neither an answer nor a message"
    return ended.unclear()


def write_one(change: str, name: str, seed: int, target: Path) -> None:
    """The file of one trial, to look at it: python mutated_files.py CHANGE NAME SEED FILE."""
    sample = next(one for one in _samples() if one.name == name)
    target.write_bytes(mutated(sample, change, Random(seed)))


def _xla_json() -> str:
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}},
        {"ph": "M", "pid": 1, "tid": 7, "name": "thread_name", "args": {"name": "Stream #7(Kernel)"}},
        {"ph": "M", "pid": 2, "name": "process_name", "args": {"name": "/host:CPU"}},
    ]
    for step in range(3):
        args = {"hlo_op": "fusion.1", "hlo_module": "jit_step", "correlation_id": str(step)}
        events.append(
            {"ph": "X", "pid": 1, "tid": 7, "ts": 100 * step, "dur": 10, "name": "fusion", "args": args}
        )
        events.append({"ph": "X", "pid": 2, "tid": 1, "ts": 100 * step, "dur": 90, "name": "train"})
    return json.dumps({"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": events})


PART = Part("mutated files", trials, many=150, few=6)

if __name__ == "__main__":
    write_one(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
