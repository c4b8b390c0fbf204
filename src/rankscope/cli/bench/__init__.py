"""rankscope bench: benchmarks to run, one file each, and the commands of rankscope-bench where it is installed."""

from __future__ import annotations

import argparse
from functools import cache
from importlib.metadata import entry_points
from typing import NoReturn

from rankscope.cli import Parser, Subcommand
from rankscope.cli.bench import collectives, seqpar, sweep
from rankscope.errors import MissingPackageError

DESCRIPTION = "Benchmarks to run, and traces with known answers."
EPILOG = ""
_MODULES = {
    "seqpar": (seqpar, "a sequence-parallel loop on GPUs or CPUs, timed, checked, profiled"),
    "sweep": (sweep, "seqpar over a grid of sizes, precisions and ranks: one table"),
    "collectives": (collectives, "how fast each collective is at each size, as nccl-tests measures it"),
}
_OF_RANKSCOPE_BENCH = {
    "synthetic": "multi-rank traces of any size whose answers are known",
    "cluster": "traces of a simulated job with process groups and faults",
    "blame": "a benchmark of tools: who is to blame for a slow job, why, at what cost",
    "exam": "what rankscope says about planted faults, scored",
}
_ENTRY_POINTS = "rankscope.bench_commands"


def configure(parser: Parser) -> None:
    parser.add_subcommands("bench", _commands())


def main(args: argparse.Namespace) -> int:
    return _commands()[args.bench].run(args)


@cache
def _commands() -> dict[str, Subcommand]:
    commands = {
        name: Subcommand(summary, module.configure, module.run)
        for name, (module, summary) in _MODULES.items()
    }
    installed = {point.name: point for point in entry_points(group=_ENTRY_POINTS)}
    for name, summary in _OF_RANKSCOPE_BENCH.items():
        if name in installed:
            module = installed[name].load()
            commands[name] = Subcommand(summary, module.configure, module.run)
        else:
            commands[name] = Subcommand(summary, _refuse, main)
    return commands


def _refuse(parser: argparse.ArgumentParser) -> None:
    """Whatever follows the name of a command that is not installed, also --help, is answered by what to install."""

    def parse_known_args(*_: object) -> NoReturn:
        raise MissingPackageError(
            f"{parser.prog} needs the package rankscope-bench",
            why="It is not installed in this Python; rankscope itself needs nothing of it.",
            hint="pip install rankscope-bench",
        )

    parser.parse_known_args = parse_known_args  # type: ignore[method-assign,assignment]
