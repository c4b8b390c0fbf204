"""rankscope chart: one chart of a run as a file."""

from __future__ import annotations

import argparse
from pathlib import Path

from rankscope.cli import common
from rankscope.cli.options import add_options
from rankscope.errors import UsageError

EXAMPLES = """\
examples:
  rankscope chart RUN -r heatmap -o ranks.svg         what every rank did when
  rankscope chart RUN -r roofline -o roofline.png     PNG needs pip install 'rankscope[png]'
  rankscope chart RUN -r memory -o memory.html --ranks 3
  rankscope chart sweep.json -r sweep -o sweep.svg    of `rankscope bench sweep --format json > sweep.json`
  rankscope chart RUN -r list                         every chart

No browser and no network are needed. HTML follows the browser's light or dark mode;
SVG and PNG are light unless --dark.
"""
_OPTIONS = """\
-r, --report NAME  which chart, or list to see them
-o, --output FILE  FILE.svg, .png or .html (default: NAME.svg here)
--dark  SVG and PNG on a dark background
-f, --force  overwrite an existing file
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "One chart of a run as SVG, PNG or HTML, chosen by the file name's ending."
    parser.epilog = EXAMPLES
    common.add_run_argument(parser)
    add_options(parser, _OPTIONS, report={"required": True}, output=Path)
    common.add_scope_options(parser)
    common.add_reading_options(parser)


def main(args: argparse.Namespace) -> int:
    from rankscope.views.charts import CHARTS, chart_of, find_chart
    from rankscope.views.charts.chart import FILE_TYPES
    from rankscope.views.charts.report_charts import SWEEP, read_sweep

    if args.report == "list":
        for kind in CHARTS.values():
            print(f"{kind.name:<13} {kind.question}")
        print(
            f"{SWEEP:<13} How does the rate change with the sequence length? (of bench sweep --format json)"
        )
        return 0
    name = ",".join(common.current_reports(args.report))
    target = args.output or Path(f"{name}.svg")
    if target.suffix not in FILE_TYPES:
        raise UsageError(
            f"{target} is not a name for a chart",
            why="The ending decides the format.",
            hint=f"End it in {', '.join(FILE_TYPES)}.",
        )
    common.check_target(target, args.force)
    if name == SWEEP:
        chart = chart_of(read_sweep(args.run[0]))
    else:
        make = find_chart(name).make
        chart = make(*common.open_part(args))
    content = chart.content(target.suffix, "dark" if args.dark else "light")
    with common.replacing(target) as temporary:
        temporary.write_bytes(content)
    print(f"Wrote {target}: {chart.title}, {chart.subtitle}")
    return 0
