"""rankscope bench seqpar: the sequence-parallel mini-benchmark."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from rankscope.bench.ranks.world import BACKENDS, DEVICES, require_torch
from rankscope.bench.seqpar.config import CPU_SIZES, DEFAULT_CHUNKS, GPU_SIZES, PARTS, PRECISIONS, Config
from rankscope.bench.seqpar.report_text import report_text
from rankscope.cli.options import add_options, made_of, positive, words_of
from rankscope.errors import UsageError

DESCRIPTION = """\
One block of tensor- and sequence-parallel training, repeated:
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
      captures extra iterations; then run: rankscope stats FOLDER
  rankscope profile --ranks all rankscope bench seqpar --nproc 2
      captures iterations of the benchmark loop itself
  rankscope profile --tool ncu -c cudaProfilerApi rankscope bench seqpar --range matmul1
      measures only the kernels of matmul1, in one extra iteration
"""
NPROC = "--nproc N  start N ranks here (not under a launcher)\n"
WHERE = f"""\
--backend {{{",".join(BACKENDS)}}}  default: the device's own (nccl, xccl; gloo on a CPU)
--device {{{",".join(DEVICES)}}}  default: a GPU where there is one
"""
_SIZES = f"""\
-s, --sequence S  sequence length (default: {GPU_SIZES[0]}, on a CPU {CPU_SIZES[0]})
-d, --hidden H  hidden size (default: {GPU_SIZES[1]}, on a CPU {CPU_SIZES[1]})
-p, --precision {{{",".join(PRECISIONS)}}}  default: float32
{NPROC}\
"""
_RUNNING = f"""\
-it, --iterations N  timed iterations (default: 18)
-wit, --warmup N  iterations before them (default: 10)
--overlap  also run the overlapped form, in chunks
--chunks N  how many chunks (default: {DEFAULT_CHUNKS})
"""
_PROFILING = f"""\
--profile  capture every rank with torch's profiler
--range PART  open a CUDA profiler range around this part, for nsys and ncu -c cudaProfilerApi: {", ".join(PARTS)}
-o, --output DIR  the run folder (default: rankscope-seqpar-JOB)
-f, --force  replace a run folder that holds another run
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    add_options(
        parser, _SIZES, **dict.fromkeys(("sequence", "hidden", "nproc"), positive), precision=PRECISIONS[0]
    )
    add_run_options(parser)
    add_options(parser, "--json  the report as JSON on stdout")
    group = parser.add_argument_group("profiling (extra iterations, after the timed ones)")
    add_options(group, _PROFILING, range={"choices": PARTS})


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """The options that seqpar and sweep share, apart from the sizes."""
    iterations, warmup = {"type": positive, "default": 18}, {"type": int, "default": 10}
    add_options(parser, _RUNNING + WHERE, iterations=iterations, warmup=warmup, chunks=positive)


def run(args: argparse.Namespace) -> int:
    _check(args)
    if args.nproc is None:
        return _run_rank(args)
    from rankscope.bench.ranks.spawn import run_ranks

    if args.sequence and args.hidden:  # report wrong sizes before any rank starts
        _config(args, GPU_SIZES).check(args.nproc)
    return run_ranks(["bench", "seqpar", *words_of(args, configure, "nproc")], args.nproc)


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
    require_torch("The benchmark runs torch's matrix products and collectives.")


def _config(args: argparse.Namespace, sizes: tuple[int, int]) -> Config:
    """The options as a Config; ``sizes`` are the defaults of -s and -d."""
    sequence, hidden = args.sequence or sizes[0], args.hidden or sizes[1]
    chunks = (args.chunks or DEFAULT_CHUNKS) if args.overlap else 0
    return made_of(Config, args, sequence=sequence, hidden=hidden, chunks=chunks)


def _run_rank(args: argparse.Namespace) -> int:
    """One rank. Only rank 0 prints."""
    # Keep Kineto's start and stop messages out of the report.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from rankscope.bench.ranks.world import World, run_as_rank
    from rankscope.bench.seqpar.measure import default_sizes, measure, profile_iterations, ranged_iteration

    def run_loop(world: World) -> int:
        sizes, notes = default_sizes(world, args.precision)
        if sizes != GPU_SIZES and not (args.sequence and args.hidden):
            on_gpu = f"(on a GPU -s {GPU_SIZES[0]} -d {GPU_SIZES[1]})"
            notes.append(f"The sizes default to -s {sizes[0]} -d {sizes[1]} here {on_gpu}.")
        config = _config(args, sizes)
        report = measure(config, world)
        report["notes"] += notes
        if world.rank == 0:
            text = json.dumps(report, indent=1) + "\n" if args.json else report_text(report)
            print(text, end="", flush=True)
        if args.profile:
            profile_iterations(config, world, args.output)
        if args.range is not None:
            ranged_iteration(config, world, args.range)
        return 0

    return run_as_rank(args.backend, args.device, run_loop)
