"""rankscope against its peers: time, CPU, memory and their ratios, all of one run.

    python benchmarks/bench.py                        every part; prints one table
    python benchmarks/bench.py --write                and writes benchmarks/last.json and docs/performance.md
    python benchmarks/bench.py --only read --sizes 10MB,100MB --repeat 3
    python benchmarks/bench.py --check [--strict]     the small ones, against benchmarks/last.json
    python benchmarks/bench.py --scaling --budget 400 --json FILE
                                                      cores, jobs and ranks alone; FILE is written as it goes
    python benchmarks/bench.py --page                 docs/performance.md and docs/scale.md again, from
                                                      benchmarks/last.json and benchmarks/scaling.json

Parts: read (whole traces), gzip, analyses (three reports from nothing), reports (all of a large run), start
(a 10 MB trace until its first table), nsys (an export), snapshot (of memory), accelerators (files of JAX and Ascend),
nccl (an Inspector log), counters (a log of nvidia-smi beside traces), rocprof, replays, viewer (tiles and frames). With
--scaling: cores (one file), jobs (many files), ranks (questions about a run). They may be measured on another machine:
scaling.json has its description. Inputs are made by traces.py, accelerators.py and snapshots.py and kept in .bench.
Peers are used where they are found; --install-peers installs those that pip can, each into an environment of its own in
.bench/peers. What is missing is left out, and noted.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import math
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import accelerators
import at_scale
import companions
import figures
import nsys
import peers
import rocprof
import scaling
import snapshots
import traces
from figures import JSON_LOAD, OURS, SCANNER, Figures, Part, Row
from measure import CommandError, Cost, best_of
from rankscope import __version__
from rankscope.errors import RankscopeError
from rankscope.host import physical_memory_bytes, usable_cores
from rankscope.units import parse_bytes, parse_count
from scaling import IMPORTS
from traces import RANKSCOPE, ROOT, WORK, Trace

LAST = Path(__file__).with_name("last.json")
SCALING = Path(__file__).with_name("scaling.json")
"""Of the machine where cost was measured by cores, jobs and ranks."""
PAGE, SCALE_PAGE = ROOT / "docs" / "performance.md", ROOT / "docs" / "scale.md"
STORE = WORK / "store"
CHECK_SIZES = ("10MB", "100MB")
MEMORY_SHARE = 0.85
REPORTS = "breakdown,overlap,kernels"
REPORT_RANKS = 8
ASKED = f"rankscope stats -r {REPORTS}"
PICKLE_LOAD = "pickle.load"


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
    deadline: float = math.inf
    """Of time.monotonic(): nothing is started after it, and what runs is ended."""


class Bench:
    """Measures commands into the rows of one part. What fails becomes a note, and the rest goes on."""

    def __init__(self, part: Part, options: Options, save: Callable[[], None] = lambda: None) -> None:
        """`save` is called after each row."""
        self.part = part
        self.options = options
        self.save = save

    @property
    def store(self) -> Path:
        return STORE

    def time_left(self) -> float:
        """Of a command, in seconds; 0 if the budget is spent, which is noted."""
        left = max(0.0, self.options.deadline - time.monotonic())
        if not left:
            self.note("not complete: the time was spent")
        return min(left, self.options.timeout)

    def run(
        self,
        program: str,
        source: str,
        command: Sequence[object],
        *,
        size: int = 0,
        events: int = 0,
        from_nothing: bool = False,
        cores: int | None = None,
        repeat: int | None = None,
    ) -> None:
        """One row. `from_nothing`: without a store, also in every repetition."""
        timeout = self.time_left()
        if not timeout:
            return
        prepare = remove_store if from_nothing else lambda: None
        print(f"{program}, {source} ...", file=sys.stderr, flush=True)
        try:
            cost = best_of(repeat or self.options.repeat, command, prepare, timeout, cores)
        except CommandError as problem:
            print(problem, file=sys.stderr, flush=True)
            self.note(f"{program}, {source}: {str(problem).splitlines()[-1]}")
        else:
            self.add(program, source, cost, size, events)

    def add(self, program: str, source: str, cost: Cost, size: int = 0, events: int = 0) -> None:
        self.part.rows.append(Row(source, program, cost, size, events))
        self.save()

    def run_trace(
        self,
        program: str,
        trace: Trace,
        kind: str,
        command: Sequence[object],
        *,
        from_nothing: bool = False,
        cores: int | None = None,
    ) -> None:
        size, events = trace.size, trace.events
        self.run(program, kind, command, size=size, events=events, from_nothing=from_nothing, cores=cores)

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
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))\n{code}"
    return [python, "-c", limited, trace.path]


def ingest(path: Path) -> list[object]:
    return scaling.ingest(path, STORE)


def read(bench: Bench) -> None:
    for size in bench.sizes(traces.SIZES):
        for kind, trace in (
            (f"stacks {size}", traces.stacks(size, bench.options.source)),
            (f"synthetic {size}", traces.synthetic(size)),
        ):
            traces.into_page_cache([trace.path])
            bench.run_trace(OURS, trace, kind, ingest(trace.path), from_nothing=True)
            for program, code in ((SCANNER, peers.SCANNER_CODE), (JSON_LOAD, peers.JSON_CODE)):
                bench.run_trace(program, trace, kind, python_code(sys.executable, code, trace))
            if not bench.options.peers:
                continue
            bench.run_peer("orjson", trace, kind)
            if bench.options.trace_processor:
                command = peers.trace_processor(bench.options.trace_processor, trace.path)
                bench.run_trace("trace_processor", trace, kind, command)
            else:
                bench.note(peers.NO_TRACE_PROCESSOR)


def gzip(bench: Bench) -> None:
    for size in bench.sizes(("10MB", "100MB", "300MB", "1GB")):
        trace = traces.stacks(size, bench.options.source)
        packed = traces.gzipped(trace)
        traces.into_page_cache([trace.path, packed.path])
        for program, path in ((OURS, trace.path), (f"{OURS}, .json.gz", packed.path)):
            bench.run_trace(program, trace, f"stacks {size}", ingest(path), from_nothing=True)


def analyses(bench: Bench) -> None:
    """On synthetic traces, because overlap needs collectives: the real trace is of a job of one rank."""
    for size in bench.sizes(("300MB", "1GB")):
        trace, kind = traces.synthetic(size), f"synthetic {size}"
        traces.into_page_cache([trace.path])
        command = [*RANKSCOPE, "stats", trace.path, "-r", REPORTS, "--cache", STORE]
        bench.run_trace(ASKED, trace, kind, command, from_nothing=True)
        bench.run_peer("HTA", trace, kind)
        bench.run_peer("TraceLens", trace, kind)


def reports(bench: Bench) -> None:
    """All reports in one process, after reading: eight ranks, and more and more events."""
    for text in ("1e6", "1e7", "3e7"):
        events = parse_count(text)
        folder = traces.synthetic_run(REPORT_RANKS, events // REPORT_RANKS)
        kind = f"{REPORT_RANKS} ranks, {events:,} events"
        traces.into_page_cache(folder.glob("rank-*"))
        bench.run(OURS, kind, ingest(folder), events=events, from_nothing=True)
        bench.run("rankscope stats -r all", kind, [*RANKSCOPE, "stats", STORE, "-r", "all"], events=events)
        if not bench.time_left():
            return


def viewer_frames(bench: Bench) -> None:
    """Not programs but moments: p50 and p95 are notes."""
    for name in ("tiles", "frames"):
        command = [sys.executable, str(Path(__file__).with_name("viewer.py")), name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
        measured = ", ".join(line.strip() for line in lines[1:])
        bench.note(
            f"{name}, 30 million slices in 64 ranks: "
            + (measured if done.returncode == 0 else f"not measured: {lines[-1]}")
        )


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


def replays(bench: Bench) -> None:
    """A trace of a CUDA graph that is replayed again and again."""
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
    grid: bool = False


PARTS = {
    "read": Kind("A whole trace read into the store", OURS, read),
    "gzip": Kind("The same trace as .json.gz", OURS, gzip),
    "analyses": Kind("Three reports from nothing", ASKED, analyses),
    "reports": Kind("All reports of a run", "", reports),
    "start": Kind("A small trace until its first table", IMPORTS, start),
    "nsys": Kind("An nsys export", nsys.STATS, nsys_export),
    "snapshot": Kind("A memory snapshot", PICKLE_LOAD, snapshot),
    "accelerators": Kind("JAX's xplane.pb and Ascend's trace_view.json", OURS, other_formats),
    "nccl": Kind("A log of NCCL Inspector", OURS, nccl_log),
    "counters": Kind("A log of nvidia-smi beside traces", "", counters),
    "rocprof": Kind("Files of rocprofv3", OURS, rocprof_files),
    "replays": Kind("Replayed graphs", "", replays),
    "viewer": Kind("The viewer's tiles and frames", "", viewer_frames),
}
SCALING_PARTS = {
    "cores": Kind("One file on more and more cores", "", scaling.cores, grid=True),
    "jobs": Kind("Many small files, more and more at a time", "", scaling.jobs, grid=True),
    "ranks": Kind("Runs of many ranks", IMPORTS, scaling.ranks, grid=True),
}


def measure_parts(names: Sequence[str], options: Options, target: Path | None = None) -> Figures:
    """`target` is written after each row."""
    now = Figures(machine(options), {})

    def save() -> None:
        if target is not None:
            figures.save(now, target)

    for name in names:
        now.parts[name] = empty_part(name)
        measure_part(now.parts[name], options, save)
    return now


def empty_part(name: str) -> Part:
    kind = (PARTS | SCALING_PARTS)[name]
    return Part(name, kind.title, kind.base, datetime.date.today().isoformat(), grid=kind.grid)


def measure_part(part: Part, options: Options, save: Callable[[], None] = lambda: None) -> None:
    part.load_before = part.load_after = os.getloadavg()[0]
    bench = Bench(part, options, save)
    try:
        (PARTS | SCALING_PARTS)[part.name].measure(bench)
    except (CommandError, OSError, RankscopeError, ValueError) as problem:
        print(problem, file=sys.stderr, flush=True)
        bench.note(f"not complete: {str(problem).splitlines()[0]}")
    finally:
        remove_store()
    part.load_after = os.getloadavg()[0]
    save()


def machine(options: Options) -> dict[str, str]:
    installed = {each.name.lower(): each.version for each in importlib.metadata.distributions()}
    versions = [f"{name} {installed.get(name, 'of unknown version')}" for name in ("duckdb", "numpy", "isal")]
    peer_versions = [(peer.name, peer.version()) for peer in peers.PYTHON_PEERS.values()]
    programs = [path for path in (options.trace_processor, options.nsys) if path]
    compared = [f"{name} {version}" for name, version in peer_versions if version]
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
    asked = ["lscpu"] if shutil.which("lscpu") else ["cat", "/proc/cpuinfo"]
    done = subprocess.run(
        asked, capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"}
    )
    names = [
        line.partition(":")[2].strip()
        for line in done.stdout.splitlines()
        if line.lower().startswith("model name")
    ]
    return f"{names[0] if names else 'unknown'} ({platform.machine()})"


def write(now: Figures) -> None:
    """The parts that were measured replace those of the last table; the others stay if they are of this machine."""
    parts = now.parts
    if LAST.is_file() and (last := figures.load(LAST)).machine == now.machine:
        parts = {
            name: {**last.parts, **now.parts}[name] for name in PARTS if name in {**last.parts, **now.parts}
        }
    figures.save(Figures(now.machine, parts), LAST)
    print(f"Wrote {LAST.relative_to(ROOT)}")
    write_pages()


def write_pages() -> None:
    """What the pages say was measured, from the committed figures alone."""
    last = figures.load(LAST)
    many = figures.load(SCALING) if SCALING.is_file() else None
    text = figures.markdown(last)
    if many:
        text += "\n\n## How it scales\n\n" + figures.markdown(many)
    figures.write_between_markers(PAGE, text)
    print(f"Wrote {PAGE.relative_to(ROOT)}")
    if many:
        figures.write_between_markers(SCALE_PAGE, at_scale.markdown(many))
        print(f"Wrote {SCALE_PAGE.relative_to(ROOT)}")


def check(options: Options, strict: bool) -> int:
    """The regression gate: CPU time as a ratio to that of the C scanner, against that of the last committed table.

    On the same CPU and Python, to that of json.load too: it also tells where the scanner itself is slower.
    """
    if not LAST.is_file():
        print(
            f"There is no {LAST.relative_to(ROOT)} to compare with: python benchmarks/bench.py --write makes it"
        )
        return 0
    last = figures.load(LAST)
    now = empty_part("read")
    measure_part(now, options)
    print(figures.plain_table([now]))
    references = [SCANNER, JSON_LOAD]
    if (last.machine["CPU"], last.machine["Python"]) != (cpu(), platform.python_version()):
        print(f"The last figures are of another machine: {last.machine['CPU']}")
        references.remove(JSON_LOAD)
    lines = figures.slower(last.parts["read"], now, references=references)
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
    parser.add_argument(
        "--only",
        metavar="PART,...",
        help=f"(default: {','.join(PARTS)}; with --scaling {','.join(SCALING_PARTS)})",
    )
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
    parser.add_argument("--scaling", action="store_true", help="how cost grows with cores, jobs and ranks")
    parser.add_argument(
        "--budget",
        type=float,
        default=math.inf,
        metavar="S",
        help="end after S seconds; what is left is noted",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here after each row")
    parser.add_argument("--page", action="store_true", help="write the pages from the committed figures")
    parser.add_argument("--check", action="store_true", help="compare with benchmarks/last.json")
    parser.add_argument("--strict", action="store_true", help="--check: exit 1 if something is slower")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else list(SCALING_PARTS if args.scaling else PARTS)
    if unknown := set(names) - set(SCALING_PARTS if args.scaling else PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if args.page:
        write_pages()
        return 0
    WORK.mkdir(exist_ok=True)
    sizes = tuple(args.sizes.split(",")) if args.sizes else None
    if args.check:
        small = Options(sizes or CHECK_SIZES, args.source, args.repeat, args.timeout, None, None, peers=False)
        return check(small, args.strict)
    if args.install_peers:
        peers.install_missing()
    deadline = time.monotonic() + args.budget
    options = Options(
        sizes,
        args.source,
        args.repeat,
        args.timeout,
        args.trace_processor,
        args.nsys,
        deadline=deadline,
    )
    now = measure_parts(names, options, args.json)
    print("\n".join(f"{name}: {value}" for name, value in now.machine.items()) + "\n")
    print(figures.plain_table(list(now.parts.values())))
    for part in now.parts.values():
        print(f"\n{part.name}: load {part.load_before:.1f} before, {part.load_after:.1f} after")
        print("\n".join(part.notes))
    if args.write and args.scaling:
        figures.save(now, SCALING)
        write_pages()
    elif args.write:
        write(now)
    return 0


if __name__ == "__main__":
    sys.exit(main())
