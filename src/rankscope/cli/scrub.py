"""rankscope scrub: an nsys export without the environment and the secrets that nsys recorded in it."""

from __future__ import annotations

import argparse
from pathlib import Path

from rankscope.cli.common import check_target
from rankscope.cli.options import add_options
from rankscope.errors import UsageError
from rankscope.text.run_words import shell_word

EXAMPLES = """\
examples:
  rankscope scrub report.sqlite                    writes report.scrubbed.sqlite
  rankscope scrub rank_*.sqlite                    each beside its original
  rankscope scrub report.sqlite -o report.sqlite -f      in place of the original

nsys records every environment variable of the job, keys and tokens included, its command line, and what the program
printed. Variables, output and the command line's secrets are removed, and the new file's bytes are searched as a check.
The data that rankscope reads is not changed; a rank that only the variables contain is added to the new file's name.
A .nsys-rep cannot be changed: export it, scrub the export, and do not share the report.
"""
_OPTIONS = """\
-o, --output FILE  where to (default: REPORT.scrubbed.sqlite)
-f, --force  overwrite existing files
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Remove the recorded environment and secrets from nsys exports, so that they can be shared."
    )
    parser.epilog = EXAMPLES
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT.sqlite", help="nsys exports")
    add_options(parser, _OPTIONS, output=Path)


def main(args: argparse.Namespace) -> int:
    from rankscope.readers.nsys.scrub import scrub

    if args.output and len(args.reports) > 1:
        raise UsageError(
            "-o names one file, but there are several reports", hint="Leave -o out, or scrub them one by one."
        )
    targets = {report: args.output or _target(report) for report in args.reports}
    for target in targets.values():
        check_target(target, args.force)
    for report, target in targets.items():
        done = scrub(report, target)
        counts = {"variable": done.variables, "printed text": done.outputs, "secret argument": done.arguments}
        removed = [f"{number} {noun}{'s' * (number > 1)}" for noun, number in counts.items() if number]
        outcome = f"{', '.join(removed)} removed" if removed else "no variables were recorded"
        print(f"Wrote {target} ({outcome})")
    return 0


def _target(report: Path) -> Path:
    """REPORT.scrubbed.sqlite, with the rank in its name where only the recorded variables contain it."""
    from rankscope.readers.base import rank_from_name
    from rankscope.readers.nsys.identity import FROM_ENVIRONMENT
    from rankscope.readers.nsys.reader import NSYS

    if not report.is_file():
        raise UsageError(f"there is no {report}", why="No such file.", hint="Check the path.")
    if report.suffix == ".nsys-rep":
        raise UsageError(
            f"{report} cannot be scrubbed",
            why="Only nsys can write its own reports.",
            hint=f"Scrub its export instead: nsys export --type sqlite {shell_word(report.name)}",
        )
    identity = NSYS.identify(report)
    only_recorded = identity.rank_source == FROM_ENVIRONMENT and rank_from_name(report) != identity.rank
    rank = f".rank-{identity.rank}" if only_recorded else ""
    return report.with_name(f"{report.stem}{rank}.scrubbed.sqlite")
