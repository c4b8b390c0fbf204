"""The definitions of the figures of each report: the pages of docs/reports as HTML.

hatch_build.py renders the pages when a wheel is built, with `render_pages`, so that users need no Markdown library. In
a checkout they are rendered here if markdown-it-py is installed (extra `dev`), and else shown as plain text. This
module imports only the standard library, because the build loads it without rankscope's dependencies.
"""

from __future__ import annotations

import re
from functools import cache
from html import escape
from pathlib import Path

_PACKAGE = Path(__file__).parents[2]
_BUILT = _PACKAGE / "definitions"
_SOURCES = _PACKAGE.parents[1] / "docs" / "reports"


def definition(report: str) -> str:
    """The definitions of a report as HTML, without their heading; empty if there are none."""
    return _pages().get(report, "")


@cache
def _pages() -> dict[str, str]:
    built = {page.stem: page.read_text(encoding="utf-8") for page in _BUILT.glob("*.html")}
    return built or render_pages(_SOURCES)


def render_pages(folder: Path) -> dict[str, str]:
    """HTML by report. The heading of a page names its reports, '# steps, api: plain tables', and that of a part a
    further table, '## idle.gaps'."""
    pages: dict[str, str] = {}
    for path in sorted(folder.glob("*.md")):
        for part in re.split(
            r"^##? (?=[a-z_., ]+:|[a-z_]+\.[a-z_]+$)", path.read_text(encoding="utf-8"), flags=re.M
        )[1:]:
            heading, _, text = part.partition("\n")
            html = to_html(text)
            pages |= dict.fromkeys(map(str.strip, heading.partition(":")[0].split(",")), html)
    return pages


def to_html(markdown: str) -> str:
    """CommonMark and tables as HTML. Raw HTML is escaped; links become text, since the report has no other pages."""
    try:
        from markdown_it import MarkdownIt
    except ImportError:
        return f"<pre>{escape(markdown.strip())}</pre>"
    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable(["image", "autolink"])
    tokens = parser.parse(markdown)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = "h4"
        token.attrs.pop("style", None)  # of aligned table cells; the report's policy forbids inline styles
        token.children = [t for t in token.children or [] if t.type not in ("link_open", "link_close")]
    html: str = parser.renderer.render(tokens, parser.options, {})
    return html.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")
