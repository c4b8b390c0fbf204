"""The exact definition of a report's figures, as docs/reports has it, turned into HTML.

Installed, the pages lie inside the package; in a checkout, in docs/reports. What is not there is left out: every
column's own line of help is shown anyway.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from rankscope.views.escape import escape

_PACKAGE = Path(__file__).parents[2]
_FOLDERS = (_PACKAGE / "definitions", _PACKAGE.parents[1] / "docs" / "reports")
_CODE = re.compile(r"`([^`]+)`")
_INLINE = (
    (re.compile(r"\*\*([^*]+)\*\*"), r"<b>\1</b>"),
    (re.compile(r"(?<![\w*])\*([^*\s][^*]*)\*(?![\w*])"), r"<i>\1</i>"),
    (re.compile(r"\[([^\]]+)\]\([^)]*\)"), r"\1"),
    (re.compile(r"\\([|\\*_])"), r"\1"),
)


def definition(name: str) -> str:
    """The page of a report as HTML, without its heading; empty where there is none."""
    page = _pages().get(name)
    return to_html(page.read_text(encoding="utf-8")) if page else ""


@cache
def _pages() -> dict[str, Path]:
    """By report: a page's heading names those it explains, '# steps, api: plain tables'."""
    pages: dict[str, Path] = {}
    for folder in _FOLDERS:
        for page in sorted(folder.glob("*.md")):
            with page.open(encoding="utf-8") as lines:
                names = next(lines, "").lstrip("# ").partition(":")[0]
            for name in names.split(","):
                pages.setdefault(name.strip(), page)
    return pages


def to_html(markdown: str) -> str:
    """The Markdown our pages are written in: paragraphs, lists, tables, code, emphasis."""
    return "".join(_block(block) for block in _blocks(markdown.splitlines()))


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """Lines between blank ones; fenced code is one block."""
    block: list[str] = []
    fenced = False
    for line in lines:
        if line.startswith("```"):
            if not fenced and block:
                yield block
                block = []
            block.append(line)
            if fenced:
                yield block
                block = []
            fenced = not fenced
        elif line.strip() or fenced:
            block.append(line)
        elif block:
            yield block
            block = []
    if block:
        yield block


def _block(lines: list[str]) -> str:
    first = lines[0]
    if first.startswith("```"):
        return f"<pre>{escape_lines(lines[1:-1])}</pre>"
    if first.startswith("# "):
        return "".join(map(_block, [lines[1:]])) if lines[1:] else ""
    if first.startswith("#"):
        rest = _block(lines[1:]) if lines[1:] else ""
        return f"<h4>{_inline(first.lstrip('# '))}</h4>{rest}"
    if first.startswith("|"):
        return _table(lines)
    if re.match(r"[-*] |\d+\. ", first):
        return f"<ul>{''.join(f'<li>{_inline(item)}</li>' for item in _items(lines))}</ul>"
    return f"<p>{_inline(' '.join(lines))}</p>"


def escape_lines(lines: list[str]) -> str:
    return "\n".join(escape(line) for line in lines)


def _items(lines: list[str]) -> list[str]:
    items: list[str] = []
    for line in lines:
        if match := re.match(r"(?:[-*]|\d+\.) (.*)", line):
            items.append(match[1])
        elif items:
            items[-1] += f" {line.strip()}"
    return items


def _table(lines: list[str]) -> str:
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        for line in lines
        if not re.fullmatch(r"[|:\s-]+", line)
    ]
    head = "".join(f"<th>{_inline(cell)}</th>" for cell in rows[0])
    body = "".join(f"<tr>{''.join(f'<td>{_inline(cell)}</td>' for cell in row)}</tr>" for row in rows[1:])
    return f"<div class=wide><table><tr>{head}</tr>{body}</table></div>"


def _inline(text: str) -> str:
    # Code first and put back last: what is inside it means nothing else.
    codes: list[str] = []

    def keep(match: re.Match[str]) -> str:
        codes.append(f"<code>{escape(match[1])}</code>")
        return f"\x00{len(codes) - 1}\x00"

    kept = _CODE.sub(keep, text)
    html = "\x00".join(escape(piece) for piece in kept.split("\x00"))
    for pattern, replacement in _INLINE:
        html = pattern.sub(replacement, html)
    return re.sub(r"\x00(\d+)\x00", lambda match: codes[int(match[1])], html)
