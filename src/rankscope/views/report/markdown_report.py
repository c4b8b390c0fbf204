"""A short report as Markdown, for a pull request or an issue."""

from __future__ import annotations

from dataclasses import replace

from rankscope.version import __version__
from rankscope.views.markdown import finding_text, markdown, prose
from rankscope.views.report.content import Content, Headline, Section

_ROWS = {
    "breakdown": 8,
    "kernels": 5,
    "ops": 5,
    "stragglers": 8,
    "collectives": 5,
    "overlap": 8,
    "diff": 20,
    "diff-memory": 5,
}
"""The tables in the report, with their number of rows."""


def markdown_page(content: Content) -> str:
    """Headline, figures, findings, and the main tables."""
    blocks = [
        f"# {prose(content.title)}",
        markdown_summary(content),
        *(_section(section) for section in content.sections if section.name in _ROWS and section.result.rows),
        f"Made by rankscope {__version__}: `{content.command} --format markdown`. "
        f"`{content.command}` writes the report with charts.",
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def markdown_summary(content: Content) -> str:
    """What goes into an issue: headline, figures and findings."""
    figures = " · ".join(f"**{prose(figure.value)}** {prose(figure.label)}" for figure in content.figures)
    blocks = [
        f"{prose(content.subtitle)}",
        *(f"In doubt: {prose(doubt.title)}. {prose(doubt.advice)}" for doubt in content.doubts),
        _headline(content.headline),
        figures,
        *(
            f"## {heading}\n\n" + "\n".join(map(finding_text, findings))
            for heading, findings in content.lists.items()
        ),
    ]
    return "\n\n".join(filter(None, blocks))


def _headline(headline: Headline) -> str:
    """Facts and advice are those of the first finding."""
    change = " ".join(filter(None, (headline.change, headline.change_note)))
    texts = (f"**{prose(headline.title)}**", prose(headline.detail), f"**{prose(change)}**" if change else "")
    commands = (f"{prose(what)}: `{how}`" for what, how in headline.commands)
    return "\\\n".join(filter(None, (*texts, *commands)))


def _section(section: Section) -> str:
    result, most = section.result, _ROWS[section.name]
    more = len(result.rows) - most
    notes = (*result.notes, f"{more:,} more rows: {section.command}") if more > 0 else result.notes
    return markdown(replace(result, rows=result.rows[:most], findings=(), notes=notes)).rstrip()
