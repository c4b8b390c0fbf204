"""A window of a run as one HTML file that needs no server: the page itself, and the data behind it.

The file holds the page's own modules, style and markup. static/js/shared.js answers the page's questions there: those
that do not depend on the visible window from answers that are recorded here, the others from the slices.
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.intervals import Intervals, intersect
from rankscope.analysis.core.scope import Scope
from rankscope.errors import UsageError
from rankscope.text.names import short_forms
from rankscope.viewer import counters
from rankscope.viewer.answers import Route, json_bytes, window_of
from rankscope.viewer.collectives import COMMUNICATION, communication
from rankscope.viewer.lanes import with_families
from rankscope.viewer.session import ACTIVITIES, Session
from rankscope.viewer.slices import REFERENCES
from rankscope.viewer.static_files import static_files

MOST_SLICES = 100_000
"""About 5 MB: what can be sent by mail."""
_REPORTS = (
    "summary",
    "breakdown",
    "kernels",
    "ops",
    "collectives",
    "stragglers",
    "roofline",
    "memory.allocators",
)
_REPORT_ROWS = "200"
_CSP = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class Window:
    """What a shared file holds."""

    begin: int
    end: int
    ranks: list[int]


def share(session: Session, routes: Mapping[str, Route], query: dict[str, str]) -> str:
    """The visible window. The ranks that a request names are in it; others are added while there is room.

    `view` is the state of the page, as in its address.
    """
    begin, end = window_of(query)
    needed = session.ranks(query) if query.get("ranks") else []
    counts = _counts(session, begin, end)
    _check_size(counts, needed)
    room = MOST_SLICES - sum(counts.get(rank, 0) for rank in needed)
    for rank in session.run.ranks:
        if rank not in needed and counts.get(rank, 0) <= room:
            room -= counts.get(rank, 0)
            needed.append(rank)
    return page(session, routes, Window(begin, end, sorted(needed)), query.get("view", ""))


def steps_window(session: Session, scope: Scope) -> Window:
    """The ranks of a scope, and the time of its steps; the whole run where it has none."""
    ranks = scope.ranks_in(session.run)
    begin, end = session.bounds
    if scope.steps is not None:
        first, last = scope.steps
        ((begin, end),) = session.run.rows(
            "SELECT min(end_ns - time_ns), max(end_ns) FROM steps "
            f"WHERE step BETWEEN {first} AND {last} AND rank IN ({', '.join(map(str, ranks))})"
        )
    _check_size(_counts(session, begin, end), ranks)
    return Window(begin, end, ranks)


def _check_size(counts: Mapping[int, int], ranks: list[int]) -> None:
    slices = sum(counts.get(rank, 0) for rank in ranks)
    if slices > MOST_SLICES:
        raise UsageError(
            f"this window has {slices:,} slices on {len(ranks)} rank{'s' * (len(ranks) > 1)}",
            why=f"A shared file is to be sent by mail; it takes {MOST_SLICES:,}.",
            hint="Choose a shorter time or fewer ranks; on the command line: --steps A:B --ranks 0-3",
        )


def _counts(session: Session, begin: int, end: int) -> dict[int, int]:
    """Slices of each rank in a window."""
    with session.drawing() as run:
        return dict(
            run.rows(f"SELECT rank, count(*) FROM slices WHERE {_overlaps(begin, end)} GROUP BY rank")
        )


def _overlaps(begin: int, end: int) -> str:
    return f"start_ns < {end} AND start_ns + dur_ns > {begin}"


def page(session: Session, routes: Mapping[str, Route], window: Window, view: str) -> str:
    """The file's text."""
    content = {
        "view": view,
        "recorded": _recorded(session, routes, window),
        **_slices(session, window),
        "activity": {rank: _activity(session, rank, window) for rank in window.ranks},
        "counters": {rank: _counters(session, routes, rank, window) for rank in window.ranks},
        "collectives": _collectives(session, routes, window),
    }
    return _html(base64.b64encode(zlib.compress(json_bytes(content))).decode())


def _recorded(session: Session, routes: Mapping[str, Route], window: Window) -> dict[str, Any]:
    """Answers that do not depend on what is visible, by the names that shared.js gives them."""
    begin, end = window.begin, window.end
    run: Any = routes["run"]({})
    reports = [report for report in run["reports"] if report["name"] in _REPORTS]
    inside = [step for step in run["steps"] if begin <= step["start_ns"] + step["dur_ns"] // 2 < end]
    all_ranks = len(run["ranks"])
    run |= {"ranks": window.ranks, "begin_ns": begin, "end_ns": end, "steps": inside, "reports": reports}
    run["world"] = max(run.get("world") or 0, all_ranks)
    part = {"begin": str(begin), "end": str(end), "ranks": ",".join(map(str, window.ranks))}
    findings: Any = routes["findings"]({})
    shown = [{**finding, "scene": _scene(finding["scene"], window)} for finding in findings["findings"]]
    answers: dict[str, Any] = {
        "run": run,
        "findings": {"findings": shown, "facts": findings["facts"]},
        "roofline": routes["roofline"]({}),
        "grid": routes["grid"]({}),
    }
    for report in reports:
        name = report["name"]
        answers[f"report/{name}"] = routes["report"]({"name": name, "top": _REPORT_ROWS})
        answers[f"charts/{name}"] = routes["charts"]({"name": name})
    for rank in window.ranks:
        for name in ("tracks", "counters", "memory"):
            answers[f"{name}/{rank}"] = routes[name]({"rank": str(rank)})
    for by in ("op", "module", "python"):
        for time in ("host", "device"):
            answers[f"flame/{by}/{time}"] = routes["flame"]({**part, "by": by, "time": time})
    return answers


def _scene(scene: dict[str, Any], window: Window) -> dict[str, Any]:
    """What of a scene is in the file."""

    def is_inside(row: Mapping[str, Any]) -> bool:
        overlaps = row["start_ns"] < window.end and row["start_ns"] + row["dur_ns"] > window.begin
        return overlaps and row["rank"] in window.ranks

    begin, end = max(scene["begin_ns"], window.begin), min(scene["end_ns"], window.end)
    shown = end > begin
    collective = scene["collective"]
    return {
        **scene,
        "ranks": [rank for rank in scene["ranks"] if rank in window.ranks] or window.ranks[:1],
        "peers": [rank for rank in scene["peers"] if rank in window.ranks],
        "begin_ns": begin if shown else window.begin,
        "end_ns": end if shown else window.end,
        "slices": [*filter(is_inside, scene["slices"])],
        "collective": collective if collective and all(map(is_inside, collective["rows"])) else None,
    }


def _origin(row: dict[str, Any]) -> dict[str, Any] | None:
    """What is known about a kernel of a graph or of compiled code."""
    names = ("graph", "node", "op", "module", "line", "compiled")
    origin = {name: row.get(f"captured_{name}") for name in names}
    return origin if any(value is not None for value in origin.values()) else None


def _slices(session: Session, window: Window) -> dict[str, Any]:
    """The slices as columns, in drawing order. Times and ids are differences to the row before, references differences
    to the row's own id: the numbers are small then, and the file is a third smaller."""
    ranks = ", ".join(map(str, window.ranks)) or "NULL"
    with session.drawing() as run:
        rows = run.records(
            f"""
            SELECT s.rank, s.segment, s.track, s.depth, s.id, s.name, s.category, s.start_ns, s.dur_ns, s.self_ns,
                   s.step, s.bytes, s.device IS NOT NULL AS on_device, s.launch, s.op, s.python, s.module, s.parent,
                   e.args, o.graph AS captured_graph, o.node AS captured_node, o.op AS captured_op,
                   o.module AS captured_module, o.line AS captured_line, o.compiled AS captured_compiled
            FROM (SELECT * FROM slices WHERE rank IN ({ranks}) AND {_overlaps(window.begin, window.end)}) s
            LEFT JOIN events e ON e.rank = s.rank AND e.segment = s.segment AND e.id = s.id
            LEFT JOIN origins o ON o.rank = s.rank AND o.segment = s.segment AND o.id = s.id
            ORDER BY s.rank, s.segment, s.track, s.depth, s.start_ns
            """
        )
    kinds: dict[tuple[int, int], dict[int, int]] = {}
    for rank, segment in {(row["rank"], row["segment"]) for row in rows}:
        lanes = session.lanes(rank, segment)
        coloured = with_families(lanes.kind, lanes.name, lanes.names)
        kinds[rank, segment] = dict(zip(lanes.id.tolist(), coloured.tolist(), strict=True))
    for row in rows:
        row["kind"] = kinds[row["rank"], row["segment"]].get(row["id"], 0)
    for rank in window.ranks:
        rows += _communication(session, rank, window)
    columns: dict[str, list[Any]] = {
        name: [row.get(name) for row in rows]
        for name in ("rank", "segment", "track", "depth", "dur_ns", "self_ns", "step", "bytes", "kind")
    }
    for name in ("id", "start_ns"):
        columns[name] = np.diff(np.array([row[name] for row in rows], dtype=np.int64), prepend=0).tolist()
    for name in REFERENCES:
        columns[name] = [None if row.get(name) is None else row["id"] - row[name] for row in rows]
    columns["on_device"] = [int(row.get("on_device", False)) for row in rows]
    columns["args"] = [json.loads(row["args"]) if row.get("args") else None for row in rows]
    columns["origin"] = [_origin(row) for row in rows]
    texts: dict[str, int] = {}
    for name in ("name", "category"):
        columns[name] = [texts.setdefault(row.get(name) or "", len(texts)) for row in rows]
    return {"slices": columns, "texts": list(texts), "short": short_forms(texts)}


def _communication(session: Session, rank: int, window: Window) -> list[dict[str, Any]]:
    """The track of a rank's collectives, in drawing order."""
    lanes = communication(session, rank)
    here = (lanes.start < window.end) & (lanes.start + lanes.duration > window.begin)
    columns: dict[str, NDArray[Any]] = {
        "segment": np.zeros(len(here), dtype=np.int64) if lanes.segment is None else lanes.segment,
        "depth": np.repeat(lanes.lanes[:, 1], lanes.lanes[:, 3] - lanes.lanes[:, 2]),
        "id": lanes.id,
        "start_ns": lanes.start,
        "dur_ns": lanes.duration,
        "kind": lanes.kind,
        "name": np.array(lanes.names)[lanes.name],
    }
    parts = zip(*(column[here].tolist() for column in columns.values()), strict=True)
    return [{"rank": rank, "track": COMMUNICATION, **dict(zip(columns, each, strict=True))} for each in parts]


def _activity(session: Session, rank: int, window: Window) -> dict[str, list[list[int]]]:
    """The intervals of each class, and of what was recorded: start and end."""
    activity = {name: getattr(session.activity(rank), name) for name in (*ACTIVITIES, "recorded")}
    whole = Intervals(np.array([window.begin], dtype=np.int64), np.array([window.end], dtype=np.int64))
    return {name: [edges.tolist() for edges in intersect(parts, whole)] for name, parts in activity.items()}


def _counters(
    session: Session, routes: Mapping[str, Route], rank: int, window: Window
) -> dict[str, dict[str, list[float]]]:
    """The points of each counter in the window, and the last one before it."""
    points = {}
    listed: Any = routes["counters"]({"rank": str(rank)})
    for counter in listed["counters"]:
        times, values = counters.series(session, rank, counter["name"])
        first, last = np.searchsorted(times, [window.begin, window.end])
        part = slice(max(int(first) - 1, 0), int(last))
        points[counter["name"]] = {"time": times[part].tolist(), "value": values[part].tolist()}
    return points


def _collectives(session: Session, routes: Mapping[str, Route], window: Window) -> list[Any]:
    """The collectives that a rank of the file has in the window, each on all its ranks."""
    answers: list[Any] = []
    done: set[tuple[int, int, int]] = set()
    with session.database() as run:
        rows = run.collectives
    inside = (rows.start < window.end) & (rows.end > window.begin) & np.isin(rows.rank, window.ranks)
    for at in np.flatnonzero(inside).tolist():
        rank, segment, id = int(rows.rank[at]), int(rows.segment[at]), int(rows.slice[at])
        if (rank, segment, id) not in done:
            answer: Any = routes["collective"]({"rank": str(rank), "segment": str(segment), "id": str(id)})
            done |= {(member["rank"], member["segment"], member["id"]) for member in answer["rows"]}
            answers.append(answer)
    return answers


_IMPORT = re.compile(r'(?P<before>\bfrom |\bimport |\bimport\()"(?P<path>\.{1,2}/[^"]+)"')


def _html(data: str) -> str:
    """The page with everything that it loads inside it.

    A module cannot load another one from a disk. So every module is a data: URL here, an import map gives these URLs
    names, and the modules' imports are rewritten to the names.
    """
    files = {name: content.decode() for name, (content, kind) in static_files().items()}
    imports = {
        f"rankscope/{name}": _data_url("text/javascript", _renamed(name, text))
        for name, text in files.items()
        if name.endswith(".js")
    }
    scripts = (
        f'<script type="importmap">{json.dumps({"imports": imports})}</script>\n'
        f'<script type="text/plain" id="shared-file">{data}</script>\n'
        '<script type="module">import "rankscope/js/main.js";</script>'
    )
    charset = '<meta charset="utf-8">'
    policy = f'<meta http-equiv="Content-Security-Policy" content="{_CSP}">'
    page = files["index.html"].replace(charset, f"{charset}\n{policy}")
    page = page.replace('href="icon.svg"', f'href="{_data_url("image/svg+xml", files["icon.svg"])}"')
    page = re.sub(
        r'<link rel="stylesheet" href="([^"]+)">', lambda match: f"<style>\n{files[match[1]]}</style>", page
    )
    return page.replace('<script type="module" src="js/main.js"></script>', scripts)


def _renamed(name: str, text: str) -> str:
    """A module with the names of the import map in place of relative paths."""
    folder = posixpath.dirname(name)

    def rename(match: re.Match[str]) -> str:
        return f'{match["before"]}"rankscope/{posixpath.normpath(posixpath.join(folder, match["path"]))}"'

    return _IMPORT.sub(rename, text)


def _data_url(kind: str, text: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"
