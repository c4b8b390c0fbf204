"""The report as one self-contained HTML file. It loads nothing, and text from traces is escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from rankscope.analysis.core.result import Finding, Result
from rankscope.version import __version__
from rankscope.views.charts import Chart
from rankscope.views.charts.theme import style_variables
from rankscope.views.columns import Field, fields, values_of
from rankscope.views.escape import attributes, escape
from rankscope.views.report.content import Content, Figure, Section
from rankscope.views.report.definitions import definition
from rankscope.views.text import Parts, kept_parts

_HERE = Path(__file__).parent
_OPEN_ROWS = 12
"""Tables with up to this many rows are open; longer ones open with a click."""
_NAME_CELLS = 42
"""Longer names in tables are shortened to this width."""
_FONTS = (
    '--mono: ui-monospace, "SF Mono", "DejaVu Sans Mono", Menlo, monospace; '
    '--sans: system-ui, "Segoe UI", "DejaVu Sans", Helvetica, Arial, sans-serif;'
)
_HEATMAP_HELP = (
    "One row per rank. Time is divided into intervals. Each is filled from below by the share in which compute kernels "
    "ran (blue), collectives ran without compute (striped), or only copies ran (light). The rest is idle. The classes "
    "are those of the breakdown report, so the sums over a row are the breakdown of the rank."
)


def html_page(content: Content) -> str:
    """The whole file."""
    style, script = _style(), _script()
    # Only the script and the style with these hashes are active, so a missed escape cannot run code.
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    shown = [section for section in content.sections if section.main or not section.empty]
    missing = [section for section in content.sections if section.empty and not section.main]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">',
            f"<title>{escape(content.title)}: rankscope</title>",
            f"<style>{style}</style></head>",
            "<body>",
            f'<header><b>rankscope</b><span class="meta">{escape(content.title)} · {escape(content.subtitle)}</span>'
            '<button id="theme" type="button">light / dark</button></header>',
            f'<div class="top">{_verdict(content)}</div>',
            _navigation(shown, content, bool(missing)),
            "<main>",
            _findings(content.findings),
            _heatmap(content),
            *(_section(section) for section in shown),
            _missing(missing),
            _facts(content),
            "</main>",
            f"<footer>Made by rankscope {escape(__version__)}: <code>{escape(content.command)}</code>. "
            "This file is self-contained: it loads nothing and sends nothing.</footer>",
            '<div id="tip" hidden role="status"></div>',
            f"<script>{script}</script>",
            "</body></html>\n",
        ]
    )


@cache
def _style() -> str:
    light, dark = style_variables("light"), style_variables("dark")
    return (
        f":root {{ color-scheme: light; {_FONTS} {light} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ color-scheme: dark; {dark} }} "
        f":root[data-theme=light] {{ color-scheme: light; {light} }} }}\n"
        f"@media screen {{ :root[data-theme=dark] {{ color-scheme: dark; {dark} }} }}\n"
        + (_HERE / "style.css").read_text(encoding="utf-8")
    )


@cache
def _script() -> str:
    return (_HERE / "script.js").read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _verdict(content: Content) -> str:
    figures = "".join(map(_figure, content.figures))
    doubtful = "".join(
        f'<p class="doubt"><b>In doubt: {escape(doubt.text)}.</b> {escape(doubt.reason)}</p>'
        for doubt in content.doubts
    )
    words = f"{doubtful}<h1>{escape(content.verdict)}</h1><p>{escape(content.evidence)}</p>"
    return f'<div class="verdict"><div class="words">{words}</div>{figures}</div>'


def _figure(figure: Figure) -> str:
    swatch = ""
    if figure.colour:
        stripes = (
            '<path d="M-1 7L7-1M2 11L11 2" stroke="var(--comm-2)" stroke-width="1.3"/>'
            if figure.colour == "comm"
            else ""
        )
        swatch = (
            '<svg class="swatch" viewBox="0 0 10 10" aria-hidden="true"><rect width="10" height="10" '
            f'fill="var(--{figure.colour})" stroke="var(--ink-3)" stroke-width=".6"/>{stripes}</svg>'
        )
    return (
        f'<div class="figure"><b>{escape(figure.value)}</b><span>{swatch}{escape(figure.label)}</span></div>'
    )


def _navigation(sections: list[Section], content: Content, missing: bool) -> str:
    links = [("findings", "findings")]
    if content.heatmap:
        links.append(("heatmap", "ranks over time"))
    links += [(section.name, section.name) for section in sections]
    if missing:
        links.append(("missing", "not recorded"))
    links.append(("facts", "run info"))
    listed = "".join(f'<a href="#{escape(anchor)}">{escape(label)}</a>' for anchor, label in links)
    return f'<nav aria-label="Sections"><div>{listed}</div></nav>'


def _findings(findings: tuple[Finding, ...]) -> str:
    cards = "".join(map(_card, findings)) or '<p class="empty">No findings.</p>'
    return f'<section id="findings"><h2>Findings</h2><div class="cards">{cards}</div></section>'


def _card(finding: Finding) -> str:
    hint = f'<p class="hint">Next: {escape(finding.hint)}</p>' if finding.hint else ""
    evidence = f"<p>{escape(finding.evidence)}</p>" if finding.evidence else ""
    return (
        f'<article class="card {escape(finding.severity)}"><span class="severity">{escape(finding.severity)}</span>'
        f"<h3>{escape(finding.title)}</h3>{evidence}{hint}</article>"
    )


def _heatmap(content: Content) -> str:
    if content.heatmap is None:
        return ""
    command = f"rankscope chart {content.words} -r heatmap"
    help_text = f'<details><summary>Definition</summary><div class="definition"><p>{_HEATMAP_HELP}</p></div></details>'
    return (
        '<section id="heatmap"><h2>Ranks over time</h2>'
        f"<p>What did every rank do when?</p>{_chart(content.heatmap)}{help_text}{_command(command)}</section>"
    )


def _chart(chart: Chart) -> str:
    return f'<div class="wide">{chart.inline()}</div><p class="of-chart">{escape(chart.subtitle)}</p>'


def _section(section: Section) -> str:
    result = section.result
    heading = f"<h2>{escape(result.title or section.name)}</h2><p>{escape(section.question)}</p>"
    if section.empty:
        return (
            f'<section id="{escape(section.name)}">{heading}{_nothing(result)}{_definition(result)}</section>'
        )
    chart = _chart(section.chart) if section.chart else ""
    table = _table(section) if result.rows else ""
    remarks = result.notes if section.chart else (f"window: {result.window}", *result.notes)
    notes = "".join(f"<li>{escape(note)}</li>" for note in remarks)
    return (
        f'<section id="{escape(section.name)}">{heading}{chart}{table}'
        + (f'<ul class="notes">{notes}</ul>' if notes else "")
        + f"{_definition(result)}{_command(section.command)}</section>"
    )


def _nothing(result: Result) -> str:
    why = "; ".join(result.notes) or "the run contains no such data"
    return f'<p class="empty">Nothing to show: {escape(why)}.</p>'


def _table(section: Section) -> str:
    result = section.result
    columns = fields(result)
    helps = {column.name: column for column in result.columns}
    heads, raw = [], []
    for column in columns:
        source = helps.get(column.name)
        values = {"class": "t" if column.kind == "text" else None, "scope": "col"}
        if source and source.help:
            values["title"] = source.help
        heads.append(f'<th{attributes(values)}><button type="button">{escape(column.heading)}</button></th>')
        # Cells with their own units are sorted by the raw value.
        raw.append(values_of(result, source) if source and source.per_row_unit else None)
    texts = [_cells(column) for column in columns]
    lines = []
    for row in range(len(result.rows)):
        cells = []
        for column, text, raw_values in zip(columns, texts, raw, strict=True):
            kind = ' class="t"' if column.kind == "text" else ""
            value = raw_values[row] if raw_values else None
            sort_by = f' data-v="{value}"' if isinstance(value, (int, float)) else ""
            cells.append(f"<td{kind}{sort_by}>{text[row]}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    anchor = f"table-{escape(section.name)}"
    opened = " open" if len(lines) <= _OPEN_ROWS else ""
    count = f"{len(lines):,} row{'s' * (len(lines) != 1)}"
    return (
        f'<details{opened}><summary>Table, {count}</summary><div class="tools">'
        f'<button type="button" data-copy="table" data-of="{anchor}">Copy as TSV</button></div>'
        f'<div class="wide"><table class="data" id="{anchor}"><thead><tr>{"".join(heads)}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div></details>"
    )


def _cells(column: Field) -> list[str]:
    if column.kind != "text":
        return [escape(text) for text in column.cells]
    if column.name == "verdict":
        return [
            f'<span class="{text}">{text}</span>' if text in ("slower", "faster") else escape(text)
            for text in column.cells
        ]
    return [
        _shortened(text, kept)
        for text, kept in zip(column.cells, kept_parts(column.cells, _NAME_CELLS), strict=True)
    ]


def _shortened(text: str, kept: Parts) -> str:
    """The whole text, so that it can be copied and searched; the style sheet shows '…' for what is cut."""
    pieces, done = [], 0
    for begin, end in (*kept, (len(text), len(text))):
        if begin > done:
            pieces.append(f'<span class="cut">{escape(text[done:begin])}</span>')
        pieces.append(escape(text[begin:end]))
        done = end
    return "".join(pieces)


def _definition(result: Result) -> str:
    columns = "".join(
        f"<dt>{escape(column.name)}</dt><dd>{escape(column.help)}</dd>"
        for column in result.columns
        if column.help
    )
    inside = definition(result.name) + (f"<h4>Columns</h4><dl>{columns}</dl>" if columns else "")
    if not inside:
        return ""
    return f'<details><summary>Definition</summary><div class="definition">{inside}</div></details>'


def _command(command: str) -> str:
    return (
        f'<div class="tools"><code>{escape(command)}</code>'
        '<button type="button" data-copy="command">Copy</button></div>'
    )


def _missing(sections: list[Section]) -> str:
    if not sections:
        return ""
    rows = "".join(
        f"<dt>{escape(section.name)}</dt><dd>{escape(section.question)} {escape(_sentences(section.result.notes))}</dd>"
        for section in sections
    )
    return (
        '<section id="missing"><h2>Not recorded</h2>'
        f"<p>Reports without data, and the options that record it.</p><dl>{rows}</dl></section>"
    )


def _sentences(notes: Sequence[str]) -> str:
    return (
        " ".join(f"{note[0].upper()}{note[1:]}." for note in notes if note)
        or "The run contains no such data."
    )


def _facts(content: Content) -> str:
    topics = "".join(
        f"<div><h3>{escape(topic)}</h3><dl>"
        + "".join(f"<dt>{escape(what)}</dt><dd>{escape(value)}</dd>" for what, value in rows)
        + "</dl></div>"
        for topic, rows in content.facts.items()
    )
    return f'<section id="facts"><h2>Run, software, hardware</h2><div class="facts">{topics}</div></section>'
