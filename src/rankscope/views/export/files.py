"""Write a run to files: a trace for a timeline viewer, or one file for each table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isal import igzip

from rankscope.analysis.core.scope import Scope
from rankscope.model import Table
from rankscope.sql import sql_text
from rankscope.timeline.run import Run
from rankscope.timeline.sql_views import SEGMENTS, VIEWS, describe
from rankscope.views.envelope import FORMULA
from rankscope.views.export.chrome import write_chrome
from rankscope.views.export.perfetto import write_archive, write_perfetto

ARCHIVE = "archive"
TRACE_ENDINGS = {"perfetto": ".perfetto-trace", "chrome": ".trace.json", ARCHIVE: ".perfetto.tar"}
_WRITERS = {"perfetto": write_perfetto, "chrome": write_chrome, ARCHIVE: write_archive}
_TABLE_OPTIONS = {"parquet": "FORMAT parquet, COMPRESSION zstd", "csv": "FORMAT csv, HEADER"}


def write_trace(
    run: Run, scope: Scope, path: Path, kind: str, *, with_args: bool = True, compress: bool = False
) -> int:
    """A trace of one of TRACE_ENDINGS; returns the number of slices in it."""
    write = _WRITERS[kind]
    with path.open("wb") as raw:
        if not compress:
            return write(run, scope, raw, with_args)
        packer: Any = igzip.IGzipFile  # it has no types
        with packer(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
            return write(run, scope, packed, with_args)


def write_tables(run: Run, scope: Scope, folder: Path, kind: str) -> list[str]:
    """Every table that SQL sees as a file, parquet or csv; returns their names."""
    folder.mkdir(parents=True, exist_ok=True)
    for view in VIEWS:
        path = folder / f"{view.name}.{kind}"
        temporary = path.with_name(f".{path.name}")
        where = scope.where() if _has_steps(view) else scope.only_ranks().where()
        columns = _without_formulas(view) if kind == "csv" else "*"
        run.export(view, where, temporary, _TABLE_OPTIONS[kind], columns)
        temporary.replace(path)
    return [view.name for view in VIEWS]


def _without_formulas(view: Table) -> str:
    """The columns of a table; text that would start a formula in a spreadsheet gets an apostrophe in front."""
    formula = sql_text("^" + FORMULA.pattern)
    quoted = [
        f"CASE WHEN regexp_matches({name}, {formula}) AND try_cast({name} AS DOUBLE) IS NULL "
        f"THEN concat({sql_text(chr(39))}, {name}) ELSE {name} END AS {name}"
        for name in (field.name for field in describe(view) if field.type == "VARCHAR")
    ]
    return f"* REPLACE ({', '.join(quoted)})" if quoted else "*"


def tables_without_steps() -> list[str]:
    """Tables that --steps does not narrow; the list of trace files (segments) is not counted."""
    return [view.name for view in VIEWS if view is not SEGMENTS and not _has_steps(view)]


def _has_steps(view: Table) -> bool:
    return any(field.name == "step" for field in describe(view))
