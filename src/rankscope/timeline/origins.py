"""Finds where device activity comes from whose launch does not tell: replayed CUDA graphs, compiled code.

One cudaGraphLaunch starts all kernels of a graph, so none of them has an op. The calls that were captured have: they
are in the same trace, or in one of the capture (capture_traces), as launches without device activity between
StreamBeginCapture and StreamEndCapture. A replay is of a capture with as many nodes of the same kinds in the same
order, and the same kernels where the calls name them, as those of HIP do. Where several captures fit, what they agree
on is known.
"""

from __future__ import annotations

import re
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from rankscope.errors import RankscopeError
from rankscope.model import GRAPH_LAUNCH_PATTERN, LAUNCH_CATEGORIES, ORIGINS
from rankscope.readers import one_file
from rankscope.readers.row_batch import RowBatch
from rankscope.readers.sql_columns import connection
from rankscope.readers.torch_trace import CompiledCode, TorchTrace
from rankscope.sql import sql_text, sql_texts
from rankscope.store.database import PlainFolder
from rankscope.store.table_files import write_selected

_CALL_PATTERN = r"Launch|Memcpy|Memset|Stream(?:Begin|End)Capture"
_GRAPH_LAUNCH = re.compile(GRAPH_LAUNCH_PATTERN)
_NODE_KINDS = (("Memcpy", "gpu_memcpy"), ("Memset", "gpu_memset"), ("Launch", "kernel"))
_TRITON = "triton_"
"""Ops that launch one kernel of Inductor begin with it, and have the name of the kernel."""
_MOST_MISSING = 0.01
"""Share of a graph's nodes that may be missing at the end of a replay."""
_REGION = "Torch-Compiled Region: "
_FX_GRAPH = re.compile(r"CompiledFxGraph (\w+)")


@dataclass(frozen=True)
class _Call:
    """A call that launches, or begins or ends a capture."""

    id: int
    name: str
    track: int
    start: int
    has_activity: bool
    op: str | None
    module: str | None
    line: str | None
    region: str | None
    fx_graph: str | None
    kernel: str | None
    """Name of the kernel, which calls of HIP have."""
    kernel_file: str | None
    """Of the op around it, if Inductor generated its kernel."""

    @property
    def kind(self) -> str:
        """The category of what it launches; '' for other calls."""
        return next((kind for part, kind in _NODE_KINDS if part in self.name), "")


class _Activity(NamedTuple):
    """A kernel, copy or fill."""

    id: int
    launch: int
    category: str
    name: str
    graph: int | None
    node: int | None
    """Ids that CUPTI gives graphs and their nodes; nodes count up in the order of capture."""


@dataclass(frozen=True)
class _Origin:
    """What is known about a node."""

    op: str | None
    module: str | None
    line: str | None
    compiled: str | None
    known_by: str | None


_UNKNOWN = _Origin(None, None, None, None, None)

Capture = Sequence[_Call]

Build = Callable[[Path, Path], None]
"""Reads a trace into an empty folder."""


def write_origins(
    folder: Path, captures: Sequence[dict[str, Any]], logs: Sequence[dict[str, Any]], build: Build
) -> dict[str, int]:
    """Write ORIGINS; returns its number of rows. What was taken from each of the other files is noted in its record."""
    code = _read_logs(logs)
    calls = _calls(folder)
    activity = _activity(folder)
    rows = [*_compiled(activity, calls, code), *_replayed(activity, calls, captures, code, build)]
    told = sum(row["known_by"] == "TORCH_TRACE" for row in rows)
    named = any(row["compiled"] is not None and ": " in row["compiled"] for row in rows)
    for record in logs:
        functions = record.pop("found", 0)
        if told or named:
            record["used"] = f"{functions:,} compiled functions; the lines of {told:,} kernels"
    with closing(RowBatch(ORIGINS, rows)) as batch:
        return {ORIGINS.name: write_selected(batch, ORIGINS, folder, 0)}


def _read_logs(logs: Iterable[dict[str, Any]]) -> CompiledCode:
    code = CompiledCode()
    for record in logs:
        path = Path(record["path"])
        try:
            with one_file(path):
                of_log = TorchTrace(path).read()
        except RankscopeError as error:
            record["unused"] = [error.message, error.why, error.hint]
            continue
        code.functions |= of_log.functions
        code.graphs |= of_log.graphs
        code.lines |= of_log.lines
        record["found"] = len(of_log.functions)
    return code


def _calls(folder: Path) -> list[_Call]:
    """The calls of a segment that launch or capture, in order of time, with the code around them."""
    plain = PlainFolder(folder)
    slices, gpu, events = (
        f"read_parquet({sql_text(plain.path / f'{name}.parquet')}{more})"
        for name, more in (("slices", ""), ("gpu", ""), ("events", ", file_row_number=true"))
    )
    ranges = f"SELECT track, start_ns, start_ns + dur_ns AS end_ns, name FROM {slices} WHERE name LIKE"
    try:
        result = connection().execute(f"""
            WITH regions AS ({ranges} '{_REGION}%'), graphs AS ({ranges} '## Call CompiledFxGraph %'),
            calls AS (
                SELECT id, name, track, start_ns, op, module, python FROM {slices}
                WHERE category IN ({sql_texts(LAUNCH_CATEGORIES)}) AND regexp_matches(name, {sql_text(_CALL_PATTERN)})
            ),
            active AS (SELECT DISTINCT launch FROM {gpu}),
            arguments AS (SELECT file_row_number AS id, args FROM {events} WHERE category IN
                          ({sql_texts(("cpu_op", *LAUNCH_CATEGORIES))}))
            SELECT c.id, c.name, c.track, c.start_ns, a.launch IS NOT NULL, o.name, m.name, p.name,
                   CASE WHEN r.end_ns > c.start_ns THEN r.name END, CASE WHEN g.end_ns > c.start_ns THEN g.name END,
                   own.args->>'kernel', around.args->>'kernel_file'
            FROM calls c
            ASOF LEFT JOIN regions r ON r.track = c.track AND r.start_ns <= c.start_ns
            ASOF LEFT JOIN graphs g ON g.track = c.track AND g.start_ns <= c.start_ns
            LEFT JOIN active a ON a.launch = c.id
            LEFT JOIN {slices} o ON o.id = c.op
            LEFT JOIN {slices} m ON m.id = c.module
            LEFT JOIN {slices} p ON p.id = c.python
            LEFT JOIN arguments own ON own.id = c.id
            LEFT JOIN arguments around ON around.id = c.op
            ORDER BY c.start_ns, c.id
        """)
        return [_Call(*row) for row in result.fetchall()]
    finally:
        plain.close()


def _origin(call: _Call, code: CompiledCode, known_by: str) -> _Origin:
    compiled = _compiled_name(call, code)
    # The line around the call is the one that calls the compiled function; the log knows those of its kernels.
    key = next((key for key in (call.kernel_file, call.op) if key in code.lines), None)
    if key is not None:
        return _Origin(call.op, call.module, code.lines[key], compiled, "TORCH_TRACE")
    return _Origin(call.op, call.module, call.line, compiled, known_by)


def _compiled_name(call: _Call, code: CompiledCode) -> str | None:
    """'0/0', '0/0 model.py(7): forward' with a log, or the key of the FX graph where no compile id is known."""
    match = _FX_GRAPH.search(call.fx_graph or "")
    compile_id = (
        call.region.removeprefix(_REGION) if call.region else code.graphs.get(match[1]) if match else None
    )
    if compile_id is None:
        return f"FX graph {match[1]}" if match else None
    function = code.functions.get(compile_id)
    return f"{compile_id} {function}" if function else compile_id


def _row(id: int, origin: _Origin, graph: int | None = None, node: int | None = None) -> dict[str, Any]:
    return {"id": id, "graph": graph, "node": node, **vars(origin)}


def _compiled(
    activity: Iterable[_Activity], calls: Iterable[_Call], code: CompiledCode
) -> Iterator[dict[str, Any]]:
    """Rows of the activity that compiled code launches itself."""
    within = {
        call.id: _origin(call, code, "launch")
        for call in calls
        if (call.region or call.fx_graph) and not _GRAPH_LAUNCH.match(call.name)
    }
    for item in activity:
        if item.launch in within:
            yield _row(item.id, within[item.launch])


def _replayed(
    activity: Iterable[_Activity],
    calls: Sequence[_Call],
    files: Iterable[dict[str, Any]],
    code: CompiledCode,
    build: Build,
) -> Iterator[dict[str, Any]]:
    """Rows of the activity of CUDA graphs."""
    launches = {call.id: call for call in calls if _GRAPH_LAUNCH.match(call.name)}
    replays: dict[int, list[_Activity]] = {}
    for item in activity:
        if item.launch in launches:
            replays.setdefault(item.launch, []).append(item)
    for nodes in replays.values():
        if all(item.node is not None for item in nodes):
            nodes.sort(key=lambda item: item.node or 0)
    shapes = dict.fromkeys(_shape(nodes) for nodes in replays.values())
    captures = list(_captures(calls))
    fitting = {shape: [capture for capture in captures if _fits(capture, shape)] for shape in shapes}
    unknown = [shape for shape, fitted in fitting.items() if not fitted]
    for record in files if unknown else ():
        captures = _captures_of_file(record, build)
        named = [shape for shape in unknown if any(_fits(capture, shape) for capture in captures)]
        for shape in named:
            fitting[shape] += [capture for capture in captures if _fits(capture, shape)]
        if named:
            count = sum(_shape(nodes) in named for nodes in replays.values())
            record["used"] = (
                f"{len(captures):,} captured graphs; the nodes of {count:,} of {len(replays):,} replays"
            )
    agreed = {shape: _agreed(fitted, code) for shape, fitted in fitting.items() if fitted}
    for launch, nodes in replays.items():
        elsewhere = replace(_UNKNOWN, compiled=_compiled_name(launches[launch], code))
        origins = agreed.get(_shape(nodes), [elsewhere] * len(nodes))
        for number, (item, origin) in enumerate(zip(nodes, origins, strict=False)):
            yield _row(item.id, origin, item.graph, number)


_Shape = tuple[tuple[str, str], ...]
"""The category and name of each node of a graph."""


def _shape(nodes: Iterable[_Activity]) -> _Shape:
    return tuple((node.category, node.name) for node in nodes)


def _captures(calls: Sequence[_Call]) -> Iterator[Capture]:
    """The calls of each capture that became nodes. Threads of autograd take part: the window is that of the process."""
    starts = [call.start for call in calls]
    begun: dict[int, int] = {}
    for call in calls:
        if "BeginCapture" in call.name:
            begun[call.track] = call.start
        elif "EndCapture" in call.name and call.track in begun:
            inside = calls[bisect_right(starts, begun.pop(call.track)) : bisect_right(starts, call.start)]
            if nodes := [node for node in inside if node.kind and not node.has_activity]:
                yield nodes


def _captures_of_file(record: dict[str, Any], build: Build) -> list[Capture]:
    """The captures in another trace, which is read like any other."""
    path = Path(record["path"])
    with tempfile.TemporaryDirectory(prefix="rankscope-") as folder:
        try:
            with one_file(path):
                build(path, Path(folder))
                return list(_captures(_calls(Path(folder))))
        except RankscopeError as error:
            record["unused"] = [error.message, error.why, error.hint]
            return []


def _fits(capture: Capture, shape: _Shape) -> bool:
    """Whether a graph of this shape may be what was captured.

    Where the calls name their kernels, the last nodes may be missing: ROCm's tracer loses some at the end of a replay.
    """
    missing = len(capture) - len(shape)
    may_miss = _MOST_MISSING * len(capture) if all(call.kernel for call in capture) else 0
    return 0 <= missing <= may_miss and all(
        call.kind == category
        and (call.kernel is None or call.kernel == name)
        and (not (call.op or "").startswith(_TRITON) or call.op == name)
        for call, (category, name) in zip(capture, shape, strict=False)
    )


def _agreed(captures: Sequence[Capture], code: CompiledCode) -> list[_Origin]:
    """For each node what all captures say about it."""
    origins = []
    for calls in zip(*captures, strict=False):  # the shortest is as long as the replay, or longer
        first, *others = (vars(_origin(call, code, "capture")) for call in calls)
        same = {key for key, value in first.items() if all(other[key] == value for other in others)}
        origins.append(_Origin(**{key: value if key in same else None for key, value in first.items()}))
    return origins


def _activity(folder: Path) -> list[_Activity]:
    """Device activity with a launch, in order of its time. nsys may record a graph as one activity, without nodes."""
    with closing(PlainFolder(folder)) as plain:
        result = connection().execute(f"""
            SELECT g.id, g.launch, g.category, g.name, TRY_CAST(e.args->>'graph id' AS BIGINT),
                   TRY_CAST(e.args->>'graph node id' AS BIGINT)
            FROM read_parquet({sql_text(plain.path / "gpu.parquet")}) g
            JOIN read_parquet({sql_text(plain.path / "events.parquet")}, file_row_number=true) e
              ON e.file_row_number = g.id
            WHERE g.launch IS NOT NULL AND (e.args->>'whole graph') IS NULL ORDER BY g.start_ns, g.id
        """)
        return [_Activity(*row) for row in result.fetchall()]
