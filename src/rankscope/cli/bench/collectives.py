"""rankscope bench collectives: the bandwidth of each collective at each size."""

from __future__ import annotations

import argparse
import json

from rankscope.bench.collectives import DTYPES, KINDS, parse_kinds
from rankscope.bench.ranks.world import require_torch
from rankscope.cli.bench.seqpar import NPROC, WHERE
from rankscope.cli.options import add_options, made_of, positive, words_of
from rankscope.errors import UsageError
from rankscope.units import parse_power_bytes

DESCRIPTION = """\
Time each collective at each size, as nccl-tests does: time, algbw and busbw by
its conventions (GB = 1e9), and a check of every element. To compare the
collectives of a training run with it: stats RUN -r collectives --baseline FILE.
Needs torch and nothing else.
"""
EPILOG = """\
examples:
  rankscope bench collectives --nproc 2
  torchrun --nproc-per-node 8 -m rankscope bench collectives -b 1M -e 1G -f 2
  mpiexec -n 16 rankscope bench collectives -k all_reduce,all_gather -d bfloat16
  srun -n 8 rankscope bench collectives --json > collectives.json
"""
_OPTIONS = f"""\
-k, --kinds NAME,…  which (default: all): {", ".join(KINDS)}
-b, --begin BYTES  smallest size; K, M, G are powers of 2 (default: 1K)
-e, --end BYTES  largest size (default: 256M, on a CPU 16M)
-f, --factor N  from one size to the next (default: 4)
-d, --dtype {{{",".join(DTYPES)}}}  default: {DTYPES[0]}
-n, --iterations N  timed, of each size (default: 20)
-w, --warmup N  before them (default: 5)
{NPROC}{WHERE}\
--json  the rows as JSON on stdout
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    counts = {"factor": {"type": positive, "default": 4}, "iterations": {"type": positive, "default": 20}}
    warmup = {"type": int, "default": 5}
    add_options(parser, _OPTIONS, begin="1K", dtype=DTYPES[0], warmup=warmup, nproc=positive, **counts)


def run(args: argparse.Namespace) -> int:
    _check(args)
    if args.nproc is None:
        return _run_rank(args)
    from rankscope.bench.ranks.spawn import run_ranks

    return run_ranks(["bench", "collectives", *words_of(args, configure, "nproc")], args.nproc)


def _check(args: argparse.Namespace) -> None:
    parse_kinds(args.kinds)
    first = parse_power_bytes(args.begin)
    if first < 1 or (args.end is not None and parse_power_bytes(args.end) < first):
        raise UsageError(
            f"-b {args.begin} -e {args.end} holds no size",
            why="Sizes increase from -b to -e.",
            hint="Write them like -b 1K -e 64M",
        )
    if args.factor < 2:
        raise UsageError(
            "-f 1 never ends", why="Each size is -f times the one before.", hint="Give -f 2 or more."
        )
    if args.warmup < 0:
        raise UsageError(f"-w {args.warmup} is not a number of iterations", hint="Give 0 or more.")
    require_torch("The benchmark times torch's collectives.")


def _run_rank(args: argparse.Namespace) -> int:
    """One rank. Only rank 0 prints."""
    from rankscope.bench.collectives import Config, check_results, is_right, report_text, sizes_for, sweep
    from rankscope.bench.ranks.world import World, run_as_rank

    end = parse_power_bytes(args.end) if args.end is not None else None

    def measure(world: World) -> int:
        first = parse_power_bytes(args.begin)
        sizes = sizes_for(world.device.type, first, end, args.factor)
        config = made_of(Config, args, kinds=parse_kinds(args.kinds), sizes=sizes)
        rows = list(sweep(config, world))
        if world.rank == 0:
            text = json.dumps(rows, indent=1) + "\n" if args.json else report_text(rows, config, world)
            print(text, end="", flush=True)
            check_results(rows, world.backend)
        return 0 if is_right(rows) else 1

    return run_as_rank(args.backend, args.device, measure)
