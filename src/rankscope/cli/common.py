"""What commands share: options, opening a run, progress, output files."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rankscope.cli.options import READING, add_options, positive
from rankscope.errors import StoreError, UsageError
from rankscope.text.visible_text import unchecked, visible_or_colour

if TYPE_CHECKING:
    from rankscope.analysis.core.result import Result
    from rankscope.analysis.core.scope import Scope
    from rankscope.store.ingest import Ingested, IngestProgress, Options
    from rankscope.store.on_dask.option import DaskCluster
    from rankscope.text.run_words import Runs
    from rankscope.timeline.run import Run
    from rankscope.views.envelope import Question

DEFAULT_ROWS = 20
_DEEPEST_RUN = 3
"""Levels of folders in which a run is looked for, this one included."""
_QUIET_SECONDS = 2.0
"""No progress is shown before."""
_REDRAW_SECONDS = 0.1
_PLAIN_LINE_SECONDS = 10.0
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


_RUN = """\
[RUN ...]  a folder with a trace for each rank, or trace files (default: the newest run folder here)
"""
_TOOLS = """\
--nsys PATH  the nsys that exports .nsys-rep files (default: on PATH)
--ncu PATH  the ncu that reads .ncu-rep files (default: on PATH)
-q, --quiet  no progress, only errors
"""
_WINDOW = """\
--window {steps,file}  what figures cover: the steps, or the whole file (default: steps, where there are any)
"""
FROM_EVENTS = """\
--from-events  compute from the events, not from the sums that the store keeps (same figures, slower)
"""
CLOCKS = """\
--clocks {aligned,raw}  ranks aligned by their collectives, or each by its own wall clock (default: aligned)
"""
_REMOTE = """\
--ssh COMMAND  such as 'ssh -i KEY -J GATE' (default: ssh)
--remote-rankscope COMMAND  over there, such as .venv/bin/rankscope or 'python3 -m rankscope' (default: rankscope)
"""
FAIL_ON = """\
--fail-on {info,warning,critical}  exit code 3 when a finding is this severe, or when the recording cannot tell
"""


def add_run_argument(parser: argparse.ArgumentParser, text: str = "", **settings: Any) -> None:
    """RUN, or another table of arguments with it. Without RUN the newest run folder is taken."""
    add_options(parser, text or _RUN, **{"run": Path, **settings})
    parser.finds_run = True  # type: ignore[attr-defined]


def run_folders(folder: Path) -> list[Path]:
    """The run folders in a folder and below, the newest last."""
    from rankscope.capture.run_folder import RUN_MANIFEST

    manifests = (path for depth in range(_DEEPEST_RUN) for path in folder.glob("*/" * depth + RUN_MANIFEST))
    return [path.parent for path in sorted(manifests, key=lambda path: path.stat().st_mtime_ns)]


def newest_run() -> Path:
    """The newest run folder here or below, which is said."""
    folders = run_folders(Path())
    if not folders:
        raise UsageError(
            "no RUN is named, and there is no run folder here",
            why=f"None of the folders in {Path.cwd()} is one that `rankscope profile` made.",
            hint="Name a run: a folder with a trace for each rank, or a trace file. To try one: rankscope demo",
        )
    say(f"rankscope: the newest run here: {folders[-1]}")
    return folders[-1]


def add_reading_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("reading raw traces (done once; later calls use the store)")
    add_options(group, READING + _TOOLS, cache=Path, jobs=positive)


def say(text: str) -> None:
    """A line for the user beside the output."""
    print(text, file=sys.stderr, flush=True)


def add_scope_options(parser: argparse.ArgumentParser) -> None:
    """Which ranks and steps figures are about."""
    add_part_options(parser, "all steps")
    add_options(parser, _WINDOW, window="steps")


def add_part_options(parser: argparse.ArgumentParser | argparse._ArgumentGroup, all_steps: str) -> None:
    """Which part of a run to take; `all_steps` is what happens without --steps."""
    add_options(parser, "--ranks LIST  only these ranks: 0,8-15 or all (default: all)", ranks="all")
    add_options(parser, f"--steps A:B  only steps A to B, both included (default: {all_steps})")


def add_remote_options(parser: argparse.ArgumentParser, title: str) -> None:
    add_options(parser.add_argument_group(title), _REMOTE, ssh="ssh", remote_rankscope="rankscope")


def exit_code(fail_on: str | None, results: Iterable[Result], must_answer: Iterable[Result] = ()) -> int:
    """3 when --fail-on is given and a finding reaches it, or one of `must_answer` cannot be answered; else 0."""
    from rankscope.analysis.core.result import SEVERITIES

    if fail_on is None:
        return 0
    bad = SEVERITIES[SEVERITIES.index(fail_on) :]
    if any(finding.severity in bad for result in results for finding in result.findings):
        return 3
    unanswered = [result for result in must_answer if result.unanswered]
    for result in unanswered:
        say(f"rankscope: cannot answer {result.name}: {result.unanswered}")
    return 3 if unanswered else 0


def current_reports(text: str) -> list[str]:
    """The reports in 'kernels,short', by the names they have today; a line on stderr tells who uses an old one."""
    from rankscope.text.spelling import RENAMED_REPORTS

    names, renamed = [], {}
    for name in (part.strip() for part in text.split(",")):
        report, colon, row = name.partition(":")  # of an evidence id
        if report in RENAMED_REPORTS:
            renamed[report] = RENAMED_REPORTS[report]
        names.append(renamed.get(report, report) + colon + row)
    if renamed:
        listed = ", ".join(f"{old} is now {new}" for old, new in renamed.items())
        say(f"rankscope: a report was renamed ({listed}); the next release drops the old name")
    return names


def rows_shown(args: argparse.Namespace) -> int | None:
    """Of each table; None for all rows."""
    if not args.top:
        return DEFAULT_ROWS if args.format in ("table", "markdown") else None
    if args.top == "all":
        return None
    from rankscope.units import parse_count

    if rows := parse_count(args.top):
        return rows
    raise UsageError("--top 0 shows nothing", why="It is a number of rows.", hint="Write it like --top 5.")


def scope_of(args: argparse.Namespace) -> Scope:
    from rankscope.analysis.core.machine import machine_from
    from rankscope.analysis.core.scope import Scope, parse_ranks, parse_steps

    machine = machine_from(*(getattr(args, name, None) for name in ("peak", "bandwidth", "baseline")))
    whole_file = getattr(args, "window", "steps") == "file"
    if args.steps and whole_file:
        raise UsageError(
            "--steps and --window file exclude each other",
            why="--window file means all that was recorded, also outside steps.",
            hint="Leave out one of them.",
        )
    steps = parse_steps(args.steps) if args.steps else None
    return Scope(parse_ranks(args.ranks), steps, whole_file, machine)


def window_words(args: argparse.Namespace) -> tuple[str, ...]:
    """The options that chose the window, to be repeated in commands; empty for the default."""
    if args.steps:
        return "--steps", args.steps
    return ("--window", "file") if args.window == "file" else ()


def run_paths(args: argparse.Namespace) -> list[Path]:
    return args.run if isinstance(args.run, list) else [args.run]


def question_of(args: argparse.Namespace) -> Question:
    from rankscope.views.envelope import Question

    return Question(runs_of(args))


def runs_of(args: argparse.Namespace) -> Runs:
    """The run of a command line, and the window where the command has one, for the commands of the answer."""
    from rankscope.text.run_words import RunWords

    window = window_words(args) if hasattr(args, "window") else ()
    return {"RUN": RunWords(tuple(map(str, run_paths(args))), window)}


def open_run(
    args: argparse.Namespace,
    path: Path | None = None,
    comm_patterns: tuple[str, ...] = (),
    prefer: str = "",
    for_kept: bool = False,
) -> Run:
    """The run of a command line, or that at `path`; raw traces are read first, and problems are printed to stderr.

    `prefer` is the format to use where several tools recorded a rank.
    `for_kept`: only what is kept is wanted. numpy is not imported, and tables are not checked but for their size.
    """
    use_tools(args)
    from rankscope.timeline.run import open_run as open_traces

    if not for_kept:
        import_numpy_with_one_thread()
    started = time.monotonic()
    run = open_traces(
        [path] if path else run_paths(args),
        cache=args.cache,
        jobs=args.jobs,
        dask=dask_cluster(args),
        clocks=getattr(args, "clocks", "aligned"),
        prefer=prefer,
        mix=args.mix,
        comm_patterns=comm_patterns,
        from_events=getattr(args, "from_events", False),
        by_size=for_kept,
        progress=_ingest_progress(args.quiet),
        on_read=lambda ingested: _say_what_was_read(ingested, started, args.quiet, is_asked=True),
    )
    _keep_rollups(run, args)
    return run


def open_part(
    args: argparse.Namespace, target: Path | None = None, path: Path | None = None
) -> tuple[Run, Scope]:
    """The run and the part of it that --ranks and --steps choose; `target` must not exist, but with -f."""
    if target is not None:
        check_target(target, args.force)
    scope = scope_of(args)
    run = open_run(args, path)
    scope.check(run)
    return run, scope


def _keep_rollups(run: Run, args: argparse.Namespace) -> None:
    """Summarise the ranks that are not yet, showing progress, where reports do not make what they need sooner."""
    from rankscope.analysis.core.rollups import fits_in_memory

    if fits_in_memory(run):  # most runs: the other analyses, which take 0.2 s to import, are not needed here
        return
    from rankscope.analysis.rollups import keep_rollups
    from rankscope.host import usable_cores

    progress = Progress(sys.stderr)
    keep_rollups(
        run,
        args.jobs or usable_cores(),
        (lambda done, ranks: None) if args.quiet else progress.count_rollups,
        say,
    )
    progress.end()


def dask_cluster(args: argparse.Namespace) -> DaskCluster | None:
    """The cluster of --dask; None to read without Dask."""
    if args.dask is None:
        if args.dask_option:
            raise UsageError(
                "--dask-option needs --dask",
                why="It is about the jobs of a cluster.",
                hint="For example: --dask slurm",
            )
        return None
    from rankscope.store.on_dask.option import LOCAL, parse_dask

    if args.jobs and args.dask != LOCAL:
        raise UsageError(
            f"--jobs cannot be used with --dask {args.dask}",
            why="It is a number of processes of this machine.",
            hint="With slurm and pbs: --dask-option ppn=N",
        )
    return parse_dask(args.dask, args.dask_option)


def expect_reading(args: argparse.Namespace) -> None:
    """Begin what can happen while this process loads its modules: connecting to DuckDB, and if traces must be read,
    starting a reading process."""
    from rankscope.store.database import connect_early

    import_numpy_with_one_thread()
    connect_early()
    from rankscope.store.index import INDEX_FILE, store_folder

    paths = run_paths(args)
    try:
        if (
            args.dask
            or not all(path.exists() for path in paths)
            or (store_folder(paths, None, args.cache) / INDEX_FILE).exists()
        ):
            return
        from rankscope.readers import looks_like_a_trace
        from rankscope.store.pool import need_no_worker, start_early
        from rankscope.timeline.reading import read_trace

        files = [file for path in paths for file in (path.iterdir() if path.is_dir() else [path])]
        if need_no_worker([file for file in files if file.is_file() and looks_like_a_trace(file)]):
            return
    except OSError:  # what may not be looked at is explained when it is read
        return
    use_tools(args)
    start_early(read_trace)


def use_tools(args: argparse.Namespace) -> None:
    """--nsys PATH and --ncu PATH, for the processes that read the files."""
    if not args.nsys and not args.ncu:
        return
    from rankscope import tools

    if args.nsys:
        os.environ[tools.NSYS_VARIABLE] = str(tools.find_tool("nsys", args.nsys).path)
    if args.ncu:
        os.environ[tools.NCU_VARIABLE] = str(tools.find_tool("ncu", args.ncu).path)


def may_be_kept(args: argparse.Namespace) -> bool:
    """Whether the store has answers: then nothing is begun that may not be needed."""
    from rankscope.store.derived import ANSWERS, path_of
    from rankscope.store.index import INDEX_FILE, store_folder

    paths = run_paths(args)
    is_store = len(paths) == 1 and (paths[0] / INDEX_FILE).is_file()
    return path_of(paths[0] if is_store else store_folder(paths, None, args.cache), ANSWERS).exists()


def import_numpy_with_one_thread() -> None:
    """The matrices are small: on a busy login node BLAS threads spend seven times as long waiting as working. The
    variable is removed again, so that a job that is started later does not inherit it."""
    if os.environ.get(_BLAS_THREADS) is None:
        os.environ[_BLAS_THREADS] = "1"
        import numpy  # noqa: F401 - it reads the variable as it is loaded

        del os.environ[_BLAS_THREADS]


def show(text: str) -> None:
    """Print what `views` have made, or data: a file or pipe gets it unchanged. Untrusted text in a table is clean, and
    its control characters are our colours. A terminal obeys nothing else, should a name have been forgotten."""
    stream = unchecked(sys.stdout)
    stream.write(visible_or_colour(text) if stream.isatty() else text)


def show_results(
    results: Result | Sequence[Result],
    format: str,
    question: Question | None = None,
    quote_formulas: bool = True,
) -> None:
    """Print results in a format, tables as wide as the terminal."""
    from rankscope.views import render, terminal_width, use_color

    width, color = terminal_width(sys.stdout), use_color(sys.stdout)
    show(render(results, format, width, color, quote_formulas, question))


def read(paths: list[Path], options: Options, args: argparse.Namespace) -> Ingested:
    """Update a store, showing progress."""
    import_numpy_with_one_thread()
    from rankscope.timeline.reading import ingest
    from rankscope.timeline.run import Run

    started = time.monotonic()
    ingested = ingest(paths, options, _ingest_progress(args.quiet))
    run = Run(ingested)
    if not (args.mix or args.print_store):
        run = run.of_one_run()
    _say_what_was_read(run.ingested, started, args.quiet)
    _keep_rollups(run, args)
    return run.ingested


def _say_what_was_read(ingested: Ingested, started: float, quiet: bool, is_asked: bool = False) -> None:
    """`is_asked`: an answer follows, which takes its time where reading did."""
    for problem in ingested.problems:
        say(f"rankscope: {problem}")
    if ingested.read and not quiet:
        from rankscope.units import format_bytes

        size = sum(entry.manifest["source"]["bytes"] for entry in ingested.read)
        count = len(ingested.read)
        seconds = time.monotonic() - started
        say(
            f"Read {count} file{'s' * (count > 1)} ({format_bytes(size)}) in {seconds:.1f} s into {ingested.store}"
        )
        if is_asked and seconds > _QUIET_SECONDS:
            say("Analysing")


def _ingest_progress(quiet: bool) -> IngestProgress:
    from rankscope.store.ingest import IngestProgress

    if quiet:
        return IngestProgress()
    line = Progress(sys.stderr)
    return IngestProgress(line.begin, line.advance, line.end, say, line.finish)


class Progress:
    """One line on stderr: files read, percent, MB/s, time left. Redrawn on a terminal, else printed every ten s."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = unchecked(stream)
        self._redraws = stream.isatty()
        self._read: dict[Path, int] = {}
        self._files = self._finished = self._total = 0
        self._started = self._shown = 0.0
        self._drawn = False

    def begin(self, files: int, total_bytes: int) -> None:
        self._files, self._total = files, total_bytes
        self._started = self._shown = time.monotonic()

    def finish(self, files: int) -> None:
        self._finished = files

    def advance(self, path: Path, read: int, doing: str) -> None:
        self._read[path] = read
        now = time.monotonic()
        pause = _REDRAW_SECONDS if self._redraws else _PLAIN_LINE_SECONDS
        if now - self._started < _QUIET_SECONDS or now - self._shown < pause:
            return
        self._shown = now
        line = self._line(sum(self._read.values()), now - self._started, doing)
        self._stream.write(f"\r\033[K{line}" if self._redraws else f"{line}\n")
        self._stream.flush()
        self._drawn = True

    def count_rollups(self, done: int, ranks: int) -> None:
        """Ranks whose rollups are made."""
        if self._redraws:
            self._stream.write(f"\r\033[KRollups: {done} of {ranks} ranks")
            self._stream.flush()
            self._drawn = True

    def _line(self, done: int, elapsed: float, doing: str) -> str:
        from rankscope.units import format_bytes

        share = done / self._total if self._total else 1.0
        rate = done / elapsed
        left = (self._total - done) / rate if rate else 0.0
        what = doing if share >= 1 else f"{left:.0f} s left"
        done_of = f"{self._finished} of {self._files} file{'s' * (self._files > 1)} read"
        return f"Reading: {done_of}, {100 * share:.0f} % of {format_bytes(self._total)}, {rate / 1e6:.0f} MB/s, {what}"

    def end(self) -> None:
        if self._drawn and self._redraws:
            self._stream.write("\r\033[K")
            self._stream.flush()


def run_name(path: Path) -> str:
    """A run's name for output files: 'rank-0' of rank-0.pt.trace.json.gz; a folder's whole name."""
    path = path.resolve()
    return path.name if path.is_dir() else path.name.split(".")[0]


def check_target(path: Path, force: bool) -> None:
    """Refuse to overwrite without -f."""
    if path.exists() and not force and (path.is_file() or any(path.iterdir())):
        raise UsageError(
            f"{path} exists already",
            why="Existing files are not overwritten by default.",
            hint="Name another, or add -f.",
        )


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A temporary file beside `target`: renamed to it at the end, removed after an error."""
    from rankscope.files import unique_name

    temporary = target.with_name(f".{target.name}.{unique_name()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(target)
    except OSError as error:
        raise StoreError(
            f"cannot write {target}", why=f"{error.strerror}.", hint="Name another place: -o PATH"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
