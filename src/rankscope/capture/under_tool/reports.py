"""The reports of a profiler that has ended: found, moved or converted; or the reason why there is none."""

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
    """The reports of one rank, and messages about them."""

    files: tuple[Path, ...]
    notes: tuple[str, ...]
    why: str | None
    """Why there is none, or why it is not complete."""


def collect_nsys(
    tool: Tool, target: Path, temp: Path, log: str, *, ranged: str | None, ended_early: bool
) -> Left:
    """Find nsys's reports. Its exit code is 0 with and without a report, so the files decide.

    ``ranged`` is the capture range it waited for; ``ended_early``: nsys was killed.
    """
    why = "nsys was killed before the report was complete" if ended_early else None
    notes: list[str] = []
    files = _reports(target)
    if not files and (moved := _strays(target, temp)):
        files, refusal = moved, _line_with(log, "Failed to create")
        notes.append(
            f"nsys wrote the report elsewhere ({refusal or 'it gives no reason'}); it was moved to {target.name}"
        )
    if not files:
        files, note = _imported(tool, target, temp)
        if note:
            return Left(files, (note,), None) if files else Left((), (), note)
    if files:
        return Left(files, tuple(notes), why)
    if ranged is not None and not ended_early:
        return Left((), (), f"the capture range ({ranged}) never opened, so nsys wrote no report")
    return Left((), tuple(notes), why or f"nsys wrote no report: {_last_line(log)}")


def collect_ncu(target: Path, log: str, section_set: str) -> Left:
    """Find ncu's report. When no kernel matched there is none, and its log lists the kernels that ran."""
    logged = read_ncu_log(log)
    if target.is_file() and target.stat().st_size:
        passes = sum(count for _, count in logged.profiled)
        note = f"ncu profiled {len(logged.profiled)} launches in {passes} passes" if logged.profiled else ""
        return Left((target,), (note,) if note else (), None)
    if logged.available:
        shown = "\n".join(f"    {name}" for name in logged.available[:_SHOWN_KERNELS])
        more = len(logged.available) - _SHOWN_KERNELS
        rest = f"\n    and {more} more" if more > 0 else ""
        return Left((), (), f"no kernel matched -k. These ran:\n{shown}{rest}")
    if logged.errors:
        return Left((), (), f"ncu wrote no report: {logged.errors[0].removeprefix('==ERROR==').strip()}")
    return Left((), (), f"ncu wrote no report: {_last_line(log)}")


def ncu_advice(section_set: str, launch_count: int) -> str:
    """How much longer a job takes under ncu: a message before it starts, because a job has a walltime."""
    passes = NCU_PASSES.get(section_set)
    times = f"about {passes} times" if passes else "many times"
    how_many = f"{launch_count} launches" if launch_count else "every launch that matches"
    return (
        f"ncu runs each profiled kernel {times} (--set {section_set}), alone on its GPU and with its memory saved and "
        f"restored ({how_many}); meanwhile other ranks wait in their collectives"
    )


def _reports(target: Path) -> tuple[Path, ...]:
    """The report, or with several ranges rank-00000.1.nsys-rep and so on; empty files do not count."""
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
    """Convert a .qdstrm, which nsys writes before it makes the report; if that fails, the message says how to."""
    streams = sorted(temp.glob("*.qdstrm"))
    if not streams:
        return (), ""
    if target.exists() and not target.stat().st_size:
        target.unlink()  # incomplete, and the importer would not overwrite it
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
    """The profiler's reason for not starting: the first meaningful line of its log."""
    lines = [line.strip() for line in log.splitlines()]
    meaningful = [line for line in lines if line and not line.startswith(("usage:", "Try '", "["))]
    return meaningful[0] if meaningful else "it gives no reason"


def _last_line(log: str) -> str:
    lines = [line.strip() for line in log.replace("\r", "\n").splitlines() if line.strip()]
    return lines[-1] if lines else "it gives no reason"


def read_log(path: Path, most: int = 1_000_000) -> str:
    """The last part of a profiler's log."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - most))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
