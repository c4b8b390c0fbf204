"""nsys reports, .nsys-rep: exported to sqlite with nsys, then read like any export.

The export holds the recorded environment, so it is written to a folder that only this user can read and that is
removed when the command ends. An existing export beside the report is used instead.
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
from rankscope.files import unique_name
from rankscope.readers.base import Reader, TraceIdentity
from rankscope.readers.nsys.reader import NSYS, NsysReading
from rankscope.text.run_words import shell_word

REPORT_MAGIC = b"NVIDIA Tegra Profiler Report"
_VERSION = re.compile(rb"Report (\d+(?:@\d+)+)")
_FOLDER_VARIABLE = "RANKSCOPE_EXPORTS"
"""Passes the folder of exports to worker processes."""


class NsysReportReader(Reader):
    """.nsys-rep, through `nsys export`."""

    name = NSYS.name
    """The format of the content: a rank with a torch trace and a report is not counted twice."""

    def recognises(self, path: Path, head: bytes) -> bool:
        return head.startswith(REPORT_MAGIC) or path.name.endswith(".nsys-rep")

    def identify_parts(self, path: Path) -> list[TraceIdentity]:
        return NSYS.identify_parts(exported(path))

    def open(self, path: Path, part: str = "") -> NsysReading:
        return NsysReading(exported(path), part, shown_as=path)


NSYS_REPORT = NsysReportReader()


def exported(report: Path) -> Path:
    """The sqlite export of a report: the one beside it unless it is older, else a new one."""
    beside = report.with_suffix(".sqlite")
    if beside.is_file() and beside.stat().st_mtime_ns >= report.stat().st_mtime_ns:
        return beside
    status = report.stat()
    identity = f"{report.resolve()} {status.st_size} {status.st_mtime_ns}"
    folder = _exports() / hashlib.sha256(identity.encode()).hexdigest()[:16]
    target = folder / f"{report.stem}.sqlite"
    if not target.is_file():
        _export(report, folder, target)
    return target


def _export(report: Path, folder: Path, target: Path) -> None:
    tool = _nsys(report)
    folder.mkdir(exist_ok=True)
    unfinished = folder / f"unfinished-{unique_name()}.sqlite"
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
                    why="Its first bytes are not those of an nsys report.",
                    hint="Capture this rank again, or leave the file out.",
                ) from error
        raise ToolError(
            f"{report} must be exported before it can be read",
            why=f"Only nsys can open its reports: {error.message}. {error.why}",
            hint=f"Where nsys is installed: nsys export --type sqlite {shell_word(report.name)}; "
            "or give its path: --nsys PATH",
        ) from error


def _refused(report: Path, tool: tools.Tool, answer: str) -> ReadError:
    """The error for a failed export, most often because the report is newer than this nsys."""
    message = next((line.strip() for line in answer.splitlines() if "error" in line.lower()), "")
    ours = ".".join(map(str, tool.version))
    with report.open("rb") as file:
        match = _VERSION.search(file.read(200))
    written = match[1].decode().replace("@", ".") if match else ""
    if "newer than" in answer:
        return ReadError(
            f"{report} is too new for this nsys",
            why=f"It was written by nsys {written or 'of a later version'}; {tool.path} is {ours}.",
            hint=f"Export it where it was captured: nsys export --type sqlite {shell_word(report.name)}; "
            "or give a newer nsys: --nsys PATH",
        )
    return ReadError(
        f"nsys cannot export {report}",
        why=f"{message or 'nsys gave no reason'}.".replace("..", "."),
        hint="The report is damaged or truncated; capture this rank again, or leave the file out.",
    )


def _exports() -> Path:
    """The folder for exports of this command. Worker processes use the same one and do not remove it."""
    folder_of_command = os.environ.get(_FOLDER_VARIABLE)
    if folder_of_command and Path(folder_of_command).is_dir():
        return Path(folder_of_command)
    folder = tempfile.mkdtemp(prefix="rankscope-exports-")
    os.environ[_FOLDER_VARIABLE] = folder
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
