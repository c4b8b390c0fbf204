"""rankscope chart: one chart of a run as a file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from rankscope.cli.common import (
    add_reading_options,
    add_run_argument,
    add_scope_options,
    check_target,
    open_run,
    replacing,
    scope_of,
)
from rankscope.errors import NotATraceError, UsageError

if TYPE_CHECKING:
    from rankscope.analysis.core.result import Result
    from rankscope.views.charts import Chart

EXAMPLES = """\
examples:
  rankscope chart RUN -r heatmap -o ranks.svg         what every rank did when
  rankscope chart RUN -r roofline -o roofline.png     PNG needs: pip install 'rankscope[png]'
  rankscope chart RUN -r memory -o memory.html --ranks 3
  rankscope chart sweep.json -r sweep -o sweep.svg    of `rankscope bench sweep --format json > sweep.json`
  rankscope chart RUN -r list                         every chart

No browser and no network are needed. HTML follows the reader's light or dark; SVG and PNG are light unless --dark.
"""
SWEEP = "sweep"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "One chart of a run as SVG, PNG or HTML; the name's ending says which."
    parser.epilog = EXAMPLES
    add_run_argument(parser)
    parser.add_argument(
        "-r", "--report", metavar="NAME", required=True, help="which chart, or list to see them"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="FILE.svg, .png or .html (default: NAME.svg here)"
    )
    parser.add_argument("--dark", action="store_true", help="SVG and PNG on a dark ground")
    parser.add_argument("-f", "--force", action="store_true", help="overwrite what is there")
    add_scope_options(parser)
    add_reading_options(parser)


def main(args: argparse.Namespace) -> int:
    from rankscope.views.charts import CHARTS, find_chart
    from rankscope.views.charts.chart import FILE_TYPES

    if args.report == "list":
        for kind in CHARTS.values():
            print(f"{kind.name:<12} {kind.question}")
        print(
            f"{SWEEP:<12} How does the rate change with the sequence length? (of bench sweep --format json)"
        )
        return 0
    target = args.output or Path(f"{args.report}.svg")
    if target.suffix not in FILE_TYPES:
        raise UsageError(
            f"{target} is not a name for a chart",
            why="The ending says what is written.",
            hint=f"End it in {', '.join(FILE_TYPES)}.",
        )
    check_target(target, args.force)
    chart = _sweep(args.run[0]) if args.report == SWEEP else None
    if chart is None:
        make = find_chart(args.report).make
        scope = scope_of(args)
        run = open_run(args)
        scope.check(run)
        chart = make(run, scope)
    content = chart.content(target.suffix, "dark" if args.dark else "light")
    with replacing(target) as temporary:
        temporary.write_bytes(content)
    print(f"Wrote {target}: {chart.title}, {chart.subtitle}")
    return 0


def _sweep(path: Path) -> Chart:
    from rankscope.views.charts import chart_of

    return chart_of(sweep_result(path))


def sweep_result(path: Path) -> Result:
    """What `bench sweep --format json` (or its --chart) wrote, as a table."""
    from rankscope.analysis.core.result import Column, Result

    columns = (
        Column("series", help="precision, hidden size, ranks"),
        Column("sequence", "count", "length"),
        Column("flop_s", "flop/s", "both matmuls of one rank, median"),
    )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        chart = content.get("chart", content)
        rows = [
            {"series": row["series"], "sequence": row["sequence"], "flop_s": row["matmul_tflop_s"] * 1e12}
            for row in chart["data"]["values"]
            if row["matmul_tflop_s"] is not None
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotATraceError(
            f"cannot read {path} as a sweep",
            why=f"It is not what bench sweep writes ({type(error).__name__}: {error}).",
            hint=f"Make one: rankscope bench sweep -s 2304,4608 --format json > {path.name}",
        ) from None
    return Result(SWEEP, "Matmul rate by sequence length", "every point of the sweep", columns, rows)
