"""rankscope bench collectives: how fast is communication here, by itself?"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from typing import Any

from rankscope.bench.collectives.kinds import DTYPES, KINDS
from rankscope.bench.seqpar.world import BACKENDS, DEVICES
from rankscope.capture.rank import SINGLE, detect
from rankscope.cli.bench.seqpar import positive
from rankscope.cli.plain_table import plain_table
from rankscope.errors import RankscopeError, UsageError
from rankscope.units import format_count, parse_power_bytes

DESCRIPTION = """\
Time each collective at each size, as nccl-tests does: time, algbw and busbw by
its conventions (GB = 1e9), and a check of every element. The collectives of a
training run can be held against it: stats RUN -r collectives --baseline FILE.
Needs torch and nothing else.
"""
EPILOG = """\
examples:
  rankscope bench collectives --nproc 2
  torchrun --nproc-per-node 8 -m rankscope bench collectives -b 1M -e 1G -f 2
  mpiexec -n 16 rankscope bench collectives -k all_reduce,all_gather -d bfloat16
  srun -n 8 rankscope bench collectives --json > collectives.json
"""
# Until the whole sweep takes about a minute: more says nothing new on a CPU.
_CPU_LAST, _GPU_LAST = 16 * 2**20, 256 * 2**20


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    add = parser.add_argument
    add("-k", "--kinds", metavar="NAME,…", help=f"which (default: all): {', '.join(KINDS)}")
    add(
        "-b",
        "--begin",
        metavar="BYTES",
        default="1K",
        help="smallest size; K, M, G are powers of 2 (default: 1K)",
    )
    add("-e", "--end", metavar="BYTES", help="largest size (default: 256M, on a CPU 16M)")
    add(
        "-f", "--factor", type=positive, default=4, metavar="N", help="from one size to the next (default: 4)"
    )
    add("-d", "--dtype", choices=DTYPES, default=DTYPES[0], help=f"default: {DTYPES[0]}")
    add(
        "-n", "--iterations", type=positive, default=20, metavar="N", help="timed, of each size (default: 20)"
    )
    add("-w", "--warmup", type=int, default=5, metavar="N", help="before them (default: 5)")
    add("--nproc", type=positive, metavar="N", help="start N ranks here (not under a launcher)")
    add("--backend", choices=BACKENDS, help="default: the device's own (nccl, xccl; gloo on a CPU)")
    add("--device", choices=DEVICES, help="default: a GPU where there is one")
    add("--json", action="store_true", help="the rows as JSON on stdout")


def run(args: argparse.Namespace) -> int:
    _check(args)
    identity = detect(os.environ)
    if args.nproc is None:
        return _run_rank(args)
    if identity.source != SINGLE:
        raise UsageError(
            f"--nproc {args.nproc} inside a launcher",
            why=f"This is rank {identity.rank} of a job that {identity.source} started.",
            hint="Leave --nproc out: the launcher starts the ranks.",
        )
    from rankscope.bench.seqpar.spawn import run_ranks

    return run_ranks(rank_words(args), args.nproc)


def rank_words(args: argparse.Namespace) -> list[str]:
    """This command line for one rank: everything but --nproc."""
    words = ["bench", "collectives", "-b", args.begin, "-f", str(args.factor), "-d", args.dtype]
    words += ["-n", str(args.iterations), "-w", str(args.warmup)]
    for option, value in (
        ("-k", args.kinds),
        ("-e", args.end),
        ("--backend", args.backend),
        ("--device", args.device),
    ):
        words += [option, value] if value is not None else []
    return [*words, *(["--json"] if args.json else [])]


def _check(args: argparse.Namespace) -> None:
    _kinds(args)
    first = parse_power_bytes(args.begin)
    if first < 1 or (args.end is not None and parse_power_bytes(args.end) < first):
        raise UsageError(
            f"-b {args.begin} -e {args.end} holds no size",
            why="Sizes go up from the first to the second.",
            hint="Write them like -b 1K -e 64M",
        )
    if args.factor < 2:
        raise UsageError(
            "-f 1 never ends", why="Each size is -f times the one before.", hint="Give -f 2 or more."
        )
    if args.warmup < 0:
        raise UsageError(f"-w {args.warmup} is not a number of iterations", hint="Give 0 or more.")
    if importlib.util.find_spec("torch") is None:
        raise RankscopeError(
            "this Python has no torch",
            why="The benchmark times torch's collectives.",
            hint="Install it (pip install torch), or use the Python of your training image.",
        )


def _kinds(args: argparse.Namespace) -> list[str]:
    if args.kinds is None:
        return list(KINDS)
    names = [name.strip() for name in args.kinds.split(",")]
    for name in names:
        if name not in KINDS:
            raise UsageError(
                f"'{name}' is not in the sweep", why=f"There are: {', '.join(KINDS)}.", hint="See: --help"
            )
    return names


def _run_rank(args: argparse.Namespace) -> int:
    """One rank; rank 0 speaks. An error of the whole job is said once."""
    from rankscope.bench.collectives.sweep import Config, is_right, sizes, sweep
    from rankscope.bench.seqpar.world import join, leave

    try:
        world = join(args.backend, args.device)
        last = (
            parse_power_bytes(args.end)
            if args.end
            else _CPU_LAST
            if world.device.type == "cpu"
            else _GPU_LAST
        )
        first = (
            min(parse_power_bytes(args.begin), last) if args.end is None else parse_power_bytes(args.begin)
        )
        config = Config(
            kinds=tuple(KINDS[name] for name in _kinds(args)),
            sizes=sizes(first, last, args.factor),
            dtype=args.dtype,
            iterations=args.iterations,
            warmup=args.warmup,
        )
        rows = list(sweep(config, world))
    except UsageError as error:
        if detect(os.environ).rank == 0:
            raise
        return error.exit_code
    finally:
        leave()
    if world.rank == 0:
        text = json.dumps(rows, indent=1) + "\n" if args.json else _text(rows, world, args)
        sys.stdout.write(text)
        sys.stdout.flush()
        if not is_right(rows):
            raise RankscopeError(
                "a collective gave a wrong result",
                why=f"{sum(row['wrong'] or 0 for row in rows)} elements differ from what they must be.",
                hint=f"The times mean nothing. Try another --backend ({world.backend} was used) or torch.",
            )
    return 0 if is_right(rows) else 1


def _text(rows: list[dict[str, Any]], world: Any, args: argparse.Namespace) -> str:
    ranks = f"{world.size} rank{'s' * (world.size != 1)}"
    head = [
        f"collectives: {ranks}, {world.backend}, {args.dtype}, {world.device_name}",
        f"{args.iterations} iterations after {args.warmup} of warm-up; GB = 1e9; sizes and factors as in nccl-tests",
        *world.notes,
    ]
    table = plain_table(
        ("Kind", "Bytes", "Time µs", "algbw GB/s", "busbw GB/s", "Wrong"),
        [
            (
                row["kind"],
                format_count(row["bytes"]),
                f"{row['time_us']:,.1f}",
                f"{row['algbw_gb_s']:.3f}",
                f"{row['busbw_gb_s']:.3f}",
                str(row["wrong"]),
            )
            for row in rows
            if row["bytes"] is not None
        ],
    )
    missing = [f"{row['kind']}: {row['note']}" for row in rows if row["note"]]
    return "\n".join([*head, "", table, *(["", *missing] if missing else [])]) + "\n"
