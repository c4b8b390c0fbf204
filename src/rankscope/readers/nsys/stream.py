"""Recordings of nsys that were not converted to a report: .qdstrm.

They are left where Nsight Systems is installed without its importer, as on many compute nodes, and when nsys is killed.
The importer must be of the version that recorded.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from rankscope import tools
from rankscope.errors import EmptyTraceError, ReadError, ToolError


def report_of(stream: Path, elsewhere: Path, *, writable: bool) -> Path:
    """The report of a recording: the one beside it, or a new one there; in ``elsewhere`` where that is read-only."""
    beside = stream.with_suffix(".nsys-rep")
    if beside.is_file() and beside.stat().st_size:
        return beside
    digest = hashlib.sha256(str(stream).encode()).hexdigest()[:10]
    report = beside if writable else elsewhere / digest / beside.name
    if not report.is_file():
        _convert(stream, report, beside)
    return report


def _convert(stream: Path, report: Path, shown: Path) -> None:
    if not stream.stat().st_size:
        raise EmptyTraceError(
            f"{stream} is empty",
            why="It has 0 bytes, as after a job that was killed.",
            hint="Capture this rank again, or leave the file out.",
        )
    written = tools.stream_version(stream)
    importer = _importer(written)
    command = tools.import_command(stream, shown)
    if importer is None or (written and importer.version != written):
        here = f"the one here is {_text(importer.version)}" if importer else "there is none here"
        raise ToolError(
            f"{stream} must be converted before it can be read",
            why=f"It is a recording of nsys {_text(written)} without a report. Only the importer of that version can "
            f"convert it, and {here}.",
            hint=f"Where Nsight Systems {_text(written)} is installed in full: {command}; or --nsys PATH",
        )
    report.parent.mkdir(parents=True, exist_ok=True)
    if refusal := tools.import_stream(importer, stream, report):
        raise ReadError(
            f"{stream} cannot be converted",
            why=f"{importer.path}: {refusal}.".replace("..", "."),
            hint="The recording is damaged or was cut; capture this rank again, or leave the file out.",
        )


def _importer(version: tuple[int, ...]) -> tools.Tool | None:
    try:
        program = tools.find_tool("nsys", os.environ.get(tools.NSYS_VARIABLE)).path
    except ToolError:
        program = Path("nsys")
    return tools.nsys_importer(program, version)


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version)) or "of unknown version"
