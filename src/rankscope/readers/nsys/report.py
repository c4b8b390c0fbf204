"""nsys's own reports, .nsys-rep: exported to sqlite by nsys itself, then read as any export.

The export lies in a folder only this user can look into, for as long as this command runs: it holds the recorded
environment. An export that already lies beside its report is used instead.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from rankscope import tools
from rankscope.errors import NotATraceError, ReadError, ToolError
from rankscope.readers.base import TraceIdentity
from rankscope.readers.nsys.reader import NSYS, NsysReading

REPORT_MAGIC = b"NVIDIA Tegra Profiler Report"
_VERSION = re.compile(rb"Report (\d+(?:@\d+)+)")
_FOLDER_VARIABLE = "RANKSCOPE_EXPORTS"
"""Tells the processes that read files where the exports of this command lie."""


class NsysReportReader:
    """.nsys-rep, through `nsys export`."""

    name = "nsys-rep"

    def recognises(self, path: Path, head: bytes) -> bool:
        return head.startswith(REPORT_MAGIC) or path.name.endswith(".nsys-rep")

    def identify(self, path: Path) -> TraceIdentity:
        return self.identify_parts(path)[0]

    def identify_parts(self, path: Path) -> list[TraceIdentity]:
        return NSYS.identify_parts(exported(path))

    def open(self, path: Path, part: str = "") -> NsysReading:
        return NsysReading(exported(path), part, shown_as=path)


NSYS_REPORT = NsysReportReader()


def exported(report: Path) -> Path:
    """The sqlite export of a report: the one beside it if it is not older, else one made now."""
    beside = report.with_suffix(".sqlite")
    if beside.is_file() and beside.stat().st_mtime_ns >= report.stat().st_mtime_ns:
        return beside
    folder = _exports() / _digest(report)
    target = folder / f"{report.stem}.sqlite"
    if not target.is_file():
        _export(report, folder, target)
    return target


def _export(report: Path, folder: Path, target: Path) -> None:
    tool = _nsys(report)
    folder.mkdir(exist_ok=True)
    unfinished = folder / f"unfinished-{os.getpid()}.sqlite"
    done = subprocess.run(
        tools.nsys_export(tool, report, unfinished), capture_output=True, text=True, errors="replace"
    )
    if done.returncode or not unfinished.is_file():
        raise _refused(report, tool, done.stderr + done.stdout)
    unfinished.replace(target)


def _nsys(report: Path) -> tools.Tool:
    try:
        return tools.find_tool("nsys", os.environ.get(tools.NSYS_VARIABLE))
    except ToolError as error:
        with report.open("rb") as file:
            if not file.read(len(REPORT_MAGIC)) == REPORT_MAGIC:
                raise NotATraceError(
                    f"{report} is not an nsys report",
                    why="It does not begin as nsys's reports do.",
                    hint="Capture this rank again, or leave the file out.",
                ) from error
        raise ToolError(
            f"{report} must be exported before it can be read",
            why=f"Only nsys can open its own reports: {error.message}. {error.why}",
            hint=f"Where nsys is installed: nsys export --type sqlite {report.name}; or say where it is: --nsys PATH",
        ) from error


def _refused(report: Path, tool: tools.Tool, answer: str) -> ReadError:
    """nsys would not export it: most often because the report is newer than this nsys."""
    said = next((line.strip() for line in answer.splitlines() if "error" in line.lower()), "")
    ours = ".".join(map(str, tool.version))
    written = _written_by(report)
    if "newer than" in answer:
        return ReadError(
            f"{report} is too new for this nsys",
            why=f"It was written by nsys {written or 'of a later version'}; {tool.path} is {ours}.",
            hint=f"Export it where it was made: nsys export --type sqlite {report.name}; or name a newer one: "
            "--nsys PATH",
        )
    return ReadError(
        f"nsys cannot export {report}",
        why=f"{said or 'It gave no reason'}.".replace("..", "."),
        hint="The report is damaged or cut short; capture this rank again, or leave the file out.",
    )


def _written_by(report: Path) -> str:
    with report.open("rb") as file:
        match = _VERSION.search(file.read(200))
    return match[1].decode().replace("@", ".") if match else ""


def _exports() -> Path:
    """This command's folder for exports; its workers are told of it and leave it alone."""
    known = os.environ.get(_FOLDER_VARIABLE)
    if known and Path(known).is_dir():
        return Path(known)
    folder = tempfile.mkdtemp(prefix="rankscope-exports-")
    os.environ[_FOLDER_VARIABLE] = folder
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _digest(report: Path) -> str:
    status = report.stat()
    text = f"{report.resolve()} {status.st_size} {status.st_mtime_ns}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]
