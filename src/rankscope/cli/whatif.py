"""rankscope whatif: estimate the gain of a change."""

from __future__ import annotations

import argparse

from rankscope.cli import common
from rankscope.cli.options import add_options

DESCRIPTION = """\
Replay the run with changed durations, and show how long a step would take.
Without an option: the common changes, one by one. With several options: each
alone, and all together. The assumptions are printed.
"""
EPILOG = """\
examples:
  rankscope whatif RUN
  rankscope whatif RUN --hide-comm
  rankscope whatif RUN --rank 2=median --kernel gelu=2x
  rankscope whatif RUN --balance ranks
      what uneven ranks cost: T - T_balanced (-r imbalance shows whose share it is)
  rankscope whatif RUN --bandwidth 2x --steps 3:5 --format json
"""
_CHANGES = """\
--hide-comm  collectives take no time once all ranks have arrived
--bandwidth 2x  transfers are this many times as fast; latency stays
--rank R=median ...  rank R (or R-S) computes, copies and launches as fast as the median rank (may be repeated)
--kernel NAME=2x ...  kernels with NAME in their name are this many times as fast (may be repeated)
--balance {ranks,stages,all}  work is spread evenly: ranks: over the ranks of a stage;
    stages: also over the stages; all: also over micro-batches and steps, with transfers at their median (may be
    repeated)
--no-gaps  the host and its data are always ready
--data-ready  no step waits for its batch
--no-sync  synchronising calls do not wait
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    common.add_run_argument(parser)
    add_options(parser, _CHANGES, rank=[], kernel=[], balance={"action": "append", "default": []})
    common.add_scope_options(parser)
    add_options(parser, "--format {table,csv,json,markdown}  default: table", format="table")
    common.add_reading_options(parser)


def main(args: argparse.Namespace) -> int:
    from rankscope.analysis.core.scope import ranks_at_median
    from rankscope.analysis.critical_path.scenarios import Changes, scenarios_of
    from rankscope.analysis.critical_path.whatif import whatif

    changes = Changes(
        hide_comm=args.hide_comm,
        bandwidth=args.bandwidth,
        ranks=ranks_at_median(args.rank),
        kernels=tuple(args.kernel),
        no_gaps=args.no_gaps,
        data_ready=args.data_ready,
        no_sync=args.no_sync,
    )
    balances = [Changes(balance=over) for over in dict.fromkeys(args.balance)]
    scenarios = [scenario for each in (changes, *balances) for scenario in scenarios_of(each)]
    args.bandwidth = None  # a factor here; for other commands it is a peak of the machine
    result = whatif(*common.open_part(args), scenarios)
    common.show_results(result, args.format, common.question_of(args))
    return 0
