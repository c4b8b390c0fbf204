"""rankscope ingest: read raw traces into the store."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from rankscope import units
from rankscope.cli.common import add_reading_options, add_run_argument, dask_cluster, read, show, use_tools
from rankscope.cli.options import add_options, made_of
from rankscope.errors import UsageError
from rankscope.text.run_words import shell_words

DESCRIPTION = "Read raw traces once into a store that the other commands open quickly."
EPILOG = """\
examples:
  rankscope ingest runs/a                                a folder with one trace per rank
  rankscope ingest t0.json.gz t1.json.gz -o runs/a       files from anywhere; the store goes to runs/a
  rankscope ingest runs/a --rank 17=runs/a/trace_x.json  give the rank of a file that does not contain it
  rankscope ingest /readonly/run --cache /scratch/me     where the run's folder is read-only
  rankscope ingest runs/a --dask slurm --dask-option nodes=4 --dask-option ppn=16
                                                         many ranks, on the nodes of a cluster (docs/scale.md)

The store is made beside the traces (RUN/.rankscope, FILE.rankscope) and can be deleted at any time.
A second call reads only files that are new or changed.
"""
_OPTIONS = """\
-o, --output DIR  put the store in DIR (then DIR is the run)
--rank N=FILE ...  FILE is of rank N, for files that do not contain their rank (may be repeated)
-v, --verbose  also print what read each file: the part in C, or DuckDB
--print-store  print only the path of the store (for `rankscope fetch`)
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser)
    add_options(parser, _OPTIONS, output=Path)
    add_reading_options(parser)


def main(args: argparse.Namespace) -> int:
    from rankscope.store.ingest import Options

    ranks = dict(_given_rank(text) for text in args.rank)
    runs = [run.resolve() for run in args.run]
    held = {*runs, *(path for run in runs if run.is_dir() for path in run.iterdir())}
    paths = args.run + [path for path in ranks if path.resolve() not in held]
    options = made_of(Options, args, ranks=ranks, dask=dask_cluster(args))
    use_tools(args)
    ingested = read(paths, options, args)
    if args.print_store:
        show(f"{ingested.store.resolve()}\n")
        return 1 if ingested.problems else 0
    for entry in ingested.index.segments:
        manifest, report = entry.manifest, entry.manifest["reading"]
        damage = [f"{report['events_lost']:,} events lost"] if report["events_lost"] else []
        damage += [f"{report['events_repaired']:,} repaired"] if report["events_repaired"] else []
        damage += [report["damage"]] if report["damage"] else []
        note = f"  ({'; '.join(damage)}; see rankscope doctor)" if damage else ""
        print(f"rank {entry.rank:>4}  {_amount(manifest):>20}  {entry.source.name}{note}")
        if args.verbose:
            batches = ", ".join(f"{count:,} by {name}" for name, count in manifest["read_by"].items())
            print(f"           batches of events read: {batches}")
    if not ingested.read and not args.quiet:
        print("Nothing to read: the store is up to date.")
    print(f"Next: rankscope stats {shell_words([args.output] if args.output else args.run)}")
    return 1 if ingested.problems else 0


def _amount(manifest: dict[str, Any]) -> str:
    """How much is in a file: its events, or the rows of its first other table."""
    further = {name: count for name, count in manifest["further"].items() if not manifest["events"]}
    what, count = next(iter(further.items()), ("events", manifest["events"]))
    return f"{units.format_count(count)} {what.replace('_', ' ')}"


def _given_rank(text: str) -> tuple[Path, int]:
    match = re.fullmatch(r"(\d+)=(.+)", text)
    if not match:
        raise UsageError(
            f"--rank {text} is not N=FILE", hint="Write it like --rank 17=runs/a/trace_x.json.gz"
        )
    path = Path(match[2])
    if not path.is_file():
        raise UsageError(f"--rank {text} is not a file", why=f"There is no {path}.", hint="Check the path.")
    return path, int(match[1])
