"""What a profiler left: the report where it belongs, or why there is none and what can still be done."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from rankscope.tools import NCU_PASSES, Tool, import_qdstrm, nsys_importer, read_ncu_log

_IMPORT_SECONDS = 1800
_SHOWN_KERNELS = 20


class Left(NamedTuple):
    """The reports of one rank, and what must be said about them."""

    files: tuple[Path, ...]
    notes: tuple[str, ...]
    why: str | None
    """Why there is none, or why it is not whole."""


def collect_nsys(
    tool: Tool, target: Path, temp: Path, log: str, *, ranged: str | None, ended_early: bool
) -> Left:
    """nsys ends with 0 whether or not there is a report; look for it, and for what it may have become.

    ``ranged`` names the range it was told to wait for; ``ended_early`` says that nsys was killed.
    """
    why = "nsys was killed before it had written all" if ended_early else None
    notes: list[str] = []
    files = _reports(target)
    if not files and (moved := _strays(target, temp)):
        files, refusal = moved, _line_with(log, "Failed to create")
        notes.append(
            f"nsys put the report elsewhere ({refusal or 'it does not say why'}); it was moved to {target.name}"
        )
    if not files:
        files, said = _imported(tool, target, temp)
        if said:
            return Left(files, (said,), None) if files else Left((), (), said)
    if files:
        return Left(files, tuple(notes), why)
    if ranged is not None and not ended_early:
        return Left((), (), f"the capture range ({ranged}) never opened, so nsys wrote no report")
    return Left((), tuple(notes), why or f"nsys wrote no report: {_last_line(log)}")


def collect_ncu(target: Path, log: str, section_set: str) -> Left:
    """ncu writes no file when no kernel matched, and lists those that ran."""
    heard = read_ncu_log(log)
    if target.is_file() and target.stat().st_size:
        passes = sum(count for _, count in heard.profiled)
        said = f"ncu profiled {len(heard.profiled)} launches in {passes} passes" if heard.profiled else ""
        return Left((target,), (said,) if said else (), None)
    if heard.available:
        shown = "\n".join(f"    {name}" for name in heard.available[:_SHOWN_KERNELS])
        more = len(heard.available) - _SHOWN_KERNELS
        rest = f"\n    and {more} more" if more > 0 else ""
        return Left((), (), f"no kernel matched -k. These ran:\n{shown}{rest}")
    if heard.errors:
        return Left((), (), f"ncu wrote no report: {heard.errors[0].removeprefix('==ERROR==').strip()}")
    return Left((), (), f"ncu wrote no report: {_last_line(log)}")


def ncu_advice(section_set: str, launch_count: int) -> str:
    """What it will cost: said before, because a job has a walltime."""
    passes = NCU_PASSES.get(section_set)
    often = f"about {passes} times" if passes else "many times"
    how_many = f"{launch_count} launches" if launch_count else "every launch that matches"
    return (
        f"ncu runs a profiled kernel {often} (--set {section_set}), alone on its GPU and with its memory saved and "
        f"restored: {how_many}; other ranks wait in their collectives meanwhile"
    )


def _reports(target: Path) -> tuple[Path, ...]:
    """The report, or with several ranges rank-00000.1.nsys-rep and so on; an empty file is none."""
    numbered = re.compile(re.escape(target.stem) + r"(\.\d+)?" + re.escape(target.suffix))
    found = [
        path for path in target.parent.glob(f"{target.stem}*{target.suffix}") if numbered.fullmatch(path.name)
    ]
    return tuple(sorted(path for path in found if path.stat().st_size))


def _strays(target: Path, temp: Path) -> tuple[Path, ...]:
    strays = sorted(temp.glob(f"*{target.suffix}"))
    if not strays or target.exists():
        return ()
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(strays[-1], target)
    return (target,)


def _imported(tool: Tool, target: Path, temp: Path) -> tuple[tuple[Path, ...], str]:
    """A .qdstrm is what nsys has before there is a report: convert it, or say how."""
    streams = sorted(temp.glob("*.qdstrm"))
    if not streams:
        return (), ""
    if target.exists() and not target.stat().st_size:
        target.unlink()  # begun, and the importer would not write over it
    kept = target.with_suffix(".qdstrm")
    shutil.move(streams[-1], kept)
    importer = nsys_importer(tool.path)
    if importer is not None:
        env = {**os.environ, "LD_LIBRARY_PATH": _library_path(importer)}
        words = import_qdstrm(importer, kept, target)
        try:
            done = subprocess.run(
                words, env=env, capture_output=True, text=True, errors="replace", timeout=_IMPORT_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return (), f"nsys was killed: {kept.name} could not be converted: {error}"
        if target.is_file() and target.stat().st_size:
            kept.unlink()
            return (target,), "nsys was killed before the report was made; its .qdstrm was converted"
        return (
            (),
            f"nsys was killed: {kept.name} cannot be converted: {_last_line(done.stdout + done.stderr)}",
        )
    command = shlex.join(import_qdstrm("QdstrmImporter", kept, target))
    return (
        (),
        f"nsys was killed before the report was made. Where Nsight Systems is installed in full: {command}",
    )


def _library_path(importer: Path) -> str:
    before = os.environ.get("LD_LIBRARY_PATH")
    return f"{importer.parent}{os.pathsep}{before}" if before else str(importer.parent)


def _line_with(log: str, text: str) -> str:
    return next((line.strip() for line in log.splitlines() if text in line), "")


def refusal_reason(log: str) -> str:
    """The profiler's reason for not starting, from what it printed: the first line that says something."""
    lines = [line.strip() for line in log.splitlines()]
    said = [line for line in lines if line and not line.startswith(("usage:", "Try '", "["))]
    return said[0] if said else "it does not say why"


def _last_line(log: str) -> str:
    lines = [line.strip() for line in log.replace("\r", "\n").splitlines() if line.strip()]
    return lines[-1] if lines else "it does not say why"


def read_log(path: Path, most: int = 1_000_000) -> str:
    """The end of what a profiler printed."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - most))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
