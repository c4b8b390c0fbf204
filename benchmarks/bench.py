"""rankscope against its peers: time, CPU, memory and their ratios, all of one run.

    python benchmarks/bench.py                        every part; prints one table
    python benchmarks/bench.py --write                and writes benchmarks/last.json and docs/performance.md
    python benchmarks/bench.py --only read --sizes 10MB,100MB --repeat 3
    python benchmarks/bench.py --check [--strict]     the small ones, against benchmarks/last.json

Parts: read (whole traces), gzip, ranks (256 files), analyses (three reports from nothing), start (a 10 MB trace until
its first table), nsys (an export), snapshot (of memory), accelerators (files of JAX and Ascend), nccl (an Inspector
log), counters (a log of nvidia-smi beside traces). Inputs are made by traces.py, accelerators.py and snapshots.py and
kept in .bench. Peers are used where they are found; --install-peers installs those that pip can, each into an
environment of its own in .bench/peers.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import accelerators
import companions
import figures
import nsys
import peers
import rocprof
import snapshots
import traces
from figures import JSON_LOAD, OURS, Figures, Part, Row
from measure import CommandError, best_of
from rankscope import __version__
from rankscope.errors import RankscopeError
from rankscope.host import physical_memory_bytes, usable_cores
from rankscope.units import parse_bytes
from traces import RANKSCOPE, ROOT, WORK, Trace

LAST = Path(__file__).with_name("last.json")
PAGE = ROOT / "docs" / "performance.md"
STORE = WORK / "store"
CHECK_SIZES = ("10MB", "100MB")
MEMORY_SHARE = 0.85
REPORTS = "breakdown,overlap,kernels"
ASKED = f"rankscope stats -r {REPORTS}"
PICKLE_LOAD = "pickle.load"
IMPORTS = "python -c 'import duckdb, numpy'"


@dataclass(frozen=True)
class Options:
    sizes: tuple[str, ...] | None
    """None: each part's own."""
    source: Path
    repeat: int
    timeout: float
    trace_processor: str | None
    nsys: str | None
    peers: bool = True
    """False: only what rankscope is compared with by the regression gate."""


class Bench:
    """Measures commands into the rows of one part. What fails becomes a note, and the rest goes on."""

    def __init__(self, part: Part, options: Options) -> None:
        self.part = part
        self.options = options

    def run(
        self,
        program: str,
        source: str,
        command: Sequence[object],
        *,
        size: int = 0,
        events: int = 0,
        from_nothing: bool = False,
    ) -> None:
        """One row. `from_nothing`: without a store, also in every repetition."""
        prepare = remove_store if from_nothing else lambda: None
        print(f"{program}, {source} ...", file=sys.stderr, flush=True)
        try:
            cost = best_of(self.options.repeat, command, prepare, self.options.timeout)
        except CommandError as problem:
            print(problem, file=sys.stderr, flush=True)
            self.note(f"{program}, {source}: {str(problem).splitlines()[-1]}")
        else:
            self.part.rows.append(Row(source, program, cost, size, events))

    def run_trace(
        self, program: str, trace: Trace, kind: str, command: Sequence[object], **how: bool
    ) -> None:
        self.run(program, kind, command, size=trace.size, events=trace.events, **how)

    def run_peer(self, name: str, trace: Trace, kind: str) -> None:
        peer = peers.PYTHON_PEERS[name]
        if peer.version() is None:
            self.note(f"{name}: not installed (--install-peers)")
        else:
            self.run_trace(name, trace, kind, python_code(peer.python, peer.code, trace))

    def note(self, text: str) -> None:
        if text not in self.part.notes:
            self.part.notes.append(text)

    def sizes(self, default: tuple[str, ...]) -> tuple[str, ...]:
        return self.options.sizes or default


def remove_store() -> None:
    shutil.rmtree(STORE, ignore_errors=True)


def python_code(python: object, code: str, trace: Trace) -> list[object]:
    """Limited in its memory: parsers that make an object of every value can fill the machine."""
    limit = int(MEMORY_SHARE * physical_memory_bytes())
    return ["prlimit", f"--as={limit}", python, "-c", code, trace.path]


def ingest(path: Path) -> list[object]:
    return [*RANKSCOPE, "ingest", path, "-o", STORE, "-q"]


def read(bench: Bench) -> None:
    for size in bench.sizes(traces.SIZES):
        for kind, trace in (
            (f"stacks {size}", traces.stacks(size, bench.options.source)),
            (f"synthetic {size}", traces.synthetic(size)),
        ):
            traces.into_page_cache([trace.path])
            bench.run_trace(OURS, trace, kind, ingest(trace.path), from_nothing=True)
            bench.run_trace(JSON_LOAD, trace, kind, python_code(sys.executable, peers.JSON_CODE, trace))
            if not bench.options.peers:
                continue
            bench.run_peer("orjson", trace, kind)
            if bench.options.trace_processor:
                asked = [bench.options.trace_processor, "-Q", "select count(*) from slice", trace.path]
                bench.run_trace("trace_processor", trace, kind, asked)
            else:
                bench.note("trace_processor: not found (on PATH, or --trace-processor)")


def gzip(bench: Bench) -> None:
    for size in bench.sizes(("10MB", "100MB", "300MB", "1GB")):
        trace = traces.stacks(size, bench.options.source)
        packed = traces.gzipped(trace)
        traces.into_page_cache([trace.path, packed.path])
        for program, path in ((OURS, trace.path), (f"{OURS}, .json.gz", packed.path)):
            bench.run_trace(program, trace, f"stacks {size}", ingest(path), from_nothing=True)


def perfetto(bench: Bench) -> None:
    """The same trace as JSON and as rankscope exports it; MB/s are of each file's own size."""
    for size in bench.sizes(("100MB", "300MB", "1GB")):
        trace = traces.stacks(size, bench.options.source)
        exported = traces.exported(trace)
        traces.into_page_cache([trace.path, exported.path])
        bench.run_trace(OURS, trace, f"stacks {size}", ingest(trace.path), from_nothing=True)
        program = f"{OURS}, .perfetto-trace"
        bench.run_trace(program, exported, f"stacks {size}", ingest(exported.path), from_nothing=True)


def ranks(bench: Bench) -> None:
    folder = traces.many_files()
    files = list(folder.glob("rank-*"))
    traces.into_page_cache(files)
    size = sum(file.stat().st_size for file in files)
    kind = f"{len(files)} files of {size / len(files) / 1e6:.1f} MB"
    events = len(files) * traces.EVENTS_OF_6_8_MB
    bench.run(OURS, kind, ingest(folder), size=size, events=events, from_nothing=True)


def analyses(bench: Bench) -> None:
    """On synthetic traces, because overlap needs collectives: the real trace is of a job of one rank."""
    for size in bench.sizes(("300MB", "1GB")):
        trace, kind = traces.synthetic(size), f"synthetic {size}"
        traces.into_page_cache([trace.path])
        command = [*RANKSCOPE, "stats", trace.path, "-r", REPORTS, "--cache", STORE]
        bench.run_trace(ASKED, trace, kind, command, from_nothing=True)
        bench.run_peer("HTA", trace, kind)
        bench.run_peer("TraceLens", trace, kind)


def start(bench: Bench) -> None:
    kind, trace = "hf-trainer-h200, 10 MB", traces.REAL_10MB
    bench.run(IMPORTS, kind, [sys.executable, "-c", "import duckdb, numpy"])
    command = [*RANKSCOPE, "stats", trace, "--cache", STORE]
    bench.run("rankscope stats, the first", kind, command, from_nothing=True)
    bench.run("rankscope stats, the second", kind, command)
    bench.run("rankscope --help", kind, [*RANKSCOPE, "--help"])


def nsys_export(bench: Bench) -> None:
    for size in bench.sizes(("1GB",)):
        path = nsys.make_export(nsys.SOURCE, parse_bytes(size) // 1_000_000)
        bytes_read = path.stat().st_size
        kind = f"export of {bytes_read / 1e9:.2f} GB"
        traces.into_page_cache([path])
        command = [*ingest(path), "--rank", f"0={path}"]
        bench.run(OURS, kind, command, size=bytes_read, events=nsys.count_events(path), from_nothing=True)
        bench.run(
            "rankscope stats -r kernels,runtime_api",
            kind,
            [*RANKSCOPE, "stats", STORE, "-r", "kernels,runtime_api"],
        )
        if bench.options.nsys is None:
            bench.note("nsys: not found (on PATH, in .venv/nsight, or --nsys)")
        else:
            theirs = nsys.stats_command(bench.options.nsys, path)
            bench.run(nsys.STATS, kind, theirs, size=bytes_read)
            if not nsys.wrote_tables(path):
                bench.part.rows = [
                    row for row in bench.part.rows if (row.input, row.program) != (kind, nsys.STATS)
                ]
                bench.note(f"{nsys.STATS}: wrote nothing")


def snapshot(bench: Bench) -> None:
    for size in bench.sizes(("100MB", "1GB")):
        path = WORK / f"snapshot-{size}.rank-0.pickle"
        if not path.exists():
            snapshots.write_snapshot(path, parse_bytes(size))
        traces.into_page_cache([path])
        kind, bytes_read = f"snapshot {size}", path.stat().st_size
        bench.run(OURS, kind, ingest(path), size=bytes_read, from_nothing=True)
        code = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"
        bench.run(PICKLE_LOAD, kind, [sys.executable, "-c", code, path], size=bytes_read)


def other_formats(bench: Bench) -> None:
    """JSON of the same size is read by json.load, to compare with; no other program reads these files into tables."""
    for size in bench.sizes(("100MB",)):
        megabytes = parse_bytes(size) // 1_000_000
        files = {
            f"xplane.pb {size}": accelerators.xplane(megabytes),
            f"trace_view.json {size}": accelerators.trace_view(megabytes),
        }
        for kind, trace in files.items():
            traces.into_page_cache([trace.path])
            bench.run_trace(OURS, trace, kind, ingest(trace.path), from_nothing=True)
            if trace.path.suffix == ".json":
                bench.run_trace(JSON_LOAD, trace, kind, python_code(sys.executable, peers.JSON_CODE, trace))


def nccl_log(bench: Bench) -> None:
    for size in bench.sizes(("100MB",)):
        for verbose in (False, True):
            trace = traces.inspector_log(size, verbose)
            traces.into_page_cache([trace.path])
            kind = f"{'verbose' if verbose else 'short'} lines, {size}"
            bench.run_trace(OURS, trace, kind, ingest(trace.path), from_nothing=True)


def counters(bench: Bench) -> None:
    """The traces are short. Of a log of hours, what is far from them is passed over; of one of minutes all is read."""
    for size in bench.sizes(("10MB", "100MB")):
        folder, bytes_read, samples = traces.gpu_log(parse_bytes(size))
        traces.into_page_cache(folder.iterdir())
        bench.run(
            OURS, f"log of {size}, 8 GPUs", ingest(folder), size=bytes_read, events=samples, from_nothing=True
        )


def rocprof_files(bench: Bench) -> None:
    """A database against Python's sqlite3, and JSON against json.load."""
    for size in bench.sizes(("300MB",)):
        megabytes = parse_bytes(size) // 1_000_000
        database, text = rocprof.make_database(megabytes), rocprof.make_json(megabytes)
        for path, peer, code in (
            (database, rocprof.SELECT, rocprof.SELECT_CODE),
            (text, JSON_LOAD, peers.JSON_CODE),
        ):
            traces.into_page_cache([path])
            bytes_read = path.stat().st_size
            kind = f"{path.suffix[1:]} of {bytes_read / 1e6:.0f} MB"
            events = 2 * rocprof.launches(megabytes, path.suffix[1:])
            command = [*ingest(path), "--rank", f"0={path}"]
            bench.run(OURS, kind, command, size=bytes_read, events=events, from_nothing=True)
            bench.run(peer, kind, [sys.executable, "-c", code, path], size=bytes_read, events=events)


def beside(bench: Bench) -> None:
    """What lies beside a trace: the folder is read with it, and the trace alone is the measure."""
    for size in bench.sizes(("100MB",)):
        folder = WORK / f"execution-trace-{size}"
        path, nodes = companions.execution_trace(folder, parse_bytes(size))
        kind = f"execution trace of {size}"
        traces.into_page_cache([path, folder / "rank0.json"])
        bench.run(
            "its Kineto trace alone", kind, ingest(folder / "rank0.json"), events=nodes, from_nothing=True
        )
        bytes_read = path.stat().st_size
        bench.run(OURS, kind, ingest(folder), size=bytes_read, events=2 * nodes, from_nothing=True)
        code = f"import json; json.load(open({str(path)!r}))"
        bench.run(JSON_LOAD, kind, [sys.executable, "-c", code], size=bytes_read)
    path, events = companions.replays(WORK / "replays", 1000)
    traces.into_page_cache([path])
    bytes_read = path.stat().st_size
    bench.run(
        OURS, "1000 replays of 500 kernels", ingest(path), size=bytes_read, events=events, from_nothing=True
    )


@dataclass(frozen=True)
class Kind:
    title: str
    base: str
    measure: Callable[[Bench], None]


PARTS = {
    "read": Kind("A whole trace read into the store", OURS, read),
    "gzip": Kind("The same trace as .json.gz", OURS, gzip),
    "perfetto": Kind("The same trace as .perfetto-trace", OURS, perfetto),
    "ranks": Kind("Many small files", "", ranks),
    "analyses": Kind("Three reports from nothing", ASKED, analyses),
    "start": Kind("A small trace until its first table", IMPORTS, start),
    "nsys": Kind("An nsys export", nsys.STATS, nsys_export),
    "snapshot": Kind("A memory snapshot", PICKLE_LOAD, snapshot),
    "accelerators": Kind("JAX's xplane.pb and Ascend's trace_view.json", OURS, other_formats),
    "nccl": Kind("A log of NCCL Inspector", OURS, nccl_log),
    "counters": Kind("A log of nvidia-smi beside traces", "", counters),
    "rocprof": Kind("Files of rocprofv3", OURS, rocprof_files),
    "beside": Kind("Execution traces and replayed graphs", "", beside),
}


def measure_part(name: str, options: Options) -> Part:
    kind = PARTS[name]
    part = Part(name, kind.title, kind.base, datetime.date.today().isoformat())
    part.load_before = os.getloadavg()[0]
    bench = Bench(part, options)
    try:
        kind.measure(bench)
    except (CommandError, OSError, RankscopeError, ValueError) as problem:
        print(problem, file=sys.stderr, flush=True)
        bench.note(f"not complete: {str(problem).splitlines()[0]}")
    finally:
        remove_store()
    part.load_after = os.getloadavg()[0]
    return part


def machine(options: Options) -> dict[str, str]:
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("duckdb", "numpy", "isal")]
    found = [(peer.name, peer.version()) for peer in peers.PYTHON_PEERS.values()]
    programs = [path for path in (options.trace_processor, options.nsys) if path]
    compared = [f"{name} {version}" for name, version in found if version]
    compared += [peers.program_version(path) for path in programs]
    return {
        "cores": str(usable_cores()),
        "CPU": cpu(),
        "memory": f"{physical_memory_bytes() / 1e9:.0f} GB",
        "kernel": platform.release(),
        "Python": platform.python_version(),
        "rankscope": f"{__version__}, {', '.join(versions)}",
        "peers": ", ".join(compared),
    }


def cpu() -> str:
    """lscpu knows it on every architecture."""
    done = subprocess.run(
        ["lscpu"], capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"}
    )
    names = [
        line.partition(":")[2].strip() for line in done.stdout.splitlines() if line.startswith("Model name")
    ]
    return f"{names[0] if names else 'unknown'} ({platform.machine()})"


def write(now: Figures) -> None:
    """The parts that were measured replace those of the last table; the others stay if they are of this machine."""
    parts = now.parts
    if LAST.is_file() and (last := figures.load(LAST)).machine == now.machine:
        parts = {
            name: {**last.parts, **now.parts}[name] for name in PARTS if name in {**last.parts, **now.parts}
        }
    complete = Figures(now.machine, parts)
    figures.save(complete, LAST)
    figures.write_between_markers(PAGE, figures.markdown(figures.load(LAST)))
    print(f"Wrote {LAST.relative_to(ROOT)} and {PAGE.relative_to(ROOT)}")


def check(options: Options, strict: bool) -> int:
    """The regression gate: CPU time as a ratio to json.load's, against that of the last committed table."""
    if not LAST.is_file():
        print(
            f"There is no {LAST.relative_to(ROOT)} to compare with: python benchmarks/bench.py --write makes it"
        )
        return 0
    last = figures.load(LAST)
    now = measure_part("read", options)
    print(figures.plain_table([now]))
    if last.machine["CPU"] != cpu():
        print(f"The last figures are of another machine: {last.machine['CPU']}")
    lines = figures.slower(last.parts["read"], now)
    for line in lines:
        print(f"warning: {line}")
    if lines and figures.was_busy(now, usable_cores()):
        print(f"Other programs are running (load {now.load_before:.1f}): measure again when they have ended")
    if not lines:
        print(f"No input is more than {figures.TOLERANCE:.0%} slower than in {LAST.relative_to(ROOT)}")
    return 1 if strict and lines else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(PARTS), metavar="PART,...", help="(default: %(default)s)")
    parser.add_argument("--sizes", metavar="SIZE,...", help="10MB,100MB,... (default: each part's own)")
    parser.add_argument("--source", type=Path, default=traces.STACKS, help="the real trace that is repeated")
    parser.add_argument(
        "--repeat",
        type=int,
        default=3,
        metavar="N",
        help="the least of N runs, if it is under 10 CPU seconds (3)",
    )
    parser.add_argument(
        "--timeout", type=float, default=3600, metavar="S", help="of one command (default: 3600)"
    )
    parser.add_argument(
        "--install-peers", action="store_true", help="install the Python peers that are missing"
    )
    parser.add_argument("--trace-processor", default=peers.find_trace_processor(), metavar="PATH")
    parser.add_argument("--nsys", default=peers.find_nsys(), metavar="PATH")
    parser.add_argument(
        "--write", action="store_true", help="write benchmarks/last.json and docs/performance.md"
    )
    parser.add_argument("--check", action="store_true", help="compare with benchmarks/last.json")
    parser.add_argument("--strict", action="store_true", help="--check: exit 1 if something is slower")
    args = parser.parse_args()
    names = args.only.split(",")
    if unknown := set(names) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    WORK.mkdir(exist_ok=True)
    sizes = tuple(args.sizes.split(",")) if args.sizes else None
    if args.check:
        small = Options(sizes or CHECK_SIZES, args.source, args.repeat, args.timeout, None, None, peers=False)
        return check(small, args.strict)
    if args.install_peers:
        peers.install_missing()
    options = Options(sizes, args.source, args.repeat, args.timeout, args.trace_processor, args.nsys)
    now = Figures(machine(options), {name: measure_part(name, options) for name in names})
    print("\n".join(f"{name}: {value}" for name, value in now.machine.items()) + "\n")
    print(figures.plain_table(list(now.parts.values())))
    for part in now.parts.values():
        print(f"\n{part.name}: load {part.load_before:.1f} before, {part.load_after:.1f} after")
        print("\n".join(part.notes))
    if args.write:
        write(now)
    return 0


if __name__ == "__main__":
    sys.exit(main())
