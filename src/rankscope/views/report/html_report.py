"""The report as one self-contained HTML file. It loads nothing, and text from traces is escaped."""

from __future__ import annotations

import base64
import hashlib
import html as standard_html
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import cache
from itertools import count
from pathlib import Path

from rankscope.analysis.core.result import Fact, Finding, Result
from rankscope.text.colours import style_variables
from rankscope.text.names import Parts, is_inside_word
from rankscope.text.run_words import shell_words
from rankscope.version import __version__
from rankscope.views.charts import Chart
from rankscope.views.columns import Field, fields
from rankscope.views.html import attributes, escape
from rankscope.views.markdown import prose
from rankscope.views.report.content import Content, Section, saving
from rankscope.views.report.definitions import definition
from rankscope.views.report.markdown_report import markdown_summary
from rankscope.views.text import sentence

_HERE = Path(__file__).parent
_NAME_CELLS = 42
"""Longer names in tables are shortened to this width."""
_FONTS = (
    '--mono: ui-monospace, "SF Mono", "DejaVu Sans Mono", Menlo, monospace; '
    '--sans: system-ui, "Segoe UI", "DejaVu Sans", Helvetica, Arial, sans-serif;'
)
_HEATMAP_HELP = (
    "One row per rank. Time is divided into intervals. Each is filled from below by four shares: compute kernels ran; "
    "collectives moved data without compute beside them; the rank waited in a collective for another rank; only "
    "copies ran. The rest is idle. The classes are those of the breakdown report. Their sums over a row are the "
    "breakdown of the rank."
)
_OF_HEATMAP = "Where time goes"
"""The topic that the heat map belongs to."""


def html_page(content: Content) -> str:
    """The whole file."""
    style, script = _style(), (_HERE / "script.js").read_text(encoding="utf-8")
    # Only the script and the style with these hashes are active, so a missed escape cannot run code.
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    missing = [section for section in content.sections if section.empty]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">',
            f"<title>{escape(content.title)}: {escape(content.headline.title)}</title>",
            f"<style>{style}</style></head>",
            "<body>",
            f'<header><b>rankscope</b><span class="meta">{escape(content.title)} · {escape(content.subtitle)}</span>'
            '<span class="controls"><button id="theme" type="button">light / dark</button>'
            '<button id="print" type="button">print</button></span></header>',
            "<main>",
            _first_screen(content),
            _navigation(content, bool(missing)),
            _findings(content),
            _to_post(content),
            *_topics(content),
            _explained(content),
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


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _first_screen(content: Content) -> str:
    headline = content.headline
    doubtful = "".join(
        f'<p class="doubt"><b>In doubt: {escape(doubt.title)}.</b> {escape(sentence(doubt.advice))}</p>'
        for doubt in content.doubts
    )
    change = ""
    if headline.change or headline.change_note:
        number = f'<b class="{headline.judged}">{escape(headline.change)}</b>' if headline.change else ""
        change = f'<div class="change">{number}<span>{escape(headline.change_note)}</span></div>'
    figures = ""
    for figure in content.figures:
        swatch = (
            '<svg class="swatch" viewBox="0 0 10 10" aria-hidden="true"><rect width="10" height="10" '
            f'fill="var(--{figure.colour})" stroke="var(--ink-3)" stroke-width=".6"/></svg>'
        )
        label = (swatch if figure.colour else "") + escape(figure.label)
        figures += f"<div><b>{escape(figure.value)}</b> <span>{label}</span></div>"
    # The step of the headline; of a run without steps, all ranks over time.
    shown = _chart(content.heatmap, "figure") if content.heatmap else ""
    if picture := headline.picture:
        shown = (
            f'<figure><div class="on-screen">{picture.usual.inline()}</div>'
            f'<div class="on-phone">{picture.narrow.inline()}</div>'
            f'<div class="on-wide">{picture.wide.inline()}</div>'
            f"<figcaption>{escape(picture.wide.subtitle)}</figcaption></figure>"
        )
    to_do = [("Do this", escape(headline.advice))] if headline.advice else []
    to_do += [(what, _command(how)) for what, how in headline.commands]
    more = f"<p>{escape(headline.more)}</p>" if headline.more else ""
    more += _facts_list(headline.facts, None if headline.judged else content.step_ns)
    more = f'<details class="more"><summary>more</summary>{more}</details>' if more else ""
    return (
        f'<section id="answer">{doubtful}<div class="lead"><div><h1>{escape(headline.title)}</h1>'
        f"<p>{escape(headline.detail)}</p>{more}</div>{change}</div>"
        f'<div class="figures">{figures}</div>'
        f'{shown}<dl class="do">{_described(to_do)}</dl></section>'
    )


def _described(pairs: Iterable[tuple[str, str]]) -> str:
    """Terms, which are escaped here, with their descriptions in HTML."""
    return "".join(f"<dt>{escape(term)}</dt><dd>{text}</dd>" for term, text in pairs)


def _navigation(content: Content, missing: bool) -> str:
    links = {"findings": "Findings", **{_anchor(topic): topic for topic in _sections_by_topic(content)}}
    links |= {"missing": "Not recorded"} if missing else {}
    links |= {"post": "For an issue", "facts": "Run"}
    listed = "".join(f'<a href="#{escape(anchor)}">{escape(label)}</a>' for anchor, label in links.items())
    return (
        f'<nav aria-label="Sections">{listed}<button id="unfold" type="button" aria-pressed="false">'
        "open all</button></nav>"
    )


def _anchor(topic: str) -> str:
    return f"topic-{topic.lower().replace(' ', '-')}"


def _sections_by_topic(content: Content) -> dict[str, list[Section]]:
    topics: dict[str, list[Section]] = {}
    for section in content.sections:
        if not section.empty:
            topics.setdefault(section.topic, []).append(section)
    return topics


def _folded(anchor: str, severity: str, name: str, line: str, note: str, inside: str) -> str:
    """A part that is folded: its name, its result in one line, and what it holds."""
    word = f'<span class="hidden">{severity}: </span>' if severity else ""
    return (
        f'<details class="row" id="{escape(anchor)}"><summary><i class="dot {severity}"></i>{word}'
        f'<b>{escape(name)}</b><span class="line">{escape(line)}</span><span class="note">{escape(note)}</span>'
        f'</summary><div class="inside">{inside}</div></details>'
    )


def _findings(content: Content) -> str:
    shown = {section.name for section in content.sections if not section.empty}
    numbers = count(1)
    parts = ""
    for heading, findings in content.lists.items():
        rows = "".join(_finding(content, finding, next(numbers), shown) for finding in findings)
        parts += f"<h2>{heading}</h2>{rows}"
    return f'<section id="findings">{parts or "<h2>Findings</h2><p>None.</p>"}</section>'


def _finding(content: Content, finding: Finding, number: int, shown: Set[str]) -> str:
    report = escape(finding.report)
    facts = finding.stated
    saves = saving(finding, content.step_ns)
    if saves:
        facts = {saves: Fact("cost_ns", finding.cost_ns, "ns"), **facts}
    inside = _facts_list(facts, None if finding.report == "diff" else content.step_ns)
    inside += f"<p><b>Next:</b> {escape(sentence(finding.advice))}</p>" if finding.advice else ""
    inside += f"<p>{_command(shell_words(finding.command))}</p>" if finding.command else ""
    inside += f'<p>All figures: <a href="#{report}">{report}</a>.</p>' if finding.report in shown else ""
    if finding.page:
        inside += f'<p><a href="#about-{finding.page}">What this means, and when it is wrong</a></p>'
    note = ", ".join(filter(None, ("" if finding.kind == "limit" else finding.severity, saves)))
    name = f"{number}. {finding.report}"
    return _folded(f"finding-{number}", finding.severity, name, finding.title, note, inside)


def _facts_list(facts: Mapping[str, Fact], step_ns: float | None) -> str:
    """Each with a bar: of shares, of the whole; of times, of the step, or without one of the longest of them. What is
    longer than the step is a sum over several, and has none."""
    numbers = {
        text: (str(fact.unit), abs(fact.value))
        for text, fact in facts.items()
        if isinstance(fact.value, (int, float))
    }
    longest = max((value for unit, value in numbers.values() if unit == "ns"), default=0)
    whole = {"percent": 100, "ns": step_ns or longest or 1}
    rows = ""
    for text in facts:
        unit, value = numbers.get(text, ("", 0))
        share = value / whole.get(unit, float("inf"))
        rows += f"<li><span>{escape(text)}</span>{_bar(share) if 0 < share <= 1 else ''}</li>"
    return f'<ul class="facts-list">{rows}</ul>' if rows else ""


def _bar(share: float, kind: str = "") -> str:
    return (
        f'<svg class="bar{escape(kind)}" viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{100 * share:.1f}" height="1"/></svg>'
    )


def _to_post(content: Content) -> str:
    """The summary as text for an issue tracker, and the picture as a file: trackers do not show pictures in links."""
    text, name = markdown_summary(content), f"{content.title}.svg"
    picture = content.headline.picture.usual if content.headline.picture else content.heatmap
    note = saved = ""
    if picture:
        text += f"\n\nPicture: {prose(picture.subtitle)}"
        encoded = base64.b64encode(picture.svg().encode()).decode()
        address = f"data:image/svg+xml;base64,{encoded}"
        saved = f'<a class="save" download="{escape(name)}" href="{address}">Save the picture</a>'
        note = f"<p>Paste the text into the issue, then drop the file {escape(name)} below it.</p>"
    inside = (
        f'<div class="tools"><button type="button" data-copy="text" data-of="markdown">Copy as Markdown</button>{saved}'
        f'</div>{note}<pre id="markdown" tabindex="0">{standard_html.escape(text)}</pre>'
    )
    line = "The summary as Markdown, and the picture as a file"
    folded = _folded("issue", "", "copy as Markdown", line, "", inside)
    return f'<section id="post"><h2>For an issue</h2>{folded}</section>'


def _topics(content: Content) -> Iterator[str]:
    for topic, sections in _sections_by_topic(content).items():
        rows = "".join(map(_section, sections))
        if topic == _OF_HEATMAP and content.heatmap is not None and content.headline.picture is not None:
            command = _command(f"rankscope report {content.words} --chart heatmap")
            inside = f"{_chart(content.heatmap)}{_definition(f'<p>{_HEATMAP_HELP}</p>')}<p>{command}</p>"
            rows = (
                _folded("heatmap", "", "ranks over time", "What every rank did when", "chart", inside) + rows
            )
        yield f'<section id="{escape(_anchor(topic))}"><h2>{escape(topic)}</h2>{rows}</section>'


def _chart(chart: Chart, tag: str = "div", titled: bool = False) -> str:
    """`titled`: not the first of a part, which has a heading."""
    title = f"<h4>{escape(chart.title)}</h4>" if titled else ""
    return (
        f'<{tag}>{title}<div class="wide" tabindex="0" role="group" aria-label="{escape(chart.title)}">'
        f"{chart.inline()}</div>"
        '<p class="scroll-hint">The chart goes on: scroll it sideways.</p>'
        f'<p class="of-chart">{escape(chart.subtitle)}</p></{tag}>'
    )


def _section(section: Section) -> str:
    result = section.result
    charts = "".join(_chart(chart, titled=number > 0) for number, chart in enumerate(section.charts))
    charts = f'<div class="charts">{charts}</div>' if charts else ""
    table = _table(section) if result.rows else ""
    remarks = result.notes if section.charts else (f"window: {result.window}", *result.notes)
    notes = "".join(f"<li>{escape(note)}</li>" for note in remarks)
    holds = ", ".join(what for what, part in (("chart", charts), ("table", table)) if part)
    columns = _described((column.name, escape(column.help)) for column in result.columns if column.help)
    columns = f"<h4>Columns</h4><dl>{columns}</dl>" if columns else ""
    return _folded(
        section.name,
        section.severity or "",
        section.name,
        section.line or section.question,
        holds,
        f"<h3>{escape(result.title or section.name)}</h3><p>{escape(section.question)}</p>"
        f'<div class="beside">{charts}{table}</div>'
        + (f'<ul class="notes">{notes}</ul>' if notes else "")
        + f"{_definition(definition(result.name) + columns)}<p>{_command(section.command)}</p>",
    )


def _definition(inside: str) -> str:
    if not inside:
        return ""
    return f'<details><summary>Definition</summary><div class="definition">{inside}</div></details>'


def _table(section: Section) -> str:
    result = section.result
    columns = {column.name: column for column in result.columns}
    heads, cells = [], []
    added = _ADDED_UP.get(result.name, ()) if len(result.rows) >= _LEAST_ADDED else ()
    with_bars, drawn_bars = _bars(result, added)
    shown_fields = fields(result)
    for shown in shown_fields:
        source = columns.get(shown.name)
        kind = "t" if shown.kind == "text" else None
        words = {"class": kind, "scope": "col", "title": source.help or None if source else None}
        heads.append(f'<th{attributes(words)}><button type="button">{escape(shown.heading)}</button></th>')
        bars = drawn_bars if shown.name == with_bars else [""] * len(result.rows)
        cells.append(
            [
                f"<td{attributes({'class': kind})}>{bar}{text}</td>"
                for text, bar in zip(_cells(shown), bars, strict=True)
            ]
        )
    lines = [f"<tr>{''.join(row)}</tr>" for row in zip(*cells, strict=True)]
    total = _total(result, shown_fields, added) if added else ""
    anchor = f"table-{escape(section.name)}"
    count = f"{len(lines):,} row{'s' * (len(lines) != 1)}"
    return (
        f'<details open><summary>Table, {count}</summary><div class="tools">'
        f'<button type="button" data-copy="table" data-of="{anchor}">Copy as TSV</button></div>'
        f'<div class="wide rows"><table class="data" id="{anchor}"><thead><tr>{"".join(heads)}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody>{total}</table></div></details>"
    )


_ADDED_UP = {
    "kernels": ("total_ns", "time_pct", "instances"),
    "kernels.families": ("total_ns", "time_pct", "instances"),
    "ops": ("self_device_ns", "self_host_ns", "calls"),
    "idle.gaps": ("idle_ns", "idle_pct", "gaps"),
    "idle.short_kernels": ("total_ns", "count", "count_pct", "launch_ns"),
    "idle.syncs": ("total_ns", "calls"),
    "ops.runtime_api": ("total_ns", "calls"),
    "memcpy": ("total_ns", "count", "bytes"),
    "critical": ("ns", "pct"),
    "stragglers": ("caused_wait_ns", "own_wait_ns", "last_count"),
    "memory.allocators": ("bytes", "count"),
}
"""Columns whose rows have nothing in common, so that they add up. The first has bars."""
_LEAST_ADDED = 3


def _bars(result: Result, added: Sequence[str]) -> tuple[str, list[str]]:
    """The column with bars, and the bar of each row; no column where there is none to compare."""
    name = next(iter(added), "")
    values = [row.get(name) or 0 for row in result.rows]
    if not any(values):
        return "", []
    longest = max(values)
    kinds = [f" {str(row.get('class')).lower()}" if "class" in row else "" for row in result.rows]
    return name, [_bar(value / longest, kind) for kind, value in zip(kinds, values, strict=True)]


def _total(result: Result, shown: list[Field], added: Sequence[str]) -> str:
    """The last row of a table whose rows add up, in the units of the columns."""
    cells = {
        field.name: field.scale.format(sum(row.get(field.name) or 0 for row in result.rows))
        for field in shown
        if field.name in added and field.scale
    }
    named = min(shown, key=lambda field: (field.name in cells, field.kind != "text"))
    cells[named.name] = f"Total of these {len(result.rows):,}" if result.hidden else "Total"
    listed = (
        f"<td{attributes({'class': 't' if field.kind == 'text' else None})}>{escape(cells.get(field.name, ''))}</td>"
        for field in shown
    )
    return f"<tfoot><tr>{''.join(listed)}</tr></tfoot>"


def _cells(column: Field) -> list[str]:
    if column.kind != "text":
        return [escape(text) for text in column.cells]
    if column.name == "verdict":
        return [
            f'<span class="{text}">{text}</span>' if text in ("slower", "faster") else escape(text)
            for text in column.cells
        ]
    return [
        _shortened(text, parts)
        for text, parts in zip(column.cells, column.shown_parts(_NAME_CELLS), strict=True)
    ]


def _shortened(text: str, parts: Parts) -> str:
    """The whole text, so that it can be copied and searched; the style sheet shows '…' for what is cut out of it."""
    pieces, done = [], 0
    for begin, end in (*parts, (len(text), len(text))):
        if begin > done:
            inside = done > 0 and begin < len(text)
            kind = "cut" if inside or is_inside_word(text, begin if done == 0 else done) else "gone"
            pieces.append(f'<span class="{kind}">{escape(text[done:begin])}</span>')
        pieces.append(escape(text[begin:end]))
        done = end
    return "".join(pieces)


def _command(command: str) -> str:
    return (
        f'<span class="command"><code>{escape(command)}</code>'
        '<button type="button" data-copy="command">Copy</button></span>'
    )


def _explained(content: Content) -> str:
    """The pages of docs/findings about the kinds of findings above."""
    names = sorted({finding.page for finding in content.findings if finding.page})
    pages = "".join(
        _folded(f"about-{name}", "", name.replace("-", " "), "", "", definition(f"findings/{name}"))
        for name in names
    )
    return f'<section id="about"><h2>What the findings mean</h2>{pages}</section>' if names else ""


def _missing(sections: list[Section]) -> str:
    if not sections:
        return ""
    why = {
        section.name: " ".join(sentence(note) for note in section.result.notes if note)
        or "The run contains no such data."
        for section in sections
    }
    rows = _described(
        (section.name, f"{escape(section.question)} {escape(why[section.name])}") for section in sections
    )
    inside = f"<p>Reports without data, and the options that record it.</p><dl>{rows}</dl>"
    folded = _folded("not-recorded", "", f"{len(sections)} reports", ", ".join(why), "", inside)
    return f'<section id="missing"><h2>Not recorded</h2>{folded}</section>'


def _facts(content: Content) -> str:
    topics = "".join(
        f"<div><h3>{escape(topic)}</h3><dl>{_described((what, escape(value)) for what, value in rows)}</dl></div>"
        for topic, rows in content.facts.items()
    )
    main = [
        f"{what} {value}"
        for topic in ("Software", "Hardware", "Recorded")
        for what, value in content.facts.get(topic, ())[:1]
    ]
    inside = f'<div class="facts">{topics}</div>'
    folded = _folded("run-info", "", "job, software, hardware", " · ".join(main), "", inside)
    return f'<section id="facts"><h2>Run</h2>{folded}</section>'
