"""The traces that benchmarks read: made once into .bench and kept there.

    python benchmarks/traces.py [--sizes 10MB,100MB] [--source FILE] [--gzip]

Two kinds. "stacks" is a real trace with Python stacks, repeated to a size: tests/data/gpt-h200-stack unless --source
or RANKSCOPE_BENCH_TRACE names another. "synthetic" is written by `rankscope bench synthetic`.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import json
import multiprocessing
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from measure import measure
from rankscope.host import usable_cores
from rankscope.units import parse_bytes
from rankscope_bench.synthetic.cluster import Fault, Job, RankRun, simulate
from rankscope_bench.synthetic.cluster_trace import RankTrace, file_name, write_traces
from rankscope_bench.synthetic.job import kernels_for
from rankscope_bench.synthetic.trace_files import write_pieces

ROOT = Path(__file__).parents[1]
WORK = ROOT / ".bench"
RANKSCOPE = [sys.executable, "-m", "rankscope"]
SIZES = ("10MB", "100MB", "300MB", "1GB", "2.7GB")
STACKS = Path(
    os.environ.get("RANKSCOPE_BENCH_TRACE", ROOT / "tests/data/gpt-h200-stack/gpt.pt.trace.json.gz")
)
REAL_10MB = ROOT / "tests/data/hf-trainer-h200/rank-00000.pt.trace.json.gz"
SYNTHETIC_BYTES_PER_EVENT = 329
EVENTS_OF_6_8_MB = 20_900
TENSOR, STAGES, SIMULATED_REPLICAS = 8, 4, 4
"""Of the simulated jobs."""
GPU_LOG_END_S = 1_794_701_460
"""After the end of the simulated traces."""

# The numbers that are another one in each repetition; the fraction of a time stays as it is.
_NUMBER = re.compile(
    r'"(?P<key>ts|id|correlation|External id|Ev Idx|Sequence number|Python id|Python parent id)":\s*(?P<value>-?\d+)'
    r"(?![eE\d])|ProfilerStep#(?P<step>\d+)"
)
# Numbers of one kind are shifted alike: a flow from a launch to its kernel has the launch's correlation as its id.
_KINDS = {"id": "correlation", "Python parent id": "Python id"}


@dataclass(frozen=True)
class Trace:
    """A file of .bench, and what is in it."""

    path: Path
    events: int

    @property
    def size(self) -> int:
        return self.path.stat().st_size


@dataclass(frozen=True)
class Repeatable:
    """A trace's text, ready to be written again and again as one longer run."""

    head: str
    template: str
    """All events that are repeated, with %d for each number that changes."""
    values: np.ndarray[Any, np.dtype[np.int64]]
    shifts: np.ndarray[Any, np.dtype[np.int64]]
    """What one repetition adds to each of the values."""
    tail: str
    events: int
    events_once: int

    def copy(self, number: int) -> str:
        """The events of one repetition, each followed by a comma."""
        return self.template % tuple((self.values + number * self.shifts).tolist())


def repeatable(text: str) -> Repeatable:
    """Take a trace apart. Metadata and the profiler's own marks are written once, after the last repetition."""
    array = re.search(r'"traceEvents"\s*:\s*\[', text)
    if array is None:
        raise ValueError("there are no traceEvents in the trace to be repeated")
    repeated, once, end = _split_events(text, array.end())
    body = ",\n  ".join(repeated) + ",\n  "
    matches = list(_NUMBER.finditer(body))
    kinds = [match["key"] or "step" for match in matches]
    kinds = [_KINDS.get(kind, kind) for kind in kinds]
    values = np.array([int(match["value"] or match["step"]) for match in matches], np.int64)
    shift = {kind: _spread(values, kinds, kind) for kind in set(kinds)}
    shift["ts"] = _span_us(repeated) + 1
    return Repeatable(
        head=text[: array.end()] + "\n  ",
        template=_template(body, matches),
        values=values,
        shifts=np.array([shift[kind] for kind in kinds], np.int64),
        tail=",\n  ".join(once) + "\n  " + text[end:],
        events=len(repeated),
        events_once=len(once),
    )


def _split_events(text: str, position: int) -> tuple[list[str], list[str], int]:
    """The texts of the events to repeat, of those to write once, and where the array ends."""
    decoder, between = json.JSONDecoder(), re.compile(r"[\s,]*")
    repeated: list[str] = []
    once: list[str] = []
    while True:
        skipped = between.match(text, position)
        begin = skipped.end() if skipped else position
        if text[begin] == "]":
            return repeated, once, begin
        event, position = decoder.raw_decode(text, begin)
        marks = event.get("ph") == "M" or event.get("cat", "Trace") == "Trace"
        (once if marks else repeated).append(text[begin:position])


def _spread(values: np.ndarray[Any, np.dtype[np.int64]], kinds: list[str], kind: str) -> int:
    """How far the numbers of a kind are apart, so that the next repetition begins after the last of this one."""
    own = values[[each == kind for each in kinds]]
    return int(own.max() - own.min()) + 1


def _span_us(events: list[str]) -> int:
    parsed = [json.loads(event) for event in events]
    ends = [event["ts"] + event.get("dur", 0) for event in parsed]
    return int(max(ends) - min(event["ts"] for event in parsed)) + 1


def _template(body: str, matches: list[re.Match[str]]) -> str:
    parts, position = [], 0
    for match in matches:
        begin, end = match.span("step" if match["step"] else "value")
        parts += [body[position:begin].replace("%", "%%"), "%d"]
        position = end
    return "".join([*parts, body[position:].replace("%", "%%")])


def stacks(size: str, source: Path = STACKS) -> Trace:
    """A real trace repeated until it has about this size."""
    name = f"{source.name.partition('.')[0]}-{source.stat().st_size}"
    target = WORK / f"stacks-{name}-{size}" / "rank-00000-of-00001.pt.trace.json"
    if not _is_made(target):
        content = source.read_bytes()
        parts = repeatable((gzip.decompress(content) if source.suffix == ".gz" else content).decode())
        copies = max(1, round(parse_bytes(size) / len(parts.copy(0))))
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("w", encoding="utf-8") as out:
            out.write(parts.head)
            for number in range(copies):
                out.write(parts.copy(number))
            out.write(parts.tail)
        _made(target, copies * parts.events + parts.events_once)
    return Trace(target, _events(target))


def synthetic(size: str) -> Trace:
    """One rank's trace of about this size, of a synthetic run of eight: a run of one rank has no collectives."""
    events = parse_bytes(size) // SYNTHETIC_BYTES_PER_EVENT
    folder = synthetic_run(8, events, "--missing", "1-7")
    return Trace(next(folder.glob("rank-*")), events)


def inspector_log(size: str, verbose: bool) -> Trace:
    """A log of NCCL Inspector of about this size: one rank of eight, all_reduce after all_reduce."""
    path = WORK / f"inspector-{size}-{'verbose' if verbose else 'short'}" / "node-pid77.log"
    line = _inspector_line(0, verbose)
    count = parse_bytes(size) // len(line)
    if not _is_made(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            file.writelines(_inspector_line(number, verbose) for number in range(count))
        _made(path, count)
    return Trace(path, count)


def _inspector_line(number: int, verbose: bool) -> str:
    start = 1_752_867_229_000_000 + 2000 * number
    kernels = [
        {
            "channel_id": c,
            "kernel_start_ts": start + c,
            "kernel_stop_ts": start + 900,
            "kernel_record_ts": start + 900,
        }
        for c in range(16)
    ]
    times = {"event_trace_ts": {"coll_start_ts": start, "coll_stop_ts": start + 5, "kernel_events": kernels}}
    content = {
        "header": {"id": "0x7f8c496ae9f661", "comm_name": "unknown", "rank": 0, "n_ranks": 8, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": start + 1000, "hostname": "node", "pid": 77,
        },
        "coll_perf": {
            "coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": 1 << 26, "coll_exec_time_us": 900,
            "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 74.565404, "coll_busbw_gbs": 130.489458,
            **(times if verbose else {}),
        },
    }  # fmt: skip
    return json.dumps(content, separators=(",", ":")) + "\n"


def synthetic_run(ranks: int, events: int, *options: str) -> Path:
    """A folder with a synthetic run of so many events per rank."""
    folder = WORK / "-".join([f"synthetic-{ranks}x{events}", *(option.strip("-") for option in options)])
    if not (folder / "truth.json").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        steps = max(6, events // 10_000)
        counts = ["--ranks", ranks, "--events", events, "--steps", steps]
        measure([*RANKSCOPE, "bench", "synthetic", *counts, *options, "-o", folder])
    return folder


def many_files(ranks: int = 256) -> Path:
    """A run of one file of 6.8 MB a rank, each with times of its own."""
    return synthetic_run(ranks, EVENTS_OF_6_8_MB)


def cluster(ranks: int, events: int = 20_000) -> Path:
    """A simulated job of 8 tensor-parallel ranks, 4 pipeline stages, and as many data-parallel replicas as that leaves.

    Of the replicas the first few are simulated, with one slow rank. The others do the same at the same true times, on
    clocks and in process groups of their own. All cores write the files.
    """
    folder = WORK / f"cluster-{ranks}x{events}"
    if not (folder / "made").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        job = Job(
            data=ranks // (TENSOR * STAGES),
            tensor=TENSOR,
            stages=STAGES,
            steps=6,
            layers=8,
            micro_batches=4,
            norm_ns=40_000,
            offset_ns=3_000_000,
            drift_ppb=20_000,
            faults=(Fault("compute", (TENSOR + 1,), 4_000_000),),
        )
        job = replace(job, kernels=kernels_for(job, events))
        part = replace(job, data=min(job.data, SIMULATED_REPLICAS))
        _simulated.append((job, part, _simulate(part), folder))
        with multiprocessing.get_context("fork").Pool(usable_cores()) as pool:
            counts = pool.map(_write_rank, range(ranks), chunksize=4)
        _simulated.pop()
        (folder / "made").write_text(str(sum(counts)), encoding="utf-8")
    return folder


def events_of_cluster(folder: Path) -> int:
    return int((folder / "made").read_text(encoding="utf-8"))


_simulate = functools.cache(simulate)
_simulated: list[tuple[Job, Job, list[RankRun], Path]] = []
"""What forked processes write files of."""


def _write_rank(rank: int) -> int:
    """Returns the number of events."""
    job, part, runs, folder = _simulated[-1]
    stage, data, tensor = job.place(rank)
    run = runs[part.rank_at(stage, data % part.data, tensor)]
    works = [
        replace(work, peer=job.rank_at(part.place(work.peer)[0], data, tensor)) if work.axis == "pp" else work
        for work in run.works
    ]
    trace, name = RankTrace(job, rank), file_name(job, rank)
    write_pieces(folder / name, trace.file(RankRun(run.steps, works), name))
    return trace.count


def gzipped(trace: Trace) -> Trace:
    """The same trace as .json.gz, compressed as torch.profiler does it (zlib's default level)."""
    folder = trace.path.parent.with_name(trace.path.parent.name + "-gz")
    target = folder / f"{trace.path.name}.gz"
    if not _is_made(target):
        folder.mkdir(parents=True, exist_ok=True)
        with trace.path.open("rb") as plain, gzip.open(target, "wb", compresslevel=6) as packed:
            shutil.copyfileobj(plain, packed, 1 << 20)
        _made(target, trace.events)
    return Trace(target, trace.events)


def gpu_log(size: int) -> tuple[Path, int, int]:
    """A folder with short traces of 8 ranks and a log of nvidia-smi of all GPUs, one sample a second, that ends with
    them; its size and its samples."""
    folder = WORK / f"gpu-log-{size}"
    log = folder / "node0.csv"
    job = Job(data=8, steps=4, seed=1)
    line = "{}, {}, GPU-{:036d}, NVIDIA H200, 1755 MHz, 2619 MHz, 651.50 W, 60, 0x0000000000000000\n"
    seconds = max(size // (8 * (len(line) + 50)), 1)
    if not log.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_traces(job, simulate(job), folder)
        with log.open("w") as file:
            file.write(
                "timestamp, index, uuid, name, clocks.current.sm [MHz], clocks.current.memory [MHz], power.draw [W], "
                "temperature.gpu, clocks_event_reasons.active\n"
            )
            for second in range(GPU_LOG_END_S - seconds, GPU_LOG_END_S):
                when = time.strftime("%Y/%m/%d %H:%M:%S.000", time.gmtime(second))
                file.writelines(line.format(when, gpu, gpu) for gpu in range(8))
        os.utime(log, (GPU_LOG_END_S, GPU_LOG_END_S))  # tells the zone of its times
    return folder, log.stat().st_size, 8 * seconds


def into_page_cache(paths: Iterable[Path]) -> None:
    """Read files once, so that the first program measured does not pay for the disk."""
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 24):
                pass


def _note(target: Path) -> Path:
    """A file that exists once the trace is complete, and holds its number of events."""
    return target.with_name("events")


def _is_made(target: Path) -> bool:
    return target.is_file() and _note(target).is_file()


def _made(target: Path, events: int) -> None:
    _note(target).write_text(str(events), encoding="utf-8")


def _events(target: Path) -> int:
    return int(_note(target).read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default=",".join(SIZES), help="(default: %(default)s)")
    parser.add_argument("--source", type=Path, default=STACKS, help="the real trace that is repeated")
    parser.add_argument("--gzip", action="store_true", help="also as .json.gz")
    args = parser.parse_args()
    for size in args.sizes.split(","):
        made = [stacks(size, args.source), synthetic(size)]
        if args.gzip:
            made.append(gzipped(made[0]))
        for trace in made:
            print(
                f"{trace.path.relative_to(ROOT)}: {trace.size / 1e6:,.0f} MB, {trace.events:,} events",
                flush=True,
            )


if __name__ == "__main__":
    main()
