"""Results for people and programs: terminal tables, CSV, JSON, Markdown, charts, the HTML report, trace exports.

Used by `cli` and `notebook`. Views take results of `analysis` and return strings or bytes; they print
nothing and compute no figures. A command ends in
``show(render(result, args.format, terminal_width(sys.stdout), use_color(sys.stdout)))``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

from rankscope.analysis.core.result import Result
from rankscope.errors import UsageError
from rankscope.views.table import nsys_table, table
from rankscope.views.terminal import PIPED_WIDTH, terminal_width, use_color

if TYPE_CHECKING:
    from rankscope.views.envelope import Question

Format = Literal["table", "csv", "json", "markdown"]
FORMATS: tuple[str, ...] = get_args(Format)

__all__ = ["FORMATS", "PIPED_WIDTH", "Format", "render", "terminal_width", "use_color"]


def render(
    results: Result | Sequence[Result],
    format: str = "table",
    width: int = PIPED_WIDTH,
    color: bool = False,
    quote_formulas: bool = True,
    question: Question | None = None,
) -> str:
    """`results` in `format`, ending in a newline. `width` and `color` apply to tables, `quote_formulas` to CSV, and
    `question` to JSON, whose commands have the paths of its runs."""
    several = [results] if isinstance(results, Result) else list(results)
    if format == "table":
        return "\n".join(
            nsys_table(result) if result.layout == "nsys" else table(result, width, color)
            for result in several
        )
    if format == "markdown":
        from rankscope.views.markdown import markdown

        return "\n".join(map(markdown, several))
    if format in FORMATS:
        from rankscope.views import envelope

        if format == "csv":
            return envelope.csv_text(several, quote_formulas)
        return envelope.json_text(several, question or envelope.Question())
    raise UsageError(f"'{format}' is not a format", hint=f"There are: {', '.join(FORMATS)}.")
