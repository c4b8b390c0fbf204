"""rankscope bench seqpar: the sequence-parallel mini-benchmark."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

from rankscope.bench.seqpar.config import (
    CPU_SIZES,
    DEFAULT_CHUNKS,
    GPU_SIZES,
    PRECISIONS,
    SLOW_CPU_SIZES,
    Config,
)
from rankscope.capture.rank import SINGLE, detect
from rankscope.cli.bench.seqpar_text import report_text
from rankscope.errors import RankscopeError, UsageError

DESCRIPTION = """\
One block of tensor- and sequence-parallel training, over and over:
  input (S/W,1,H) -ALLGATHER-> (S,1,H) -matmul1-> (S,1,H/W)
                  -matmul2-> (S,1,H) -REDUCE_SCATTER-> (S/W,1,H)
The result is checked against a single-process reference. Needs torch and
nothing else.
"""

EPILOG = """\
examples:
  rankscope bench seqpar --nproc 2      two ranks on this machine, no launcher
  torchrun --nproc-per-node 4 -m rankscope bench seqpar -p bfloat16
  mpiexec -n 8 rankscope bench seqpar --overlap
  srun -n 8 rankscope bench seqpar --json > seqpar.json
  rankscope bench seqpar --nproc 2 --profile
      captures extra iterations; then: rankscope stats on the folder it names
  rankscope profile --ranks all rankscope bench seqpar --nproc 2
      the same from outside
"""

# The profiled iterations are extra ones, so that the times above them are those of an undisturbed loop.
_PROFILE_WARMUP, _PROFILE_ACTIVE = 2, 3


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    add_size_options(parser)
    add = parser.add_argument
    add("-p", "--precision", choices=PRECISIONS, default=PRECISIONS[0], help="default: float32")
    add("--nproc", type=positive, metavar="N", help="start N ranks here (not under a launcher)")
    add_run_options(parser)
    add("--json", action="store_true", help="the report as JSON on stdout")
    group = parser.add_argument_group("profiling (extra iterations, after the timed ones)")
    group.add_argument("--profile", action="store_true", help="capture every rank with torch's profiler")
    group.add_argument("-o", "--output", metavar="DIR", help="the run folder (default: rankscope-seqpar-JOB)")
    group.add_argument(
        "-f", "--force", action="store_true", help="replace a run folder that holds another run"
    )


def add_size_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "-s",
        "--sequence",
        type=positive,
        metavar="S",
        help=f"sequence length (default: {GPU_SIZES[0]}, on a CPU {CPU_SIZES[0]})",
    )
    add(
        "-d",
        "--hidden",
        type=positive,
        metavar="H",
        help=f"hidden size (default: {GPU_SIZES[1]}, on a CPU {CPU_SIZES[1]})",
    )


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """What seqpar and sweep have in common beside the sizes."""
    from rankscope.bench.seqpar.world import BACKENDS, DEVICES

    add = parser.add_argument
    add("-it", "--iterations", type=positive, default=18, metavar="N", help="timed iterations (default: 18)")
    add("-wit", "--warmup", type=int, default=10, metavar="N", help="iterations before them (default: 10)")
    add("--overlap", action="store_true", help="also run the form in which chunks overlap")
    add("--chunks", type=positive, metavar="N", help=f"how many chunks (default: {DEFAULT_CHUNKS})")
    add("--backend", choices=BACKENDS, help="default: the device's own (nccl, xccl; gloo on a CPU)")
    add("--device", choices=DEVICES, help="default: a GPU where there is one")


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive number")
    return int(text)


def run(args: argparse.Namespace) -> int:
    _check(args)
    identity = detect(os.environ)
    if args.nproc is not None:
        if identity.source != SINGLE:
            raise UsageError(
                f"--nproc {args.nproc} inside a launcher",
                why=f"This is rank {identity.rank} of a job that {identity.source} started.",
                hint="Leave --nproc out: the launcher starts the ranks.",
            )
        from rankscope.bench.seqpar.spawn import run_ranks

        if args.sequence and args.hidden:  # what is wrong with them is known before anything starts
            config_of(args, GPU_SIZES).check(args.nproc)
        return run_ranks(rank_words(args), args.nproc)
    return _run_rank(args)


def rank_words(args: argparse.Namespace) -> list[str]:
    """This command line for one rank: everything but --nproc."""
    words = ["bench", "seqpar", "-p", args.precision, "-it", str(args.iterations), "-wit", str(args.warmup)]
    for option, value in (
        ("-s", args.sequence),
        ("-d", args.hidden),
        ("--chunks", args.chunks),
        ("--backend", args.backend),
        ("--device", args.device),
        ("-o", args.output),
    ):
        words += [option, str(value)] if value is not None else []
    flags = (
        ("--overlap", args.overlap),
        ("--json", args.json),
        ("--profile", args.profile),
        ("-f", args.force),
    )
    return [*words, *(option for option, given in flags if given)]


def _check(args: argparse.Namespace) -> None:
    if args.warmup < 0:
        raise UsageError(f"-wit {args.warmup} is not a number of iterations", hint="Give 0 or more.")
    if args.chunks is not None and not args.overlap:
        raise UsageError("--chunks is for the overlapped form", hint="Add --overlap.")
    if (args.output is not None or args.force) and not args.profile:
        raise UsageError("-o and -f are for the folder of a profile", hint="Add --profile.")
    if args.output is not None and not args.force and (Path(args.output) / "rankscope.json").exists():
        raise UsageError(
            f"{args.output} holds another run",
            why="Mixing two runs would mix their ranks.",
            hint="Name another with -o DIR, or give -f to replace it.",
        )
    if importlib.util.find_spec("torch") is None:
        raise RankscopeError(
            "this Python has no torch",
            why="The benchmark runs torch's matrix products and collectives.",
            hint="Install it (pip install torch), or use the Python of your training image.",
        )


def config_of(args: argparse.Namespace, sizes: tuple[int, int]) -> Config:
    """What was asked for; ``sizes`` where none were."""
    sequence, hidden = sizes
    return Config(
        sequence=args.sequence or sequence,
        hidden=args.hidden or hidden,
        iterations=args.iterations,
        warmup=args.warmup,
        precision=args.precision,
        chunks=(args.chunks or DEFAULT_CHUNKS) if args.overlap else 0,
    )


def _run_rank(args: argparse.Namespace) -> int:
    """One rank of the benchmark; rank 0 speaks. An error of the whole job is said once."""
    # Kineto's messages about its own starts and stops are not for the reader of these figures.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from rankscope.bench.seqpar.measure import measure
    from rankscope.bench.seqpar.world import join, leave

    try:
        world = join(args.backend, args.device)
        sizes, notes = _sizes(args, world)
        config = config_of(args, sizes)
        report = measure(config, world)
        report["notes"] += notes
        if world.rank == 0:
            text = json.dumps(report, indent=1) + "\n" if args.json else report_text(report)
            sys.stdout.write(text)
            sys.stdout.flush()
        if args.profile:
            _profile(config, world, args.output)
    except UsageError as error:
        # Every rank finds the same mistake; one of them says it.
        if detect(os.environ).rank == 0:
            raise
        return error.exit_code
    finally:
        leave()
    return 0


def _sizes(args: argparse.Namespace, world: Any) -> tuple[tuple[int, int], list[str]]:
    """The default sizes for this device, and what the user should know about them."""
    from rankscope.bench.seqpar.world import has_slow_path

    if world.device.type != "cpu":
        return GPU_SIZES, []
    sizes, notes = CPU_SIZES, []
    if has_slow_path(world.device, args.precision):
        sizes = SLOW_CPU_SIZES
        notes.append(f"This CPU has no {args.precision} instructions: torch's slow path is what is timed.")
    if not (args.sequence and args.hidden):
        gpu = f"(on a GPU -s {GPU_SIZES[0]} -d {GPU_SIZES[1]})"
        notes.append(f"The sizes default to -s {sizes[0]} -d {sizes[1]} here {gpu}.")
    return sizes, notes


def _profile(config: Config, world: Any, output: str | None) -> None:
    from rankscope.bench.seqpar.measure import iterate
    from rankscope.capture.job_name import name_run
    from rankscope.capture.schedule import Schedule
    from rankscope.inapp.profiler import profile

    folder, _ = name_run(os.environ, world.identity, ["seqpar"], output, None)
    schedule = Schedule(0, 0, _PROFILE_WARMUP, _PROFILE_ACTIVE, 1)
    with profile(folder, schedule=schedule, handlers=(), region=None, record_shapes=True) as prof:
        iterate(config, world, _PROFILE_WARMUP + _PROFILE_ACTIVE, prof.step)
