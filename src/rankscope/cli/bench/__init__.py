"""rankscope bench: benchmarks to run, and traces with known answers. One file per sub-command."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

from rankscope.cli import Parser
from rankscope.cli.bench import cluster, collectives, seqpar, sweep, synthetic


class Bench(NamedTuple):
    """One sub-command."""

    summary: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


BENCHES = {
    "seqpar": Bench(
        "a sequence-parallel loop on GPUs or CPUs, timed, checked, profiled",
        seqpar.configure,
        seqpar.run,
    ),
    "sweep": Bench(
        "seqpar over a grid of sizes, precisions and ranks: one table", sweep.configure, sweep.run
    ),
    "collectives": Bench(
        "how fast each collective is at each size, as nccl-tests measures it",
        collectives.configure,
        collectives.run,
    ),
    "synthetic": Bench(
        "multi-rank traces of any size whose answers are known", synthetic.configure, synthetic.run
    ),
    "cluster": Bench(
        "traces of a simulated job with process groups and faults", cluster.configure, cluster.run
    ),
}


def configure(parser: Parser) -> None:
    parser.description = "Benchmarks to run, and traces with known answers."
    parser.add_subcommands("bench", BENCHES)


def main(args: argparse.Namespace) -> int:
    return BENCHES[args.bench].run(args)
