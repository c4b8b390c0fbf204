"""The definitions of the figures of each report, and what findings mean: docs/reports and docs/findings as HTML.

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
_SOURCES = _PACKAGE.parents[1] / "docs"


def definition(report: str) -> str:
    """The definitions of a report, or a page by 'findings/NAME', as HTML without heading; empty if there is none."""
    return _pages().get(report, "")


@cache
def _pages() -> dict[str, str]:
    built = {
        page.relative_to(_BUILT).with_suffix("").as_posix(): page.read_text(encoding="utf-8")
        for page in _BUILT.rglob("*.html")
    }
    return built or render_pages(_SOURCES)


def render_pages(folder: Path) -> dict[str, str]:
    """HTML by report, and by 'findings/NAME'. The heading of a page in reports names its reports, '# steps, api: plain
    tables', and that of a part a further table, '## idle.gaps'."""
    pages = {
        f"findings/{path.stem}": to_html(path.read_text(encoding="utf-8").partition("\n")[2])
        for path in sorted(folder.glob("findings/*.md"))
    }
    for path in sorted(folder.glob("reports/*.md")):
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
