"""rankscope query: SQL over the run."""

from __future__ import annotations

import argparse
from pathlib import Path

from rankscope.cli import common
from rankscope.cli.options import add_options, positive

DESCRIPTION = "Query the run in SQL. Without SQL: print the tables and their columns."
EPILOG = """\
examples:
  rankscope query RUN                                       the tables and their columns
  rankscope query RUN "SELECT name, sum(dur_ns) FROM gpu GROUP BY name ORDER BY 2 DESC LIMIT 5"
  rankscope query RUN "SELECT args->>'grid' FROM gpu JOIN events USING (rank, segment, id) LIMIT 3"

Times are nanoseconds from the run's start. The SQL is DuckDB's. The run is read-only.
docs/store.md describes every table and column.
"""
_MOST_ROWS = 1_000_000
_OPTIONS = f"""\
RUN  a folder with one trace per rank, or a trace file
[SQL]  one SELECT statement
--format {{table,csv,json}}  default: table
--rows N  at most N rows; a line on stderr says when there are more (default: {_MOST_ROWS:,})
"""


def configure(parser: argparse.ArgumentParser) -> None:
    rows = {"type": positive, "default": _MOST_ROWS}
    add_options(parser, _OPTIONS, run=Path, format="table", rows=rows)
    add_options(parser, common.CLOCKS, clocks="aligned")
    common.add_reading_options(parser)


def main(args: argparse.Namespace) -> int:
    from rankscope.analysis.core.result import query_result
    from rankscope.timeline.sql_views import VIEWS, describe

    if args.sql is None:
        for view in VIEWS:
            print(f"{view.name}: {view.help}")
            print("  " + ", ".join(field.name for field in describe(view)))
        return 0
    names, rows, more = common.open_run(args).query(args.sql, args.rows)
    result = query_result(names, rows, more)
    common.show_results(result, args.format, common.question_of(args))
    if more:
        common.say(
            f"rankscope: only the first {args.rows:,} rows are shown\n  The query gives more.\n  All of them: --rows N"
        )
    return 0
