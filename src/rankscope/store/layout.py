"""Where things lie on disk: the store's folder for a run, its index, and the segments inside it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rankscope.atomic_files import write_json
from rankscope.errors import EmptyTraceError, NotATraceError, RankscopeError, StoreError
from rankscope.model import FORMAT_VERSION
from rankscope.readers import find_reader, looks_like_a_trace
from rankscope.readers.base import rank_from_name

INDEX_FILE = "store.json"
STORE_NAME = ".rankscope"
_EXPORTS = {".nsys-rep": (".sqlite",), ".ncu-rep": (".raw.csv", ".details.csv", ".csv")}
"""What tools write from their reports: the same recording once more."""


@dataclass(frozen=True)
class SegmentEntry:
    """One trace file in the store."""

    rank: int
    segment: int
    """Counts the files of a rank: torch writes one per active cycle."""
    rank_source: str
    manifest: dict[str, Any]
    """What segment.json holds."""

    @property
    def folder(self) -> str:
        return f"rank={self.rank:05d}/segment={self.segment}"

    @property
    def source(self) -> Path:
        return Path(self.manifest["source"]["path"])

    @property
    def format(self) -> str:
        """Which reader read it: kineto, ncu, …"""
        return str(self.manifest["reader"])

    @property
    def has_times(self) -> bool:
        """Does the file place anything in time? An ncu report does not."""
        return bool(self.manifest["timed"])

    @property
    def part(self) -> str:
        """Which rank's part of the file; empty for all of it."""
        return str(self.manifest["source"].get("part", ""))

    @property
    def unix_origin_ns(self) -> int:
        """Nanoseconds since 1970 at which this segment's times are 0, by its own clock."""
        return int(self.manifest["clock_base_ns"]) + int(self.manifest["origin_ns"])

    def is_current(self) -> bool:
        """Is the raw file still the one that was read? A file that is gone leaves the store valid."""
        if self.manifest["format"] != FORMAT_VERSION:
            return False
        try:
            now = self.source.stat()
        except OSError:
            return True
        source = self.manifest["source"]
        return (now.st_size, now.st_mtime_ns) == (source["bytes"], source["mtime_ns"])


@dataclass
class Index:
    """The segments that are whole; what is not listed here does not exist."""

    segments: list[SegmentEntry] = field(default_factory=list)

    def save(self, store: Path) -> None:
        entries = [asdict(entry) for entry in sorted(self.segments, key=lambda e: (e.rank, e.segment))]
        write_json(store / INDEX_FILE, {"format": FORMAT_VERSION, "segments": entries})

    @staticmethod
    def load(store: Path) -> Index:
        """The index; an empty one when there is none, or one of another format."""
        try:
            content = json.loads((store / INDEX_FILE).read_text(encoding="utf-8"))
            if content["format"] != FORMAT_VERSION:
                return Index()
            return Index([SegmentEntry(**entry) for entry in content["segments"]])
        except FileNotFoundError:
            return Index()
        except PermissionError as error:
            raise StoreError(
                f"cannot read {store}", why=f"{error.strerror}.", hint="Ask its owner, or use --cache DIR."
            ) from error
        except (ValueError, KeyError, TypeError):
            return Index()


@dataclass(frozen=True)
class Sources:
    """The trace files of a run, and those that were passed over, with the reason."""

    files: tuple[Path, ...]
    skipped: tuple[RankscopeError, ...] = ()


def find_sources(paths: Sequence[Path], known: Collection[Path] = ()) -> Sources:
    """The traces named, or those in the folders named. A bad file among good ones is passed over and said.

    Known files are in a store and unchanged: they are not opened again, or every command would open every trace.
    """
    files: list[Path] = []
    skipped: list[RankscopeError] = []
    for path in paths:
        if not path.exists():
            raise StoreError(f"there is no {path}", why="No such file or folder.", hint="Check the path.")
        found = _traces_in(path) if path.is_dir() else [path]
        for file in found:
            try:
                if file not in known:
                    find_reader(file)
            except NotATraceError as error:
                # A configuration file beside the traces is nobody's problem; an empty trace is.
                if path.is_file() or isinstance(error, EmptyTraceError) or rank_from_name(file) is not None:
                    skipped.append(error)
            except RankscopeError as error:
                skipped.append(error)
            else:
                files.append(file)
    if not files:
        raise _no_traces(paths, skipped)
    return Sources(tuple(dict.fromkeys(files)), tuple(skipped))


def _traces_in(folder: Path) -> list[Path]:
    """The traces of a folder; of a report and its exports just one, the fullest export when it is not older."""
    found = sorted(path for path in folder.iterdir() if path.is_file() and looks_like_a_trace(path))
    times = {path: path.stat().st_mtime_ns for path in found}

    def has_better_twin(path: Path) -> bool:
        for report_ending, export_endings in _EXPORTS.items():
            ending = next((e for e in (*export_endings, report_ending) if path.name.endswith(e)), None)
            if ending is None:
                continue
            stem = path.name.removesuffix(ending)
            report = path.with_name(stem + report_ending)
            exports = [twin for e in export_endings if (twin := path.with_name(stem + e)) in times]
            whole = [twin for twin in exports if not twin.name.endswith(".details.csv")]
            if report in times and not (whole and times[whole[0]] >= times[report]):
                return path != report
            return path != (whole or exports or [path])[0]
        return False

    return [path for path in found if not has_better_twin(path)]


def _no_traces(paths: Sequence[Path], skipped: list[RankscopeError]) -> RankscopeError:
    if len(skipped) == 1:
        return skipped[0]
    below = sorted({p.parent for path in paths if path.is_dir() for p in path.glob("*/*.json*")})
    return NotATraceError(
        f"no trace in {', '.join(map(str, paths))}",
        why="rankscope looks for traces of torch.profiler and Chrome (*.json, *.json.gz), of nsys (*.nsys-rep, "
        "*.sqlite) and ncu (*.ncu-rep, *.csv), memory snapshots (*.pickle) and flight-recorder dumps (_dump_N).",
        hint=f"Did you mean {below[0]}?"
        if below
        else "Name the folder the profiler wrote to, or a trace file.",
    )


def store_folder(paths: Sequence[Path], output: Path | None, cache: Path | None) -> Path:
    """Where the store of these sources lives (it need not exist yet).

    RUN/.rankscope for a folder, FILE.rankscope for a file, one folder beside the first for several files;
    under the cache folder when one is given.
    """
    if output is not None:
        return output / STORE_NAME
    first = paths[0]
    if len(paths) == 1:
        natural = first / STORE_NAME if first.is_dir() else first.with_name(first.name + STORE_NAME)
    else:
        natural = first.parent / f"{STORE_NAME}-{_digest(paths)}"
    return natural if cache is None else cache / f"{first.name or 'run'}-{_digest(paths)}"


def default_cache() -> Path:
    """The user's cache folder, for runs that cannot be written to."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rankscope"


def _digest(paths: Sequence[Path]) -> str:
    text = "\n".join(str(path.resolve()) for path in sorted(paths))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def can_write(folder: Path) -> bool:
    """Can this folder, or the nearest one above it that exists, take new files?"""
    while not folder.exists():
        folder = folder.parent
    if not folder.stat().st_mode & 0o222:  # root could, but whoever took every write bit away meant it
        return False
    return os.access(folder, os.W_OK | os.X_OK) and not os.statvfs(folder).f_flag & os.ST_RDONLY
