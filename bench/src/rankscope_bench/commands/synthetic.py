"""rankscope bench synthetic: multi-rank traces of any size whose answers are known."""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rankscope.cli.options import add_options
from rankscope.errors import UsageError
from rankscope.ranges import numbers_in, parse_ranges
from rankscope.text.run_words import shell_word
from rankscope.text.visible_text import unchecked
from rankscope.units import format_bytes, format_count, parse_count

if TYPE_CHECKING:  # numpy is not needed for --help
    from rankscope_bench.synthetic.job import Slower
    from rankscope_bench.synthetic.plan import Plan, Straggler

_SILENT_SECONDS = 2.0
_ANNOUNCED_BYTES = 10**9
_EVENT_BYTES, _ZIPPED_EVENT_BYTES = 327, 32
_SECONDS_BETWEEN_LINES, _SECONDS_BETWEEN_PLAIN_LINES = 1.0, 10.0

EPILOG = """\
examples:
  rankscope bench synthetic --ranks 8 --events 1e6 -o run
      eight files of a million events (about 330 MB) each, and run/truth.json with the answers
  rankscope bench synthetic --ranks 4 --events 2e4 --straggler 2:compute:5 -o run
      rank 2 computes 5 ms longer in every step; the others wait for it
  rankscope bench synthetic --ranks 8 --events 5e4 --groups tp=2 --offset 3 --drift 20 -o run
      tensor- and data-parallel groups, clocks up to 3 ms apart that drift by up to 20 ppm
  rankscope bench synthetic --ranks 2 --events 2e4 --defect truncated@1 --defect nan -o run
      the file of rank 1 ends inside an event, that of rank 0 has NaNs
  rankscope bench synthetic --defect list
"""
CLOCKS = """\
--offset MS  clocks differ from rank 0's by up to MS
--drift PPM  clocks drift against rank 0's by up to PPM
"""
_SIZE = """\
--ranks N  how many ranks, one file each
--events N  events in each file, exactly; 1e6 and 250k work
--steps N  training steps in each file (default 6)
--with-stack  add Python frames
"""
_OUTPUT = """\
-o, --output DIR  where to write; created if needed
-f, --force  write into DIR even if it is not empty
--gzip  write .json.gz
"""
_PLANTED = f"""\
--seed N  same seed, same bytes (default 0)
--straggler RANK:CAUSE:MS  this rank is late by MS in every step; CAUSE is compute, host, copy or dataloader
{CLOCKS}\
--leave-noise MS  ranks leave collectives up to MS apart, at random
--groups tp=N  tensor-parallel groups of N, data-parallel across
--missing RANKS  ranks whose files are not written: 3 or 1,4-6
--slower KERNEL=FACTOR ...  kernels with KERNEL in their name take FACTOR times as long: gelu=1.03; may be repeated
--step-noise PCT  every step of every rank takes 0 to PCT %% longer on the GPU
--no-jitter  no random variation of durations
--bus GB/s  busbw of the collectives (default 300; 0: no transfer time)
--defect NAME[@RANK] ...  damage the file of RANK (default 0); may be repeated; 'list' shows all defects
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write multi-rank traces in Kineto's exact text, of any size, with planted faults.\n"
        "DIR/truth.json lists what must be found in them, to the nanosecond."
    )
    parser.epilog = EPILOG
    add_options(parser.add_argument_group("size"), _SIZE, steps="6")
    add_options(parser.add_argument_group("output"), _OUTPUT, output=Path)
    zero = dict.fromkeys(("seed", "offset", "drift", "leave_noise", "step_noise"), "0")
    add_options(parser.add_argument_group("planted"), _PLANTED, **zero, bus="300")


def run(args: argparse.Namespace) -> int:
    if "list" in args.defect:
        return _list_defects()
    from rankscope_bench.synthetic.generator import write

    for option, value in (("--ranks", args.ranks), ("--events", args.events), ("-o", args.output)):
        if value is None:
            raise UsageError(
                f"{option} is missing",
                why="The number of ranks, the events of each and the folder have no defaults.",
                hint="For example: rankscope bench synthetic --ranks 8 --events 1e6 -o run",
            )
    plan = _plan(args)
    event_bytes = _ZIPPED_EVENT_BYTES if plan.gzip else _EVENT_BYTES
    progress = Progress(len(plan.present) * plan.events_per_rank * event_bytes, args.output)
    try:
        truth = write(plan, args.output, force=args.force, progress=progress.add)
    finally:
        progress.close()
    files = len(truth["files"])
    print(
        f"Wrote {files} {'file' if files == 1 else 'files'} of {format_count(plan.events_per_rank)} events "
        f"({format_bytes(progress.written)} of text) and truth.json to {args.output}"
    )
    print(f"Next: rankscope stats {shell_word(args.output)}")
    return 0


def _list_defects() -> int:
    from rankscope_bench.synthetic.defects import CATALOGUE

    width = max(map(len, CATALOGUE)) + 2
    for name, kind in CATALOGUE.items():
        print(f"{name:<{width}}{kind.what}")
    return 0


def _plan(args: argparse.Namespace) -> Plan:
    from rankscope_bench.synthetic.defects import parse_defect
    from rankscope_bench.synthetic.plan import Plan

    return Plan(
        ranks=parse_count(args.ranks),
        events_per_rank=parse_count(args.events),
        steps=parse_count(args.steps),
        seed=parse_count(args.seed),
        gzip=args.gzip,
        with_stack=args.with_stack,
        straggler=_straggler(args.straggler) if args.straggler else None,
        max_offset_ns=round(number("--offset", args.offset) * 1e6),
        max_drift_ppm=number("--drift", args.drift),
        leave_noise_ns=round(number("--leave-noise", args.leave_noise) * 1e6),
        missing=_ranks(args.missing) if args.missing else (),
        tensor_parallel=_tensor_parallel(args.groups) if args.groups else None,
        slower=tuple(_slower(text) for text in args.slower),
        step_noise_pct=number("--step-noise", args.step_noise),
        jitter=not args.no_jitter,
        bus_gb_s=number("--bus", args.bus),
        defects=tuple(parse_defect(text) for text in args.defect),
    )


def number(option: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{option} {text} is not a number", hint=f"Write it like {option} 2.5")
    return value


def _straggler(text: str) -> Straggler:
    from rankscope_bench.synthetic.plan import Straggler

    match = re.fullmatch(r"([0-9]+):([a-z]+):([0-9.]+)", text)
    if not match:
        raise UsageError(
            f"--straggler {text} is not RANK:CAUSE:MS",
            why="CAUSE is compute, host, copy or dataloader.",
            hint="Write it like --straggler 2:compute:12",
        )
    return Straggler(int(match[1]), match[2], round(number("--straggler", match[3]) * 1e6))


def _slower(text: str) -> Slower:
    from rankscope_bench.synthetic.job import Slower

    kernel, _, factor = text.rpartition("=")
    if not kernel:
        raise UsageError(
            f"--slower {text} is not KERNEL=FACTOR",
            why="KERNEL is a part of a kernel's name.",
            hint="Write it like --slower gelu=1.03",
        )
    return Slower(kernel, number("--slower", factor))


def _ranks(text: str) -> tuple[int, ...]:
    """'3' or '1,4-6'."""
    try:
        return tuple(sorted(numbers_in(parse_ranges(text))))
    except ValueError as error:
        why = str(error)
    raise UsageError(f"--missing {text} is not a list of ranks", why=why, hint="Write it like 3 or 1,4-6")


def _tensor_parallel(text: str) -> int:
    match = re.fullmatch(r"tp=([0-9]+)", text)
    if not match:
        raise UsageError(
            f"--groups {text} is not known",
            why="Only the size of the tensor-parallel groups can be chosen; the others follow from it.",
            hint="Write it like --groups tp=2",
        )
    return int(match[1])


class Progress:
    """A progress line on stderr once writing takes longer than two seconds: redrawn on a terminal, else every ten s.

    Before that, how much will be written, if it is a lot.
    """

    def __init__(self, expected_bytes: int = 0, folder: Path | None = None) -> None:
        if expected_bytes > _ANNOUNCED_BYTES:
            size = format_bytes(expected_bytes)
            print(
                f"rankscope: about {size} will be written to {folder}", file=unchecked(sys.stderr), flush=True
            )
        self.written = 0
        self._started = self._printed = time.monotonic()
        self._shown = False
        self._redraws = sys.stderr.isatty()

    def add(self, nbytes: int) -> None:
        self.written += nbytes
        now = time.monotonic()
        between = _SECONDS_BETWEEN_LINES if self._redraws else _SECONDS_BETWEEN_PLAIN_LINES
        wait = between if self._shown else _SILENT_SECONDS
        if now - self._printed >= wait:
            self._printed, self._shown = now, True
            rate = self.written / (now - self._started)
            line = f"rankscope: {format_bytes(self.written)} written, {format_bytes(rate)}/s"
            text = f"\r{line:<60}" if self._redraws else f"{line}\n"
            print(text, end="", file=unchecked(sys.stderr), flush=True)

    def close(self) -> None:
        if self._shown and self._redraws:
            print(file=sys.stderr)
