"""rankscope bench: benchmarks to run, and traces with known answers. One file per sub-command."""

from __future__ import annotations

import argparse

from rankscope.cli import Parser, Subcommand
from rankscope.cli.bench import blame, cluster, collectives, seqpar, sweep, synthetic

_MODULES = {
    "seqpar": (seqpar, "a sequence-parallel loop on GPUs or CPUs, timed, checked, profiled"),
    "sweep": (sweep, "seqpar over a grid of sizes, precisions and ranks: one table"),
    "collectives": (collectives, "how fast each collective is at each size, as nccl-tests measures it"),
    "synthetic": (synthetic, "multi-rank traces of any size whose answers are known"),
    "cluster": (cluster, "traces of a simulated job with process groups and faults"),
    "blame": (blame, "a benchmark of tools: who is to blame for a slow job, why, at what cost"),
}
BENCHES = {
    name: Subcommand(summary, module.configure, module.run) for name, (module, summary) in _MODULES.items()
}


def configure(parser: Parser) -> None:
    parser.description = "Benchmarks to run, and traces with known answers."
    parser.add_subcommands("bench", BENCHES)


def main(args: argparse.Namespace) -> int:
    return BENCHES[args.bench].run(args)
