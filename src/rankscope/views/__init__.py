"""Results as text: a terminal table, CSV, JSON or Markdown. Strings come out; only the command line prints.

A command ends in
``sys.stdout.write(render(result, args.format, terminal_width(sys.stdout), use_color(sys.stdout)))``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from rankscope.analysis.core.result import Result
from rankscope.errors import UsageError
from rankscope.views.csv_json import csv_text, json_text
from rankscope.views.markdown import markdown
from rankscope.views.nsys_columns import nsys_columns
from rankscope.views.table import table
from rankscope.views.terminal import PIPED_WIDTH, terminal_width, use_color

Format = Literal["table", "csv", "json", "markdown"]
FORMATS: tuple[str, ...] = get_args(Format)

__all__ = ["FORMATS", "PIPED_WIDTH", "Format", "render", "terminal_width", "use_color"]


def render(
    results: Result | Sequence[Result], format: str = "table", width: int = PIPED_WIDTH, color: bool = False
) -> str:
    """`results` in `format`, ending in a newline. Only tables heed `width` and `color`."""
    several = [results] if isinstance(results, Result) else list(results)
    if format == "table":
        return "\n".join(
            nsys_columns(result) if result.layout == "nsys" else table(result, width, color)
            for result in several
        )
    if format == "markdown":
        return "\n".join(map(markdown, several))
    if format == "csv":
        return csv_text(several)
    if format == "json":
        return json_text(several)
    raise UsageError(f"'{format}' is not a format", hint=f"There are: {', '.join(FORMATS)}.")
