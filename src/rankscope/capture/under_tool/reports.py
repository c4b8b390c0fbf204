"""The reports of a profiler that has ended: found, moved or converted; or the reason why there is none."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import NamedTuple

from rankscope.tools import (
    NCU_PASSES,
    STREAM_SUFFIX,
    Tool,
    import_command,
    import_stream,
    nsys_importer,
    read_ncu_log,
)

_SHOWN_KERNELS = 20
NO_NCU_REPORT = "ncu wrote no report"
"""The start of the message when ncu failed, and not only its filter matched nothing."""


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
    if files := _reports(target):
        return Left(files, (), why)
    strays = sorted(temp.glob(f"*{target.suffix}"))
    if strays and not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(strays[-1], target)
        refusal = next((line.strip() for line in log.splitlines() if "Failed to create" in line), "")
        note = f"nsys wrote the report elsewhere ({refusal or 'it gives no reason'}); it was moved to {target.name}"
        return Left((target,), (note,), why)
    files, note = _imported(tool, target, temp)
    if note:
        return Left(files, (note,), None) if files else Left((), (), note)
    if ranged is not None and not ended_early:
        return Left((), (), f"the capture range ({ranged}) never opened, so nsys wrote no report")
    return Left((), (), why or f"nsys wrote no report: {_last_line(log)}")


def collect_ncu(target: Path, log: str) -> Left:
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
        return Left((), (), f"{NO_NCU_REPORT}: {logged.errors[0].removeprefix('==ERROR==').strip()}")
    if logged.nothing:
        return Left((), (), "no kernel matched -k, or none ran in the range that was to be profiled")
    return Left((), (), f"{NO_NCU_REPORT}: {_last_line(log)}")


def ncu_advice(section_set: str, launch_count: str) -> str:
    """How much longer a job takes under ncu: a message before it starts, because a job has a walltime."""
    passes = NCU_PASSES.get(section_set)
    times = f"about {passes} times" if passes else "many times"
    how_many = f"{launch_count} launches" if launch_count != "0" else "every launch that matches"
    return (
        f"ncu runs each profiled kernel {times} (--set {section_set}), alone on its GPU and with its memory saved and "
        f"restored ({how_many}); meanwhile other ranks wait in their collectives"
    )


def _reports(target: Path) -> tuple[Path, ...]:
    """The report, or with several ranges rank-00000.1.nsys-rep and so on; empty files do not count."""
    numbered = re.compile(re.escape(target.stem) + r"(\.\d+)?" + re.escape(target.suffix))
    paths = sorted(target.parent.glob(f"{target.stem}*{target.suffix}"))
    return tuple(path for path in paths if numbered.fullmatch(path.name) and path.stat().st_size)


def _imported(tool: Tool, target: Path, temp: Path) -> tuple[tuple[Path, ...], str]:
    """Convert the recordings that nsys left without a report; if that fails, the message says how to."""
    if target.exists() and not target.stat().st_size:
        target.unlink()  # incomplete, and the importer would not overwrite it
    why = "nsys has no importer here"
    if streams := sorted(temp.glob(f"*{STREAM_SUFFIX}")):
        why = "nsys was killed before the report was made"
        shutil.move(streams[-1], target.with_suffix(STREAM_SUFFIX))
    recordings = _reports(target.with_suffix(STREAM_SUFFIX))
    if not recordings:
        return (), ""
    importer = nsys_importer(tool.path)
    if importer is None:
        command = import_command(recordings[0], recordings[0].with_suffix(target.suffix))
        version = ".".join(map(str, tool.version))
        return (), (
            f"{why}: the recording is {', '.join(path.name for path in recordings)}. Where Nsight Systems {version} is "
            f"installed in full, rankscope stats converts it, or: {command}"
        )
    converted: list[Path] = []
    for stream in recordings:
        report = stream.with_suffix(target.suffix)
        if refusal := import_stream(importer, stream, report):
            return tuple(converted), f"{why}: {stream.name} cannot be converted: {refusal}"
        stream.unlink()
        converted.append(report)
    return tuple(converted), f"{why}; its {STREAM_SUFFIX} was converted"


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
