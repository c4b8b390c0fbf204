"""rankscope bench cluster: traces of a simulated job with tensor, data and pipeline parallelism and planted faults."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rankscope.cli.options import add_options
from rankscope.errors import UsageError
from rankscope.host import usable_cores
from rankscope.ranges import numbers_in, parse_ranges
from rankscope.text.run_words import shell_word
from rankscope.units import format_bytes, parse_count
from rankscope_bench.commands.synthetic import CLOCKS, Progress, number

if TYPE_CHECKING:
    from rankscope_bench.synthetic.job import Fault, Job

_EVENT_BYTES = 232
EPILOG = """\
examples:
  rankscope bench cluster --data 8 --tensor 8 -o run
      64 ranks of 20,000 events, and run/truth.json with layout, clocks and faults
  rankscope bench cluster --data 32 --tensor 8 --pipeline 4 --offset 3 --drift 20 --fault compute:137:4 -o run
      1,024 ranks on 128 nodes; rank 137 computes 4 ms longer in every step
  rankscope bench cluster --data 16 --tensor 8 --fault throttle:node5:6 -o run
      the GPUs of the sixth node are slow: 6 ms in every step
  rankscope bench cluster --data 2 --pipeline 4 --schedule 1f1b --p2p batched --stage-layers 8,8,12,8 -o run
      the third stage has half as many layers more than the others, as Megatron would run it
"""
_SIZE = """\
--data N  data-parallel ranks (default 4)
--tensor N  tensor-parallel ranks (default 1)
--pipeline N  pipeline stages (default 1)
--events N  at least so many a rank (default 20k)
--steps N  training steps (default 6)
--layers N  layers of each stage (default 8)
--micro-batches N  of a step, where there are stages (default 4)
--node N  ranks of a node (default 8)
"""
_PIPELINE = """\
--schedule {gpipe,1f1b,interleaved}  gpipe: all forward passes, then all backward; 1f1b: one forward, one backward,
    once the pipeline is full; interleaved: 1f1b with --chunks on each stage, which shortens the bubble (default gpipe)
--chunks N  virtual stages of each stage, of the interleaved schedule (default 2)
--stage-layers N,N,...  an uneven pipeline: layers of each stage, or of each chunk in the order of the model
--p2p {separate,batched}  separate: a kernel for each send and recv; batched: one kernel for those that go together,
    without arguments, as torch's batch_isend_irecv records it (default separate)
"""
_PLANTED = f"""\
--seed N  same seed, same bytes (default 0)
{CLOCKS}\
--fault KIND:RANKS:MS ...  these ranks are slower by MS a step on average; KIND is compute, throttle, host, gc,
    contention, checkpoint, copy, dataloader or link; RANKS is 5, 8-15, node3 or stage1; MS/N: in every N-th step only,
    by N * MS. Or the work is divided unevenly: stages:stage1:MS gives a stage more layers, lengths:all:MS makes
    micro-batches differ, experts:5:MS or experts:all:MS sends more tokens to one rank, or to another one in each step
    (with --experts); may be repeated
--experts MS  each layer is a mixture of experts: an all_to_all over the data-parallel ranks, and MS of compute
--no-balance  leave T_balanced out of truth.json: it takes up to three simulations more
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Simulate a training job event by event and write a trace for each rank, with planted faults.\n"
        "DIR/truth.json states layout, clocks, faults, and how long a step would take if the work were balanced."
    )
    parser.epilog = EPILOG
    groups = {"data": "4", "tensor": "1", "pipeline": "1", "node": "8"}
    work = {"events": "20k", "steps": "6", "layers": "8", "micro_batches": "4"}
    add_options(parser.add_argument_group("size"), _SIZE, **groups, **work)
    pipeline = {"schedule": "gpipe", "chunks": "", "stage_layers": "", "p2p": "separate"}
    add_options(parser.add_argument_group("pipeline"), _PIPELINE, **pipeline)
    add_options(parser, "-o, --output DIR  where to write; new or empty; required", output=Path)
    planted = parser.add_argument_group("planted")
    add_options(planted, _PLANTED, seed="0", offset="0", drift="0", experts="0")


def run(args: argparse.Namespace) -> int:
    from rankscope_bench.synthetic.cluster_trace import write_job

    if args.output is None:
        raise UsageError(
            "-o is missing", why="The folder has no default.", hint="Write it like -o run; it is created."
        )
    job = _job(args)
    progress = Progress(job.ranks * parse_count(args.events) * _EVENT_BYTES, args.output)
    cores = (
        usable_cores() if sys.platform == "linux" else 1
    )  # elsewhere forks of large processes are not safe
    try:
        truth = write_job(job, args.output, progress.add, balanced=not args.no_balance, processes=cores)
    finally:
        progress.close()
    print(
        f"Wrote {job.ranks} files of {min(truth['events']):,} to {max(truth['events']):,} events "
        f"({format_bytes(progress.written)}) and truth.json to {args.output}"
    )
    print(f"Next: rankscope stats {shell_word(args.output)}")
    return 0


def _job(args: argparse.Namespace) -> Job:
    from rankscope_bench.synthetic.job import Job, kernels_for

    job = Job(
        data=_count("--data", args.data),
        tensor=_count("--tensor", args.tensor),
        stages=_count("--pipeline", args.pipeline),
        steps=_count("--steps", args.steps),
        layers=_count("--layers", args.layers),
        micro_batches=_count("--micro-batches", args.micro_batches),
        ranks_per_node=_count("--node", args.node),
        norm_ns=40_000,
        expert_ns=round(number("--experts", args.experts) * 1e6),
        seed=parse_count(args.seed),
        offset_ns=round(abs(number("--offset", args.offset)) * 1e6),
        drift_ppb=round(abs(number("--drift", args.drift)) * 1e3),
    )
    job = _pipelined(job, args)
    return replace(
        job,
        kernels=kernels_for(job, _count("--events", args.events)),
        faults=tuple(_fault(text, job) for text in args.fault),
    )


def _pipelined(job: Job, args: argparse.Namespace) -> Job:
    interleaved = args.schedule == "interleaved"
    if args.chunks and not interleaved:
        raise UsageError(
            f"--chunks {args.chunks} has no effect",
            why=f"The schedule {args.schedule} has one chunk of layers on each stage.",
            hint="Add --schedule interleaved",
        )
    if interleaved and (job.stages < 3 or job.micro_batches % job.stages):
        raise UsageError(
            f"{job.micro_batches} micro-batches on {job.stages} stages cannot be interleaved",
            why="The schedule needs three stages or more, and a multiple of their number of micro-batches.",
            hint="Write --pipeline 4 --micro-batches 8",
        )
    chunks = _count("--chunks", args.chunks or "2") if interleaved else 1
    layers = tuple(_count("--stage-layers", text) for text in args.stage_layers.split(",") if text)
    if len(layers) not in (0, job.stages, job.stages * chunks):
        raise UsageError(
            f"--stage-layers has {len(layers)} numbers",
            why=f"There are {job.stages} stages of {chunks} {'chunk' if chunks == 1 else 'chunks'}.",
            hint=f"Write --stage-layers {','.join([str(job.layers)] * job.stages)}",
        )
    return replace(job, schedule=args.schedule, chunks=chunks, stage_layers=layers, p2p=args.p2p)


def _count(option: str, text: str) -> int:
    value = parse_count(text)
    if value < 1:
        raise UsageError(
            f"{option} {text} is too small", why="At least 1 is needed.", hint=f"Write {option} 1"
        )
    return value


def _fault(text: str, job: Job) -> Fault:
    from rankscope_bench.synthetic.job import OF_RANKS, OF_WORK, Fault

    kind, _, rest = text.partition(":")
    who, _, size = rest.rpartition(":")
    ms, slash, every = size.partition("/")
    ranks = _ranks(who, job)
    if kind not in (*OF_RANKS, *OF_WORK) or not ranks or ranks[-1] >= job.ranks:
        raise UsageError(
            f"--fault {text} is not KIND:RANKS:MS",
            why=f"KIND is one of {', '.join((*OF_RANKS, *OF_WORK))}; ranks count from 0 to {job.ranks - 1}.",
            hint="Write it like --fault compute:5:2.5 or --fault throttle:node1:4",
        )
    if kind == "experts" and not job.expert_ns:
        raise UsageError(
            f"--fault {text} needs experts",
            why="The layers of this job are no mixtures of experts.",
            hint="Add --experts 0.5",
        )
    period = _count("--fault", every) if slash else 0
    return Fault(kind, ranks, round(number("--fault", ms) * 1e6), every=period)


def _ranks(who: str, job: Job) -> tuple[int, ...]:
    """Of 5, 8-15, node3, stage1 or all; none where it is something else."""
    per_stage = job.data * job.tensor
    try:
        for word, size in (("node", job.ranks_per_node), ("stage", per_stage)):
            if who.startswith(word):
                first = int(who.removeprefix(word)) * size
                return tuple(range(first, min(first + size, job.ranks)))
        if who == "all":
            return tuple(range(job.ranks))
        return tuple(sorted(numbers_in(parse_ranges(who))))
    except ValueError:
        return ()
