"""The store on disk: the folder it is in, the list of its segments, and what each segment says about its trace."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, fields, replace
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from stat import S_ISLNK
from typing import Any

from rankscope.capture.run_folder import RUN_MANIFEST, rank_manifests
from rankscope.errors import StoreError
from rankscope.model import FORMAT_VERSION, Table
from rankscope.readers.base import LOCAL, is_usable_rank, rank_from_name, usable_world
from rankscope.records import dataclass
from rankscope.store.checksums import DamagedFileError, FileSums, read_checked_json, write_checked_json
from rankscope.store.incoming import INCOMING

ROLLOUT_FOLDER = "agent_loop_rollout_replica_"
"""Where verl's rollout engines write; with relocate_results, into the folder of the other traces."""
_REPLICA = re.compile(rf"(?:{ROLLOUT_FOLDER}|rollout-replica)(\d+)(?:$|[-_])")
STAGE_FILE = re.compile(r"(?:.+_)?prof_rank-\d+\.json(?:\.gz)?")
"""Of verl until January 2026, in a folder for each stage."""
_STAGE_ROLES = {"compute_values": "critic", "compute_rm_score": "reward", "e2e": "actor"}
"""Of stages whose names do not begin with the role."""
_RANK_OF, _PROCESS = re.compile(r"rank\d+(?:-of-\d+)?"), re.compile(r"pid\d+")
_NO_ROLE = re.compile(r"train|step\d+")

File = tuple[int, int]
"""The rank and the segment of a file."""
World = tuple[str, int]
"""The processes that number each other from 0 on: their role, and the number of the replica where a role has several,
as in reinforcement learning. The ranks of a run are those of its worlds one after another."""


def world_of(path: Path) -> World | None:
    """The world that the name of a file or of its folder tells; None for most files."""
    if replica := _REPLICA.match(path.name) or _REPLICA.fullmatch(path.parent.name):
        return "rollout", int(replica[1])
    if STAGE_FILE.fullmatch(path.name):
        stage = path.parent.name
        return _STAGE_ROLES.get(stage, stage.partition("_")[0]), 0
    # verl: [role_][scope_][step2_]rank0-of-8_[tp0-pp0_]pid123_20260131…json.gz
    fields = path.name.split("_")
    at = next((number for number, text in enumerate(fields) if _RANK_OF.fullmatch(text)), len(fields))
    if any(_PROCESS.fullmatch(text) for text in fields[at + 1 :]):
        return ("" if at == 0 or _NO_ROLE.fullmatch(fields[0]) else fields[0]), 0
    return None


def worlds_of(files: Iterable[Path]) -> dict[Path, World]:
    """The world of each file, where they are of several; {} for the files of most runs."""
    files = list(files)
    worlds = {path: world_of(path) for path in files}
    folders = {path.parent for path, world in worlds.items() if world is None}
    captured = {folder: (role_in(folder), 0) for folder in folders if len(folders) > 1}
    told = {path: world or captured.get(path.parent) or ("", 0) for path, world in worlds.items()}
    return told if len(set(told.values())) > 1 else {}


def role_in(folder: Path) -> str:
    """The role of the ranks that a capture wrote into this folder; '' for other folders."""
    if not (folder / RUN_MANIFEST).is_file():
        return ""
    return next((str(manifest.get("role") or "") for manifest in rank_manifests(folder)), "")


INDEX_FILE = "store.json"
SEGMENT_FILE = "segment.json"
STORE_NAME = ".rankscope"
BY_ROLE = "role"
"""The source of a rank that is not the one in its file, since several roles have the same ranks."""
CREDIBLE_UNIX_NS = 10**18
"""The year 2001. An earlier time is not wall-clock time; it counts from the boot of the machine."""
_SIDECAR = {"path": str, "bytes": int, "mtime_ns": int, "unused": list}
_NUMBERS = ("clock_base_ns", "origin_ns", "end_ns", "events", "timed", "misplaced", "steps")
_ENTRY = {
    "rank": int,
    "segment": int,
    "rank_source": str,
    "build": str,
    "manifest": {
        "format": int,
        "reader": str,
        "source": {"path": str, "bytes": int, "mtime_ns": int},
        **dict.fromkeys(_NUMBERS, int),
        "steps_source": str,
        "reading": {"events_lost": int, "damage": str},
        **dict.fromkeys(("header", "files", "read_by", "further"), dict),
    },
}
"""The fields of a segment that are used without a further look, and their types."""
_OPTIONAL = {"rows": dict, "companions": list, "devices": list}
_COUNTS = ("read_by", "further", "rows")
_MOST_RANKS = 1 << 31
_RANK = "rank="


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

    @cached_property
    def file(self) -> File:
        return self.rank, self.segment

    @cached_property
    def folder(self) -> str:
        return f"rank={self.rank:05d}/segment={self.segment}/{self.build}"

    @cached_property
    def files(self) -> FileSums:
        """Its tables, within its folder."""
        return dict(self.manifest["files"])

    def files_of(self, table: Table) -> list[str]:
        """The files of one table, within the store; none if the format does not have it, or it has no rows."""
        name = f"{table.name}.parquet"
        rows = self.manifest.get("rows", {}).get(table.name, 1)  # stores of earlier versions do not tell
        return [f"{self.folder}/{name}"] if name in self.files and rows > 0 else []

    @cached_property
    def source(self) -> Path:
        return Path(self.manifest["source"]["path"])

    @cached_property
    def part(self) -> str:
        """Which rank's part of the file; empty for the whole file."""
        return str(self.manifest["source"].get("part", ""))

    @cached_property
    def format(self) -> str:
        """The name of the reader: kineto, ncu, …"""
        return str(self.manifest["reader"])

    @cached_property
    def has_times(self) -> bool:
        """True if the file has timestamps; an ncu report does not."""
        return bool(self.manifest["timed"])

    @cached_property
    def unix_origin_ns(self) -> int:
        """Time 0 of this segment in nanoseconds since 1970, by its own clock."""
        return int(self.manifest["clock_base_ns"]) + int(self.manifest["origin_ns"])

    @cached_property
    def unix_end_ns(self) -> int:
        return self.unix_origin_ns + int(self.manifest["end_ns"])

    @cached_property
    def has_wall_clock(self) -> bool:
        return self.unix_origin_ns >= CREDIBLE_UNIX_NS

    @cached_property
    def header(self) -> Mapping[str, Any]:
        """What the trace says about its job, its host and its devices."""
        header = self.manifest.get("header")
        return header if isinstance(header, dict) else {}

    @cached_property
    def host(self) -> str:
        """The name of its machine; empty if the file does not say."""
        names = (self.captured.get("host"), self.header.get("host_name"))
        return next((name for name in names if isinstance(name, str)), "")

    @cached_property
    def captured(self) -> Mapping[str, Any]:
        """What `rankscope profile` wrote into the trace; nothing in traces of other tools."""
        captured = self.header.get("rankscope")
        return captured if isinstance(captured, dict) else {}

    @cached_property
    def job(self) -> str:
        """The job that it says it is of; '' for traces of other tools."""
        return str(self.captured.get("job", ""))

    @cached_property
    def _distributed(self) -> Mapping[str, Any]:
        info = self.header.get("distributedInfo")
        return info if isinstance(info, dict) else {}

    @cached_property
    def world_size(self) -> int:
        """The number of ranks of its job; 0 if the file does not say, or knows those of its own role only."""
        return 0 if self.rank_source == BY_ROLE else usable_world(self._distributed.get("world_size")) or 0

    @cached_property
    def role(self) -> str:
        """What its process does in a job with several kinds (actor, rollout, …); else '' or 'default'."""
        world = world_of(self.source)
        return str(self.captured.get("role", "")) or (world[0] if world else "")

    @cached_property
    def first_rank(self) -> int:
        """The rank of the run that its file calls 0: the ranks of a role come after those of others."""
        if self.rank_source != BY_ROLE:
            return 0
        rank = self._distributed.get("rank", rank_from_name(self.source))
        return self.rank - int(rank) if is_usable_rank(rank) else self.rank

    @cached_property
    def devices(self) -> list[Mapping[str, Any]]:
        """Properties of each GPU that the process saw."""
        listed = self.header.get("deviceProperties")
        return [device for device in listed if isinstance(device, dict)] if isinstance(listed, list) else []

    @property
    def log_zone(self) -> str:
        """Of a log of GPU counters, the zone by which its times were read; '' for times since 1970, and other files."""
        about = self.header.get("gpuCounters")
        if not about or about["times"] != LOCAL:
            return ""
        minutes = -about["shift_ns"] // 60_000_000_000
        return f"UTC{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"

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


def sidecar_records(entries: Iterable[SegmentEntry]) -> list[dict[str, Any]]:
    """What became of each file that may add to the traces: its record in a segment that uses it, else in a trace of
    torch's profiler. A rank may have several files, such as a memory snapshot, to which it has nothing to add."""
    best: dict[str, tuple[tuple[bool, bool], dict[str, Any]]] = {}
    for entry in entries:
        for record in entry.manifest.get("companions", ()):
            fit = (bool(record["used"]), entry.format == "kineto")
            if record["path"] not in best or fit > best[record["path"]][0]:
                best[record["path"]] = fit, record
    return [record for _, record in best.values()]


@dataclass
class Index:
    """The list of complete segments. A folder that is not listed is ignored."""

    segments: list[SegmentEntry] = field(default_factory=list)
    recovered: bool = field(default=False, compare=False)
    """Made from the segments, because the list was missing or damaged."""
    other_format: int | None = field(default=None, compare=False)
    """The format of a store that another version of rankscope has written; its segments cannot be used."""

    def save(self, store: Path) -> None:
        names = [field.name for field in fields(SegmentEntry)]  # always in this order
        entries = [
            {name: getattr(entry, name) for name in names}
            for entry in sorted(self.segments, key=lambda entry: entry.file)
        ]
        write_checked_json(store / INDEX_FILE, {"format": FORMAT_VERSION, "segments": entries})

    @staticmethod
    def load(store: Path) -> Index:
        """The index of a store; an empty one if there is none, or it has another format.

        An index that is missing or damaged is made anew from the segments. A store is refused if what is read here and
        later is a link or a pipe; `refuse_links` looks at the rest before anything is written or removed.
        """
        _refuse(store, _odd_files(store, in_segments=False))
        try:
            index = _listed(read_checked_json(store / INDEX_FILE))
        except (FileNotFoundError, NotADirectoryError, DamagedFileError):
            refuse_links(store)
            segments = _found_segments(store)
            return Index(segments, recovered=bool(segments))
        except OSError as error:
            raise StoreError(
                f"cannot read {store}", why=f"{error.strerror}.", hint="Ask its owner, or use --cache DIR."
            ) from error
        _refuse(store, chain.from_iterable(_odd_in(f"{store}/{entry.folder}") for entry in index.segments))
        return index


@dataclass(frozen=True)
class Store:
    """What a store has, compared with the raw files once."""

    folder: Path
    listed: Index
    """As it is on disk."""
    segments: list[SegmentEntry]
    """The same; raw files that were moved together with the run have their new paths."""
    current: list[SegmentEntry]
    """Those whose raw files are unchanged, or gone."""
    outdated: list[SegmentEntry]
    """The others."""
    can_be_written: bool
    has_leftovers: bool
    """Whether something in it is not finished: what a process is writing, or has left."""

    @staticmethod
    def load(folder: Path, home: Path) -> Store:
        """`home` is the folder of the raw files: one that has been moved or renamed has them all the same."""
        listed = Index.load(folder)
        segments = [_found_in(home, entry) for entry in listed.segments]
        current: list[SegmentEntry] = []
        outdated: list[SegmentEntry] = []
        for entry in segments:
            (current if entry.is_current() else outdated).append(entry)
        paths = folder.iterdir() if folder.is_dir() else ()
        has_leftovers = any(path.name.startswith((".", INCOMING)) for path in paths)
        return Store(folder, listed, segments, current, outdated, can_write(folder), has_leftovers)


def refuse_links(store: Path) -> None:
    """Raise an error if a store is a link, or has one in it: what is written or removed there would be elsewhere.

    Nor may it have pipes or devices, which would block whoever opens them.
    """
    _refuse(store, _odd_files(store))


def _refuse(store: Path, odd_files: Iterator[Path]) -> None:
    odd = store if store.is_symlink() else next(odd_files, None)
    if odd is not None:
        kind = "a link" if odd.is_symlink() else "neither a file nor a folder"
        raise StoreError(
            f"{store} is not used",
            why=f"{odd} is {kind}. rankscope makes none in a store, and does not write or remove through one.",
            hint="Remove it, or the whole store: it is made again from the traces. Or use --cache DIR.",
        )


def _odd_files(folder: Path | str, *, in_segments: bool = True) -> Iterator[Path]:
    """What is neither a file nor a folder in a folder and those below it, or but for the segments of a store."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                continue
            if not entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)
            elif in_segments or not entry.name.startswith(_RANK):
                yield from _odd_files(entry.path)


def _odd_in(segment: str) -> Iterator[Path]:
    """The same in the folder of a segment, which may be a link itself, as may be the one around it."""
    with suppress(OSError):
        for folder in (
            segment.rpartition("/")[0],
            segment,
        ):  # texts: paths would take longer than all the rest
            if S_ISLNK(os.lstat(folder).st_mode):
                yield Path(folder)
    yield from _odd_files(segment)


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
    files, sidecars = manifest["files"], manifest.get("companions", ())
    counts = (count for key in _COUNTS for count in manifest.get(key, {}).values())
    return (
        0 <= fields["rank"] < _MOST_RANKS
        and 0 <= fields["segment"] < _MOST_RANKS
        and all(map(_is_name, (fields["build"], *files)))
        and all(isinstance(sums, list) and len(sums) == 2 for sums in files.values())
        and all(isinstance(count, int) for count in (*counts, *manifest.get("devices", ())))
        and all(_fits(sidecar, _SIDECAR) for sidecar in sidecars)
        and all(_is_path(file["path"]) for file in (manifest["source"], *sidecars))
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
    newest: dict[tuple[int, int], SegmentEntry] = {}
    paths = store.glob(f"{_RANK}*/segment=*/*/{SEGMENT_FILE}")
    for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns):
        with suppress(OSError, ValueError):
            rank, segment = (int(name.partition("=")[2]) for name in path.parts[-4:-2])
            manifest = read_checked_json(path)
            fields: dict[str, Any] = {
                "rank": rank,
                "segment": segment,
                "rank_source": manifest.get("rank_source"),
            }
            fields |= {"manifest": manifest, "build": path.parent.name}
            if manifest.get("format") == FORMAT_VERSION and _is_entry(fields):
                newest[rank, segment] = SegmentEntry(**fields)
    return list(newest.values())


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


def possible_stores(
    paths: Sequence[Path], output: Path | None, cache: Path | None, say: Callable[[str], None]
) -> list[Path]:
    """The given store, or the default folder of one, and the user's cache if that is read-only.

    A store that another user has closed counts as absent.
    """
    if len(paths) == 1 and (paths[0] / INDEX_FILE).is_file():
        return [*paths]
    store = store_folder(paths, output, cache)
    if can_write(store) or output or cache:
        return [store]
    cached = store_folder(paths, None, _default_cache())
    if _can_read(store):
        return [store, cached]
    say(f"{store} is closed to you; the store is in {cached} (--cache DIR changes that)")
    return [cached]


def _default_cache() -> Path:
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


def _can_read(store: Path) -> bool:
    """False for a store of another user who has closed it, or a part of it."""
    paths = [store, *store.rglob("*")] if store.exists() else []
    return all(os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)) for path in paths)
