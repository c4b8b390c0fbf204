"""rankscope probe: is a device slow, or is its work?"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from rankscope.bench.probe.judge import OK, SEVERITIES, judge
from rankscope.bench.probe.report_text import report_text
from rankscope.bench.probe.results import Results, read_results
from rankscope.bench.ranks.world import require_torch
from rankscope.capture.rank import SINGLE, detect
from rankscope.cli.bench.seqpar import NPROC, WHERE
from rankscope.cli.options import add_options, positive, words_of
from rankscope.errors import UsageError
from rankscope.units import parse_seconds

DESCRIPTION = """\
Tell bad hardware from uneven work. For some seconds every device does the same:
matmul, copies, disk test, all_reduce of each pair of ranks. Devices are compared
with each other, with an earlier probe and with the data sheet. Clocks, power,
PCIe, throttling and errors (ECC, Xid) are shown beside. A GPU that somebody uses
is left alone. Needs torch and nothing else.
"""
EPILOG = """\
examples:
  rankscope probe                       every GPU of this machine
  srun -N 4 --ntasks-per-node 8 rankscope probe
  torchrun --nproc-per-node 8 -m rankscope probe --seconds 20
  rankscope probe --json > node7.json   keep it, as a baseline or to compare:
  rankscope probe --baseline node7.json
  rankscope probe node1.json node2.json node7.json
      measures nothing: nodes that were probed one by one, judged together
  rankscope probe --fail-on warning || drain-this-node
"""
_OPTIONS = f"""\
[FILE ...]  results of --json: judge them together, measure nothing
-t, --seconds S  of the matmul (default: 2); longer finds heat
--disk DIR  where a file of 64 MB is written and read (default: the current folder)
--no-disk  do not test the disk
--baseline FILE  an earlier result of --json: devices of the same model are compared with it
{NPROC}{WHERE}\
--json  the results and verdicts as JSON on stdout
--fail-on {{info,warning,critical}}  exit with 3 if a verdict is at least this severe
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_options(parser, _OPTIONS, nproc=positive, seconds={"type": parse_seconds, "default": 2.0}, disk=".")


def main(args: argparse.Namespace) -> int:
    baseline = read_results([args.baseline]) if args.baseline is not None else None
    if args.file:
        return _show(args, read_results(args.file), baseline)
    _check(args)
    require_torch("The probe runs torch's matrix products, copies and collectives.")
    ranks = args.nproc or (_gpus(args.device) if detect(os.environ).source == SINGLE else None)
    if ranks is not None and (ranks > 1 or args.nproc):
        from rankscope.bench.ranks.spawn import run_ranks

        return run_ranks(["probe", *words_of(args, configure, "nproc")], ranks)
    return _run_rank(args, baseline)


def _check(args: argparse.Namespace) -> None:
    if args.seconds <= 0:
        raise UsageError("--seconds must be more than 0", hint="Give a time such as 2 or 30s.")
    if not args.no_disk and not Path(args.disk).is_dir():
        raise UsageError(
            f"--disk {args.disk} is not a folder",
            why="A file is written and read there.",
            hint="Name the folder of the data or the checkpoints, or give --no-disk.",
        )


def _gpus(device: str | None) -> int:
    """How many GPUs this process may use; 1 for its CPU."""
    import torch

    return max(1, torch.cuda.device_count()) if device in (None, "cuda") else 1


def _run_rank(args: argparse.Namespace, baseline: Results | None) -> int:
    """One rank. Only rank 0 prints. The ranks meet over their CPUs: a GPU in use is not touched."""
    from rankscope.bench.probe.measure import measure
    from rankscope.bench.ranks.world import World, choose_device, run_as_rank

    def test(world: World) -> int:
        device, backend, _ = choose_device(args.backend, args.device, world.identity)
        folder = None if args.no_disk else Path(args.disk)
        results = measure(world, world._replace(device=device, backend=backend), args.seconds, folder)
        return _show(args, results, baseline) if world.rank == 0 else 0

    return run_as_rank("gloo", "cpu", test)


def _show(args: argparse.Namespace, results: Results, baseline: Results | None) -> int:
    verdicts = judge(results, baseline)
    if args.json:
        report = {**results.to_json(), "verdicts": [verdict._asdict() for verdict in verdicts]}
        print(json.dumps(report, indent=1), flush=True)
    else:
        print(report_text(results, verdicts), end="", flush=True)
    severe = SEVERITIES[: SEVERITIES.index(args.fail_on) + 1] if args.fail_on else ()
    return 3 if any(verdict.severity in severe and verdict.severity != OK for verdict in verdicts) else 0
