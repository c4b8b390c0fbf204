"""The run folder's small files: rankscope.json for the job, rank-00003.rankscope.json for each rank.

Safe on NFS without locks: every file is written under a temporary name and moved into place; the first of several
writers is decided by link(2), which is atomic there. Only the rank itself writes its manifest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rankscope.capture.telemetry_ring import FOLDER as TELEMETRY
from rankscope.errors import CaptureError
from rankscope.files import create_json, make_private_folder, write_json

FORMAT = 1
RUN_MANIFEST = "rankscope.json"
_RANK_MANIFEST = re.compile(r"rank-(\d+)\.rankscope\.json")
_ENVIRONMENT_NAME = re.compile(r"%q\{(\w+)\}")
_MOST_NAMES = 1000
_TRAINER = "trainer.json"
OPERATOR_TABLE = "profiler_list{}.dat"
"""torch's table of `rankscope.profile`: rank 0 has no more in its name, others -RANK-of-WORLD."""
FLOPS_PROFILE = "profiler_ds.txt"
"""DeepSpeed's, of rank 0."""

Manifest = dict[str, Any]


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replace ``%q{VAR}`` as nsys does; a variable that is not set is an error."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in env:
            raise CaptureError(
                f"{text} names {match[1]}, which is not set",
                why="All ranks would write to the same literal name and overwrite each other.",
                hint=f"Export {match[1]} in the job, or leave %q{{{match[1]}}} out.",
            )
        return env[match[1]]

    return _ENVIRONMENT_NAME.sub(value, text)


def rank_stem(rank: int) -> str:
    """The beginning of every file name of this rank."""
    return f"rank-{rank:05d}"


def rank_manifest(folder: Path, rank: int) -> Path:
    return folder / f"{rank_stem(rank)}.rankscope.json"


def rank_manifests(folder: Path) -> Iterator[Manifest]:
    """Every rank's manifest, in order of rank. What is in it may be anything, but for its rank and its windows."""
    for path in sorted(folder.glob("rank-*.rankscope.json")):
        if _RANK_MANIFEST.fullmatch(path.name):
            manifest = _read_rank_manifest(path)
            if type(manifest.get("rank")) is int:
                yield manifest


def _read_rank_manifest(path: Path) -> Manifest:
    """With a list of windows that are objects, whatever is in the file."""
    manifest = read_json(path) or {}
    windows = manifest.get("windows")
    manifest["windows"] = (
        [window for window in windows if isinstance(window, dict)] if isinstance(windows, list) else []
    )
    return manifest


def read_json(path: Path) -> Manifest | None:
    """A JSON object, or None when there is no file or something else is in it."""
    try:
        # A pipe would block, and so would files of the system, which have no size.
        is_readable = path.is_file() and path.stat().st_size
        value = json.loads(path.read_text(encoding="utf-8")) if is_readable else None
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def open_run(asked: Path, manifest: Manifest, *, force: bool, for_group: bool = False) -> tuple[Path, bool]:
    """Take a folder for this job; returns it, and whether this process is the first of the job there.

    The first writer creates rankscope.json, the others find their job in it.

    A folder that holds another job is left alone: the job takes DIR-2, DIR-3 and so on. Every rank comes to the same
    one, because each takes the first that is free or holds its own job. With ``force`` the other job is replaced. A new
    folder is its owner's alone, or also ``for_group``.
    """
    job = manifest["job"]
    for folder in _names_after(asked):
        path = folder / RUN_MANIFEST
        try:
            make_private_folder(folder, for_group=for_group)
            if create_json(path, {"format": FORMAT, **manifest}):
                return folder, True
        except OSError as error:
            raise CaptureError(
                f"cannot write the run folder {folder}",
                why=f"{error.strerror or error}.",
                hint="Name another folder with -o DIR. The job runs without being captured.",
            ) from error
        if (read_json(path) or {}).get("job") == job:
            return folder, False
        if force:
            _remove_other_jobs(folder, job)
            write_json(path, {"format": FORMAT, **manifest})
            return folder, True
    raise CaptureError(
        f"{asked} and {_MOST_NAMES - 2} folders named after it hold other jobs",
        why="Two jobs in one folder would mix their ranks.",
        hint="Name another folder with -o DIR, or give -f to replace it. The job runs without being captured.",
    )


def folder_of(asked: Path, job: str) -> Path | None:
    """The folder that this job has taken by `open_run`; None if it has taken none."""
    for folder in _names_after(asked):
        manifest = read_json(folder / RUN_MANIFEST)
        if manifest is None:
            return None
        if manifest.get("job") == job:
            return folder
    return None


def _names_after(asked: Path) -> Iterator[Path]:
    """DIR, DIR-2, DIR-3 and so on."""
    yield asked
    yield from (asked.with_name(f"{asked.name}-{number}") for number in range(2, _MOST_NAMES))


def claim_rank(folder: Path, manifest: Manifest, *, force: bool) -> None:
    """Take this rank of the run for this process.

    Allowed after a torchrun restart, if the earlier attempt left no complete trace, and after a process that ended
    without a window (a script that prepares data before the one that trains); otherwise refused.
    """
    path = rank_manifest(folder, manifest["rank"])
    if create_json(path, manifest):
        return
    there = read_json(path) or {}
    windows = there.get("windows", ())
    has_trace = any(window["state"] == "whole" for window in windows)
    restarted = there.get("restart", 0) < manifest["restart"] and not has_trace
    left_empty = there.get("state") == "done" and not windows
    if force or restarted or left_empty:
        write_json(path, manifest)
        return
    raise CaptureError(
        f"rank {manifest['rank']} of this run is captured already",
        why=f"By process {there.get('pid')} on {there.get('host')}, in {folder}.",
        hint="Name another folder with -o DIR, or give -f to replace it.",
    )


def write_rank(folder: Path, manifest: Manifest) -> None:
    write_json(rank_manifest(folder, manifest["rank"]), manifest)


def take_for_trainer(folder: Path, trainer: str) -> bool:
    """Whether the run is this trainer's: the first of a job takes it for all its ranks."""
    path = folder / TELEMETRY / _TRAINER
    make_private_folder(path.parent)
    return create_json(path, {"trainer": trainer}) or (read_json(path) or {}).get("trainer") == trainer


def remove_if_empty(folder: Path) -> None:
    """Remove a folder that holds nothing but rankscope.json."""
    try:
        if [path.name for path in folder.iterdir()] == [RUN_MANIFEST]:
            (folder / RUN_MANIFEST).unlink()
            folder.rmdir()
    except OSError:
        pass  # in use by another process


def _remove_other_jobs(folder: Path, job: str) -> None:
    """With -f: remove the files of earlier jobs' ranks, none through a link. Several ranks may do this at once."""
    telemetry = folder / TELEMETRY
    removed = [] if telemetry.is_symlink() else [telemetry / _TRAINER]
    tables = OPERATOR_TABLE.format(""), OPERATOR_TABLE.format("-*-of-*"), FLOPS_PROFILE
    removed += [path for name in tables for path in folder.glob(name)]
    for path in folder.glob("rank-*.rankscope.json"):
        manifest = _read_rank_manifest(path)
        if manifest.get("job") == job:
            continue
        names = [window.get("file") for window in manifest["windows"]]
        removed += [folder / name for name in names if isinstance(name, str) and Path(name).name == name]
        removed.append(path)
        if not telemetry.is_symlink():
            rank = path.name.partition(".")[0]
            names = [f"{rank}.ring", f"{rank}.hang", f"stacks-{rank}.txt", f"flight-{rank}.json"]
            removed += [telemetry / name for name in names]
    for path in removed:
        path.unlink(missing_ok=True)
