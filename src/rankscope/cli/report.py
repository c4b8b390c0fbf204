"""rankscope report: findings, charts and tables in one file."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from rankscope import units
from rankscope.cli import common
from rankscope.cli.options import add_options
from rankscope.errors import UsageError

if TYPE_CHECKING:
    from rankscope.analysis.core.result import Result
    from rankscope.analysis.core.scope import Scope
    from rankscope.timeline.run import Run

DESCRIPTION = "One file to mail: findings, charts, tables, and how each number is computed."
EPILOG = """\
examples:
  rankscope report RUN                          RUN-report.html: findings, charts, tables, definitions
  rankscope report RUN -o report.html --open
  rankscope report BASE NEW                     of NEW, with the changes from BASE
  rankscope report RUN --format markdown        the same in short, for a pull request (-o - prints it)
  rankscope report RUN --ranks 0-7 --steps 3:5
  rankscope report RUN --chart heatmap -o ranks.svg         one chart: what every rank did when
  rankscope report BASE NEW --chart change      a step before and now, and what had been predicted
  rankscope report RUN --chart roofline -o roofline.png     PNG needs pip install 'rankscope[png]'
  rankscope report sweep.json --chart sweep -o sweep.svg    of `rankscope bench sweep --format json > sweep.json`
  rankscope report --chart list                             every chart

The file is complete: it loads nothing from the network, and names from traces are shown as text only.
"""
MAIN_OPTIONS = "run output chart format open force ranks steps"
ENDINGS = {"html": ".html", "markdown": ".md"}
_OPTIONS = """\
[RUN ...]  a folder with one trace per rank, or a trace file; with two, BASE and NEW (default: the newest run folder
    here)
-o, --output FILE  where to (default: RUN-report.html here; - prints it)
--chart NAME  one chart in place of the report, as FILE.svg, .png or .html; list shows the names
--dark  with --chart: SVG and PNG on a dark background
--format {html,markdown}  default: by the file name's ending, else html
--open  open it in the browser
-f, --force  overwrite an existing file
"""


def configure(parser: argparse.ArgumentParser) -> None:
    common.add_run_argument(parser, _OPTIONS, output=Path)
    common.add_scope_options(parser)
    add_options(parser, common.FROM_EVENTS)
    common.add_reading_options(parser)


def main(args: argparse.Namespace) -> int:
    from rankscope.views.report.content import Request, build
    from rankscope.views.report.html_report import html_page
    from rankscope.views.report.markdown_report import markdown_page

    if args.chart:
        return _chart(args)
    if args.dark:
        raise UsageError(
            "--dark is for charts", why="The report follows the browser.", hint="Use it with --chart NAME."
        )
    if len(args.run) > 2:
        raise UsageError(
            "a report is of one run, or of two to compare",
            why=f"{len(args.run)} were named.",
            hint="Give the folder that holds the traces of all ranks.",
        )
    format = args.format or ("markdown" if args.output and args.output.suffix == ".md" else "html")
    subject = args.run[-1]
    printed = str(args.output) == "-"
    target = args.output or Path(f"{common.run_name(subject)}-report{ENDINGS[format]}")
    if not printed:
        common.check_target(target, args.force)
        if not target.parent.exists():  # a mistyped folder is not made
            raise UsageError(
                f"there is no folder {target.parent}",
                why=f"{target.name} would be written into it.",
                hint=f"Make it, or name another place: mkdir -p {target.parent}",
            )
    run, scope = common.open_part(args, path=subject)
    compared = _compared(args, run, scope) if len(args.run) == 2 else None
    request = Request(
        run,
        scope,
        common.run_name(subject),
        str(subject),
        () if args.ranks == "all" else ("--ranks", args.ranks),
        common.window_words(args),
        str(args.run[0]) if compared else "",
    )
    content = build(request, compared)
    text = html_page(content) if format == "html" else markdown_page(content)
    if printed:
        common.show(text)
        return 0
    with common.replacing(target) as temporary:
        temporary.write_text(text, encoding="utf-8")
    print(f"Wrote {target} ({units.format_bytes(target.stat().st_size)}): {content.headline.title}")
    if args.open:
        webbrowser.open(target.resolve().as_uri())
    return 0


def _chart(args: argparse.Namespace) -> int:
    """One chart, in the format that the file's name ends in."""
    from rankscope.views.charts import CHARTS, chart_of, find_chart
    from rankscope.views.charts.chart import FILE_TYPES
    from rankscope.views.charts.report_charts import CHANGE, SWEEP, read_sweep

    if args.chart == "list":
        for kind in CHARTS.values():
            print(f"{kind.name:<13} {kind.question}")
        print(f"{CHANGE:<13} What did a step consist of, before and now? (of two runs: BASE NEW)")
        print(
            f"{SWEEP:<13} How does the rate change with the sequence length? (of bench sweep --format json)"
        )
        return 0
    name = ",".join(common.current_reports(args.chart))
    target = args.output or Path(f"{name}.svg")
    if target.suffix not in FILE_TYPES or args.format:
        raise UsageError(
            f"--format {args.format} is not for a chart"
            if args.format
            else f"{target} is not a name for a chart",
            why="The ending decides the format.",
            hint=f"End it in {', '.join(FILE_TYPES)}.",
        )
    common.check_target(target, args.force)
    if name == SWEEP:
        chart = chart_of(read_sweep(args.run[0]))
    elif name == CHANGE:
        chart = chart_of(_compared(args, *common.open_part(args, path=args.run[-1])))
    else:
        chart = find_chart(name).make(*common.open_part(args))
    content = chart.content(target.suffix, "dark" if args.dark else "light")
    with common.replacing(target) as temporary:
        temporary.write_bytes(content)
    print(f"Wrote {target}: {chart.title}, {chart.subtitle}")
    if args.open:
        webbrowser.open(target.resolve().as_uri())
    return 0


def _compared(args: argparse.Namespace, run: Run, scope: Scope) -> Result:
    from rankscope.analysis.diff.two_runs import diff

    if len(args.run) != 2:
        raise UsageError(
            "the chart of a change is of two runs",
            why="It shows a step before and now.",
            hint="rankscope report BASE NEW --chart change",
        )
    return diff(common.open_run(args, args.run[0]), run, scope)
