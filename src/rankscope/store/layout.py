"""Files on disk: the traces of a run, the folder of its store, the store's index and segments."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from rankscope.capture.run_folder import RUN_MANIFEST, rank_manifests, read_json
from rankscope.errors import (
    EmptyTraceError,
    NotATraceError,
    NoTimesError,
    RankscopeError,
    ReadError,
    StoreError,
    ToolError,
)
from rankscope.model import FORMAT_VERSION, Table
from rankscope.ranges import as_ranges
from rankscope.readers import (
    FORMATS_READ,
    find_reader,
    folders_below,
    is_stream,
    looks_like_a_trace,
    one_file,
)
from rankscope.readers.base import is_usable_rank, rank_from_name
from rankscope.readers.byte_stream import read_head
from rankscope.readers.xla.recordings import JSON_NAME, PERFETTO_NAME, XPLANE_NAME
from rankscope.records import dataclass
from rankscope.store.checksums import DamagedFileError, FileSums, read_checked_json, write_checked_json
from rankscope.text.spelling import did_you_mean
from rankscope.text.visible_text import visible

INDEX_FILE = "store.json"
SEGMENT_FILE = "segment.json"
STORE_NAME = ".rankscope"
_EXPORTS = {
    ".nsys-rep": (".sqlite",),
    ".qdrep": (".sqlite",),
    ".ncu-rep": (".raw.csv", ".details.csv", ".csv"),
}
"""Files that tools export from their reports; they hold the same recording."""
_MOST_RUNS = 20
_CONVERTED = "converted"
_HEAD_BYTES = 1 << 16
_COMPANION_FOLDERS = ("chakra", "et", "execution_trace", "execution_traces", "torch_trace")
"""Folders in or beside that of the traces in which frameworks write what adds to them (Megatron: chakra)."""
_CAPTURES = "capture_traces"
"""Traces of the captures of CUDA graphs, in the folder of the traces that replay them (vLLM, SGLang)."""
_COMPANION = {"path": str, "bytes": int, "mtime_ns": int, "unused": list}
_ENTRY = {
    "rank": int,
    "segment": int,
    "rank_source": str,
    "build": str,
    "manifest": {
        "format": int,
        "reader": str,
        "source": {"path": str, "bytes": int, "mtime_ns": int},
        **dict.fromkeys(
            ("clock_base_ns", "origin_ns", "end_ns", "events", "timed", "misplaced", "steps"), int
        ),
        "steps_source": str,
        "reading": {"events_lost": int, "damage": str},
        "header": dict,
        "files": dict,
        "read_by": dict,
        "further": dict,
    },
}
"""The fields of a segment that are used without a further look, and their types."""
_OPTIONAL = {"rows": dict, "companions": list, "devices": list}
_COUNTS = ("read_by", "further", "rows")
_MOST_RANKS = 1 << 31
_COMPANION_NAMES = re.compile(r"\.(?:json|et|log)(?:\.gz)?$")
_COMPANION_NAMES_BESIDE = re.compile(r"\.et(?:\.gz)?$|torch_trace.*\.log$")


@dataclass(frozen=True)
class SegmentEntry:
    """One trace file, or one rank's part of it, in the store."""

    rank: int
    segment: int
    """Number of the file among those of its rank: torch writes one per active cycle."""
    rank_source: str
    manifest: dict[str, Any]
    """The content of segment.json."""
    build: str
    """The name of the folder with its tables. A file that is read again gets a new one, so that no folder changes."""

    @property
    def folder(self) -> str:
        return f"rank={self.rank:05d}/segment={self.segment}/{self.build}"

    @property
    def files(self) -> FileSums:
        """Its tables, within its folder."""
        found: FileSums = self.manifest["files"]
        return found

    def files_of(self, table: Table) -> list[str]:
        """The files of one table, within the store; none if the format does not have it, or it has no rows."""
        name = f"{table.name}.parquet"
        has_rows = (
            self.manifest.get("rows", {}).get(table.name, 1) > 0
        )  # stores of earlier versions do not tell
        return [f"{self.folder}/{name}"] if name in self.files and has_rows else []

    @cached_property
    def source(self) -> Path:
        return Path(self.manifest["source"]["path"])

    @property
    def format(self) -> str:
        """The name of the reader: kineto, ncu, …"""
        return str(self.manifest["reader"])

    @property
    def has_times(self) -> bool:
        """True if the file has timestamps; an ncu report does not."""
        return bool(self.manifest["timed"])

    @property
    def part(self) -> str:
        """Which rank's part of the file; empty for the whole file."""
        return str(self.manifest["source"].get("part", ""))

    @property
    def unix_origin_ns(self) -> int:
        """Time 0 of this segment in nanoseconds since 1970, by its own clock."""
        return int(self.manifest["clock_base_ns"]) + int(self.manifest["origin_ns"])

    def is_current(self) -> bool:
        """True unless the raw file has changed since it was read. A deleted file leaves the segment valid."""
        if self.manifest["format"] != FORMAT_VERSION:
            return False
        try:
            return self.is_of(self.source)
        except OSError:
            return True

    def is_of(self, path: Path) -> bool:
        """True if this file is the one that was read, by its size and time. Raises OSError if there is none."""
        now, source = path.stat(), self.manifest["source"]
        return (now.st_size, now.st_mtime_ns) == (source["bytes"], source["mtime_ns"])

    def with_source(self, path: object) -> SegmentEntry:
        """The same segment, whose raw file has another path now."""
        source = {**self.manifest["source"], "path": str(path)}
        return replace(self, manifest={**self.manifest, "source": source})


@dataclass
class Index:
    """The list of complete segments. A folder that is not listed is ignored."""

    segments: list[SegmentEntry] = field(default_factory=list)
    recovered: bool = field(default=False, compare=False)
    """Made from the segments, because the list was missing or damaged."""
    other_format: int | None = field(default=None, compare=False)
    """The format of a store that another version of rankscope has written; its segments cannot be used."""

    def save(self, store: Path) -> None:
        names = [one.name for one in fields(SegmentEntry)]  # always in this order
        entries = [
            {name: getattr(entry, name) for name in names}
            for entry in sorted(self.segments, key=lambda e: (e.rank, e.segment))
        ]
        write_checked_json(store / INDEX_FILE, {"format": FORMAT_VERSION, "segments": entries})

    @staticmethod
    def load(store: Path) -> Index:
        """The index of a store; an empty one if there is none, or it has another format.

        An index that is missing or damaged is made anew from the segments. A store with links is refused.
        """
        refuse_links(store)
        try:
            return _listed(read_checked_json(store / INDEX_FILE))
        except (FileNotFoundError, NotADirectoryError, DamagedFileError):
            found = _found_segments(store)
            return Index(found, recovered=bool(found))
        except OSError as error:
            raise StoreError(
                f"cannot read {store}", why=f"{error.strerror}.", hint="Ask its owner, or use --cache DIR."
            ) from error

    def moved_to(self, folder: Path) -> Index:
        """The index of a run that has been moved or renamed: raw files that are now in this folder are found there."""
        return Index([_found_in(folder, entry) for entry in self.segments])


def refuse_links(store: Path) -> None:
    """Raise an error if a store is a link, or has one in it: what is written or removed there would be elsewhere.

    Nor may it have pipes or devices, which would block whoever opens them.
    """
    odd = store if store.is_symlink() else next(_neither_file_nor_folder(store), None)
    if odd is not None:
        kind = "a link" if odd.is_symlink() else "neither a file nor a folder"
        raise StoreError(
            f"{store} is not used",
            why=f"{odd} is {kind}. rankscope makes none in a store, and does not write or remove through one.",
            hint="Remove it, or the whole store: it is made again from the traces. Or use --cache DIR.",
        )


def _neither_file_nor_folder(folder: Path | str) -> Iterator[Path]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _neither_file_nor_folder(entry.path)
            elif not entry.is_file(follow_symlinks=False):
                yield Path(entry.path)


def _listed(content: dict[str, Any]) -> Index:
    """The index that store.json holds. Raises DamagedFileError where it is not what rankscope writes."""
    written, segments = content.get("format"), content.get("segments")
    if isinstance(written, int) and written != FORMAT_VERSION:
        return Index(other_format=written)
    if written != FORMAT_VERSION or not isinstance(segments, list) or not all(map(_is_entry, segments)):
        raise DamagedFileError("it does not list segments as rankscope does")
    return Index([SegmentEntry(**entry) for entry in segments])


def _is_entry(fields: object) -> bool:
    """Whether this describes a segment: a checksum shows that nothing changed, not who wrote it.

    A name in it may not lead out of the store.
    """
    if not isinstance(fields, dict) or not _fits(fields, _ENTRY) or len(fields) != len(_ENTRY):
        return False
    manifest = fields["manifest"]
    if not all(_fits(manifest[key], shape) for key, shape in _OPTIONAL.items() if key in manifest):
        return False
    files, companions = manifest["files"], manifest.get("companions", ())
    counts = (count for key in _COUNTS for count in manifest.get(key, {}).values())
    return (
        0 <= fields["rank"] < _MOST_RANKS
        and 0 <= fields["segment"] < _MOST_RANKS
        and all(map(_is_name, (fields["build"], *files)))
        and all(isinstance(sums, list) and len(sums) == 2 for sums in files.values())
        and all(isinstance(count, int) for count in (*counts, *manifest.get("devices", ())))
        and all(_fits(companion, _COMPANION) for companion in companions)
        and all(_is_path(file["path"]) for file in (manifest["source"], *companions))
    )


def _fits(value: object, shape: Any) -> bool:
    """Whether a JSON value is of a type, or an object with at least these keys. Numbers fit into 63 bits."""
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(
            key in value and _fits(value[key], shape[key]) for key in shape
        )
    return isinstance(value, shape) and (not isinstance(value, int) or abs(value) < 1 << 62)


@lru_cache(maxsize=64)
def _is_name(text: str) -> bool:
    return text not in ("", ".", "..") and "/" not in text and _is_path(text)


def _is_path(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeError:
        return False


def _found_in(folder: Path, entry: SegmentEntry) -> SegmentEntry:
    here = folder / entry.source.name
    try:
        return entry.with_source(here) if entry.source != here and entry.is_of(here) else entry
    except OSError:
        return entry


def _found_segments(store: Path) -> list[SegmentEntry]:
    """The complete segments in a store's folder; of several builds the newest."""
    found: dict[tuple[int, int], SegmentEntry] = {}
    paths = store.glob(f"rank=*/segment=*/*/{SEGMENT_FILE}")
    for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns):
        try:
            manifest = read_checked_json(path)
            rank, segment = (int(name.partition("=")[2]) for name in path.parts[-4:-2])
        except (OSError, ValueError):
            continue
        fields: dict[str, Any] = {
            "rank": rank,
            "segment": segment,
            "manifest": manifest,
            "build": path.parent.name,
        }
        fields["rank_source"] = manifest.get("rank_source")
        if manifest.get("format") == FORMAT_VERSION and _is_entry(fields):
            found[rank, segment] = SegmentEntry(**fields)
    return list(found.values())


def no_such_path(path: Path) -> StoreError:
    """The error for a run that is not there, with the path that was probably meant."""
    place = next(parent for parent in (path.parent, *path.parent.parents) if parent.is_dir())
    missing = path.relative_to(place).parts[0]
    try:
        near = [entry.name for entry in place.iterdir() if not entry.name.startswith(".")]
    except OSError:
        near = []
    like = did_you_mean(missing, near)
    why = "No such file or folder." if place == path.parent else f"{place} has no {missing}."
    return StoreError(f"there is no {path}", why=why, hint=f"{like}Check the path.")


@dataclass(frozen=True)
class Sources:
    """The trace files of a run, and an error for each file that was skipped."""

    files: tuple[Path, ...]
    skipped: tuple[RankscopeError, ...] = ()
    ranks: Mapping[Path, int] = field(default_factory=dict)
    """The rank of a file, where the capture's manifest names it."""
    companions: tuple[Path, ...] = ()
    """Files that may add to the traces: execution traces, captures of graphs, logs of torch.compile."""
    copies: Mapping[Path, Path] = field(default_factory=dict)
    """Files that are another one compressed or unpacked, and are not read; and that one."""


def find_sources(paths: Sequence[Path], known: Collection[Path] = (), store: Path | None = None) -> Sources:
    """The given traces, and those in the given folders. Files that cannot be read are skipped and reported.

    `known` files are in a store and unchanged. They are not opened: otherwise every command would open every trace.
    Recordings that nsys did not convert are converted, beside them or, where that is read-only, in the store's folder.
    """
    files: list[Path] = []
    skipped: list[RankscopeError] = []
    ranks: dict[Path, int] = {}
    companions: list[Path] = []
    without_times: list[RankscopeError] = []
    for path in paths:
        if not path.exists():
            raise no_such_path(path)
        found = [path]
        if path.is_dir():
            with one_file(path):
                companions += _companions_near(path)
                elsewhere = traces_elsewhere(path)
                below, left_out = _traces_below(path)
                found = [*_traces_in(path), *below, *elsewhere.files]
            skipped += [*elsewhere.skipped, *left_out]
            ranks |= elsewhere.ranks
        for file in found:
            try:
                with one_file(file):
                    if is_stream(file):
                        own_place = (store or file.parent) / _CONVERTED
                        # Late: it imports the tools, which few runs need.
                        from rankscope.readers.nsys.stream import report_of

                        file = report_of(file, own_place, writable=can_write(file.parent))
                    if file not in known:
                        find_reader(file)
            except NoTimesError as error:
                companions.append(file)
                without_times += [error] * path.is_file()
            except NotATraceError as error:
                # Other JSON files beside the traces are ignored silently, empty traces are not.
                if path.is_file() or isinstance(error, EmptyTraceError) or rank_from_name(file) is not None:
                    skipped.append(error)
            except RankscopeError as error:
                skipped.append(error)
            else:
                files.append(file)
    if not files:
        raise _no_traces(paths, skipped or without_times, companions)
    copies = _copies(list(dict.fromkeys(files)), known)
    unique = tuple(path for path in dict.fromkeys(files) if path not in copies)
    return Sources(unique, tuple(skipped), ranks, tuple(dict.fromkeys(companions)), copies)


def _copies(files: Sequence[Path], known: Collection[Path]) -> dict[Path, Path]:
    """The files of which another one has the same recording, and that one: exports, and traces that are compressed too.

    Of these it is the one that is in the store already, or the older one, which is the original: a copy may be
    unfinished.
    """
    best = _without_twins(files)
    copies = {
        path: next((one for one in best if one.stem == path.stem), best[0])
        for path in files
        if path not in best
    }
    there = set(best)
    for packed in best:
        plain = packed.with_name(packed.name.removesuffix(".gz"))
        if plain != packed and plain in there and _begin_alike(plain, packed):
            order = sorted(
                (plain, packed), key=lambda path: (path not in known, _changed_ns(path), path == packed)
            )
            copies[order[1]] = order[0]
    return copies


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:  # it has just been deleted: reading it tells
        return 0


def _begin_alike(first: Path, second: Path) -> bool:
    try:
        heads = [read_head(path, _HEAD_BYTES)[0] for path in (first, second)]
    except ReadError:
        return False
    shared = min(map(len, heads))
    return shared > 0 and heads[0][:shared] == heads[1][:shared]


def _companions_near(folder: Path) -> list[Path]:
    """Files in the folder of the traces, and in certain folders in it and beside it, judged by their names."""
    places = [base / name for base in (folder, folder.parent) for name in _COMPANION_FOLDERS]
    places = [place for place in (*places, folder / _CAPTURES) if place != folder and place.is_dir()]
    found = [path for path in folder.iterdir() if _COMPANION_NAMES_BESIDE.search(path.name)]
    found += [path for place in places for path in place.iterdir() if _COMPANION_NAMES.search(path.name)]
    return sorted(path for path in found if path.is_file())


def folder_with_traces(path: Path) -> Path:
    """The folder that is meant: this one, or the only one in it that has traces, where it has neither any nor a store.

    Megatron writes pytorch_profile beside chakra, checkpoints and logs.
    """
    if not path.is_dir() or (path / STORE_NAME).exists() or (path / INDEX_FILE).exists():
        return path
    if _traces_in(path) or traces_elsewhere(path).files:
        return path
    below = _folders_below(path)
    return below[0] if len(below) == 1 else path


def _folders_below(path: Path) -> list[Path]:
    """The folders in this one whose traces can be read."""
    try:
        folders = sorted(
            entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith(".")
        )
    except OSError:
        return []
    return [folder for folder in folders if folder.name != _CAPTURES and _has_traces(folder)]


def _has_traces(folder: Path) -> bool:
    return next(readable_traces(folder), None) is not None


def readable_traces(folder: Path) -> Iterator[Path]:
    """The traces in a folder that a reader takes, judged by their first bytes."""
    with suppress(OSError):
        for path in _traces_in(folder):
            with suppress(RankscopeError), one_file(path):
                if not is_stream(path):
                    find_reader(path)
                yield path


def named_by_manifests(run: Path) -> Iterator[str]:
    """The traces that the capture's manifests in this folder name: relative to it, or absolute if elsewhere."""
    for manifest in rank_manifests(run):
        for window in manifest["windows"]:
            if window.get("state") in ("whole", "partial") and window.get("file"):
                yield str(window["file"])


def traces_elsewhere(run: Path) -> Sources:
    """The traces of a run that the capture wrote to another folder (--tensorboard-dir): its manifests name them.

    A window that is also in the run folder is not read twice.
    """
    ranks: dict[Path, int] = {}
    gone: list[Path] = []
    for manifest in rank_manifests(run):
        if not is_usable_rank(manifest["rank"]):
            continue
        copies: dict[str, list[Path]] = {}
        for window in manifest["windows"]:
            if window.get("state") in ("whole", "partial"):
                names = [window[key] for key in ("file", "relative") if window.get(key)]
                places = [Path(os.path.normpath(run / name)) for name in names if isinstance(name, str)]
                copies.setdefault(str(window.get("index")), []).extend(places)
        for places in copies.values():
            if not places or any((run / place.name).is_file() for place in places):
                continue
            there = next((place for place in places if place.is_file()), None)
            if there is not None:
                ranks[there] = manifest["rank"]
            elif places[0].parent != run:
                gone.append(places[0])
    return Sources(tuple(ranks), (_gone(run, gone),) if gone else (), ranks)


def _gone(run: Path, traces: list[Path]) -> RankscopeError:
    count = "its trace is" if len(traces) == 1 else f"{len(traces)} of its traces are"
    return StoreError(
        f"{run}: {count} not where the capture wrote {'it' if len(traces) == 1 else 'them'}",
        why=f"Its manifest names {traces[0]}, and there is no such file: moved, deleted, or on another machine.",
        hint="Give the folder that holds them now: rankscope stats DIR",
    )


def _traces_in(folder: Path) -> list[Path]:
    """The traces of a folder."""
    return _without_twins(
        sorted(path for path in folder.iterdir() if path.is_file() and looks_like_a_trace(path))
    )


def _without_twins(found: Collection[Path]) -> list[Path]:
    """Of a report and its exports one is used: the fullest export unless it is older."""
    times = {path: _changed_ns(path) for path in found}

    def has_better_twin(path: Path) -> bool:
        if is_stream(path):
            return any(path.with_suffix(ending) in times for ending in (".nsys-rep", ".sqlite"))
        if path.name.endswith(JSON_NAME) and path.name != PERFETTO_NAME:
            return path.with_name(path.name.removesuffix(JSON_NAME) + XPLANE_NAME) in times
        if path.name == PERFETTO_NAME:
            return any(
                other.name.endswith((XPLANE_NAME, JSON_NAME))
                for other in times
                if other != path and other.parent == path.parent
            )
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


def _traces_below(folder: Path) -> tuple[list[Path], list[RankscopeError]]:
    """The traces in folders that profilers make below this one; of several recordings those of the last."""
    ranks, recordings = folders_below(folder)
    ranks += _folders_of_one_job(folder)
    found = [trace for place in (*ranks, *recordings[-1:]) for trace in _traces_in(place)]
    if len(recordings) < 2:
        return found, []
    earlier = "an earlier recording" if len(recordings) == 2 else f"{len(recordings) - 1} earlier recordings"
    return found, [
        StoreError(
            f"{folder} has {earlier}, which is not read"
            if len(recordings) == 2
            else f"{folder} has {earlier}, which are not read",
            why=f"Each recording is a run of its own; the last is {recordings[-1].name}.",
            hint=f"Give the folder of another: rankscope stats {recordings[-2]}",
        )
    ]


def _folders_of_one_job(folder: Path) -> list[Path]:
    """The folders that the ranks of one job wrote below this one, as with -o RUN/%q{PMI_RANK}; [] for other folders."""
    below = sorted(path.parent for path in folder.glob(f"*/{RUN_MANIFEST}"))
    ranks = [manifest.get("rank") for path in below for manifest in rank_manifests(path)]
    jobs = {str((read_json(path / RUN_MANIFEST) or {}).get("job") or path) for path in below}
    distinct = len(set(ranks)) == len(ranks)
    return below if len(below) > 1 and len(jobs) == 1 and distinct and not _traces_in(folder) else []


def _several_runs(parent: Path, below: Sequence[Path]) -> NotATraceError:
    """The error for a folder of runs: each is listed, with its job and its ranks where it says so."""
    lines = []
    for folder in below[:_MOST_RUNS]:
        job = (read_json(folder / RUN_MANIFEST) or {}).get("job")
        ranks = sorted({rank for one in rank_manifests(folder) if isinstance(rank := one.get("rank"), int)})
        about = [f"job {visible(str(job))}"] if job else []
        about += [f"rank{'s' * (len(ranks) > 1)} {as_ranges(ranks)}"] if ranks else []
        lines.append(f"\n    {folder}" + (f": {', '.join(about)}" if about else ""))
    more = f"\n    and {len(below) - _MOST_RUNS} more" if len(below) > _MOST_RUNS else ""
    return NotATraceError(
        f"{parent} has {len(below)} runs below it, and no trace of its own",
        why=f"They are not of one job with a folder for each rank:{''.join(lines)}{more}",
        hint=f"Open one: rankscope stats {shlex.quote(str(below[0]))}",
    )


def _no_traces(
    paths: Sequence[Path], skipped: list[RankscopeError], companions: Sequence[Path]
) -> RankscopeError:
    # Files that need a tool, or that the system does not let us read, are traces all the same.
    unread = [error for error in skipped if not isinstance(error, NotATraceError)]
    unread.sort(key=lambda error: not isinstance(error, ToolError))
    if unread or len(skipped) == 1:
        first = (unread or skipped)[0]
        if len(skipped) > 1:
            more = "1 more file" if len(skipped) == 2 else f"{len(skipped) - 1} more files"
            first.message += f" ({more} could not be read either)"
        return first
    folders = [path for path in paths if path.is_dir()]
    below = [folder for path in folders for folder in _folders_below(path)]
    if companions and not below:
        known = [path for path in folders if path.name in _COMPANION_FOLDERS]
        beside = [folder for path in known for folder in _folders_below(path.parent)]
        return NoTimesError(
            f"no trace in {', '.join(map(str, paths))}",
            why=f"{companions[0].name} has no times: execution traces and logs of torch.compile only add to a trace.",
            hint=f"Open the profiler's traces: {beside[0]}"
            if beside
            else "Give the folder of the profiler's traces.",
        )
    if len(below) > 1:
        return _several_runs(folders[0], below)
    return NotATraceError(
        f"no trace in {', '.join(map(str, paths))}",
        why=FORMATS_READ,
        hint=f"Did you mean {below[0]}?"
        if below
        else "Give the folder that the profiler wrote to, or a trace file.",
    )


def store_folder(paths: Sequence[Path], output: Path | None, cache: Path | None) -> Path:
    """The folder of the store for these sources; it may not exist yet.

    RUN/.rankscope for a folder, FILE.rankscope for a file, a folder beside the first file for several files.
    With `cache`, a folder below it.
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
    """The user's cache folder, for runs in read-only folders."""
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "rankscope"
    try:
        return Path.home() / ".cache" / "rankscope"
    except RuntimeError:
        raise StoreError(
            "there is no folder for the store",
            why="The folder of the run cannot be written to, and this user has no home folder.",
            hint="Name one: --cache DIR",
        ) from None


def _digest(paths: Sequence[Path]) -> str:
    text = "\n".join(str(path.resolve()) for path in sorted(paths))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def can_write(folder: Path) -> bool:
    """True if files can be created in this folder, or in the nearest parent that exists."""
    while not folder.exists():
        folder = folder.parent
    if not folder.stat().st_mode & 0o222:  # root could write, but the folder is marked read-only
        return False
    return os.access(folder, os.W_OK | os.X_OK) and not os.statvfs(folder).f_flag & os.ST_RDONLY


def can_read(store: Path) -> bool:
    """False for a store of another user who has closed it, or a part of it."""
    found = [store, *store.rglob("*")] if store.exists() else []
    return all(os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)) for path in found)


def shown(path: Path) -> str:
    """A path as text; bytes that are not UTF-8 are replaced."""
    return os.fsencode(path).decode("utf-8", "replace")
