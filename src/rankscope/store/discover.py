"""Which files are read: the traces of a run, those beside them that add to them, and what is left out and why.

A run is the traces in the folder that the user names and in those below it that LAYOUTS lists. Two need a look inside:
folders that the ranks of one job wrote with -o RUN/%q{PMI_RANK}, and those beside Megatron's memory snapshots.
JAX writes each recording of a job into a folder, and each is a run: the last is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from fnmatch import fnmatchcase
from pathlib import Path

from rankscope.capture.run_folder import RUN_MANIFEST, Manifest, rank_manifests, read_json
from rankscope.errors import EmptyTraceError, NotATraceError, RankscopeError, ReadError, StoreError, ToolError
from rankscope.ranges import as_ranges
from rankscope.readers import FORMATS_READ, STREAM_NAME, find_reader, looks_like_a_trace, one_file
from rankscope.readers.base import JSON_NAME, PERFETTO_NAME, XPLANE_NAME, is_usable_rank, rank_from_name
from rankscope.readers.byte_stream import PACKED, read_head, unpacked_name
from rankscope.readers.safe_pickle import PICKLE_NAMES
from rankscope.records import dataclass
from rankscope.store.index import INDEX_FILE, ROLLOUT_FOLDER, STAGE_FILE, STORE_NAME, can_write
from rankscope.text.run_words import shell_word
from rankscope.text.spelling import did_you_mean
from rankscope.text.visible_text import visible

CAPTURES = "capture_traces"
"""Traces of the captures of CUDA graphs, in the folder of the traces that replay them (vLLM, SGLang)."""
_MEGATRON = ("torch_profile", "pytorch_profile")
"""Beside its TensorBoard folder. NeMo writes memory snapshots to the latter, or beside them."""
_RECORDINGS = "plugins/profile"
_EXPORTS = {
    ".nsys-rep": (".sqlite",),
    ".qdrep": (".sqlite",),
    ".ncu-rep": (".raw.csv", ".details.csv", ".csv"),
}
"""Files that tools export from their reports; they hold the same recording."""


LAYOUTS = (
    ("*_ascend_*", "ASCEND_PROFILER_OUTPUT", None),  # Ascend: for each rank
    ("ASCEND_PROFILER_OUTPUT", "", None),
    ("iteration_[0-9]*", "", None),  # torchtitan: for each window
    (f"{ROLLOUT_FOLDER}*", "", None),  # verl: for each rollout engine
    ("[!.]*", "", STAGE_FILE),  # verl until January 2026: for each stage
)
"""Folders below the one that the user names: their names, the folder in them with the traces, a file that they have."""


class Folders:
    """The folders that one opening looks into. Each is listed once, and its manifests are read once: folders on network
    file systems have thousands of files."""

    def __init__(self) -> None:
        self._listed: dict[Path, tuple[list[Path], list[Path]]] = {}
        self._manifests: dict[Path, list[Manifest]] = {}

    def _list(self, folder: Path) -> tuple[list[Path], list[Path]]:
        if folder not in self._listed:
            with os.scandir(folder) as entries:
                named = sorted((entry.name, entry.is_dir(), entry.is_file()) for entry in entries)
            self._listed[folder] = (
                [folder / name for name, _, is_file in named if is_file],
                [folder / name for name, is_folder, _ in named if is_folder],
            )
        return self._listed[folder]

    def files(self, folder: Path) -> list[Path]:
        """By name. Raises OSError for a folder that cannot be listed."""
        return self._list(folder)[0]

    def manifests(self, folder: Path) -> list[Manifest]:
        """Those of the ranks that the capture recorded."""
        if folder not in self._manifests:
            self._manifests[folder] = [*rank_manifests(folder)]
        return self._manifests[folder]

    def traces(self, folder: Path) -> list[Path]:
        """Judged by their names."""
        return without_twins([path for path in self.files(folder) if looks_like_a_trace(path)])

    def readable(self, folder: Path) -> Iterator[Path]:
        """The traces in a folder that a reader takes, judged by their first bytes."""
        with suppress(OSError):
            for path in self.traces(folder):
                with suppress(RankscopeError), one_file(path):
                    if path.suffix != STREAM_NAME:
                        find_reader(path)
                    yield path

    def with_traces(self, folder: Path) -> list[Path]:
        """The folders in this one whose traces can be read."""
        with suppress(OSError):
            return [
                path
                for path in self._list(folder)[1]
                if not path.name.startswith(".") and path.name != CAPTURES and any(self.readable(path))
            ]
        return []

    def meant(self, path: Path) -> Path:
        """The folder that is meant: this one, or the only one in it that has traces, where it has neither any nor a
        store. Megatron writes pytorch_profile beside chakra, checkpoints and logs, torchtitan profiling/traces."""
        if not path.is_dir() or (path / STORE_NAME).exists() or (path / INDEX_FILE).exists():
            return path
        if self.traces(path) or self.elsewhere(path)[0]:
            return path
        # torchtitan has profiling/traces.
        near = (path, path / "traces", path / "profiling" / "traces")
        below = self.with_traces(path)
        return next(filter(self._laid_out, near), below[0] if len(below) == 1 else path)

    def below(self, folder: Path) -> tuple[list[Path], list[Path]]:
        """The traces in folders below this one, and the folders of recordings of which the last is used."""
        recordings: list[Path] = []
        with suppress(OSError):
            recordings = self._list(folder / _RECORDINGS)[1]
        used = [
            *self._laid_out(folder),
            *self._of_one_job(folder),
            *self._beside_snapshots(folder),
            *recordings[-1:],
        ]
        return [trace for each in used for trace in self.traces(each)], recordings

    def _laid_out(self, folder: Path) -> list[Path]:
        """The folders of LAYOUTS, iteration_5 before iteration_10."""
        found: list[Path] = []
        with suppress(OSError):
            for path in sorted(self._list(folder)[1], key=lambda path: (len(path.name), path.name)):
                found += [
                    path / inside
                    for name, inside, file in LAYOUTS
                    if fnmatchcase(path.name, name)
                    and (path / inside).is_dir()
                    and (file is None or any(file.fullmatch(each.name) for each in self.files(path)))
                ]
        return found

    def _of_one_job(self, folder: Path) -> list[Path]:
        """The folders that the ranks of one job, or its roles, wrote below this one; [] for other folders."""
        below = [path for path in self._list(folder)[1] if self._is_recorded(path)]
        ranks = [(each.get("role"), each.get("rank")) for path in below for each in self.manifests(path)]
        jobs = {str((read_json(path / RUN_MANIFEST) or {}).get("job") or path) for path in below}
        distinct = len(set(ranks)) == len(ranks)
        return below if len(below) > 1 and len(jobs) == 1 and distinct and not self.traces(folder) else []

    @staticmethod
    def _is_recorded(folder: Path) -> bool:
        with suppress(PermissionError):
            return (folder / RUN_MANIFEST).is_file()
        return False

    def _beside_snapshots(self, folder: Path) -> list[Path]:
        """Megatron's folder of traces, and the other one, where memory snapshots are in that or in this one alone."""
        near = [path for path in self._list(folder)[1] if path.name in _MEGATRON]
        if not near:
            return []
        beside = self.traces(folder)
        snapshots = all(path.name.endswith(PICKLE_NAMES) for path in beside)
        return near[::-1] if snapshots and (beside or len(near) > 1) else []

    def elsewhere(self, run: Path) -> tuple[dict[Path, int], list[RankscopeError]]:
        """The traces of a run that the capture wrote to another folder (--tensorboard-dir), with their ranks: its
        manifests name them. And an error if some are gone. A window that is also in the run folder is not read twice.
        """
        ranks: dict[Path, int] = {}
        gone: list[Path] = []
        for manifest in self.manifests(run):
            if not is_usable_rank(manifest["rank"]):
                continue
            windows: dict[str, list[Path]] = {}
            for window in manifest["windows"]:
                if window.get("state") in ("whole", "partial"):
                    names = [window[key] for key in ("file", "relative") if window.get(key)]
                    paths = [Path(os.path.normpath(run / name)) for name in names if isinstance(name, str)]
                    windows.setdefault(str(window.get("index")), []).extend(paths)
            here = {path.name for path in self.files(run)} if windows else set()
            for paths in windows.values():
                if not paths or any(path.name in here for path in paths):
                    continue
                there = next((path for path in paths if path.is_file()), None)
                if there is not None:
                    ranks[there] = manifest["rank"]
                elif paths[0].parent != run:
                    gone.append(paths[0])
        if not gone:
            return ranks, []
        count, them = ("its trace is", "it") if len(gone) == 1 else (f"{len(gone)} of its traces are", "them")
        missing = StoreError(
            f"{run}: {count} not where the capture wrote {them}",
            why=f"Its manifest names {gone[0]}, and there is no such file: moved, deleted, or on another machine.",
            hint="Give the folder that holds them now: rankscope stats DIR",
        )
        return ranks, [missing]


_MERGED = "merged-"
"""Begins the name of the file into which SGLang puts the traces of all ranks: merged-ID beside ID-TP-0, ID-TP-1, …"""


def without_twins(paths: Collection[Path]) -> list[Path]:
    """Of a report and its exports one is used: the fullest export unless it is older."""
    present = set(paths)

    def has_better_twin(path: Path) -> bool:
        if path.suffix == STREAM_NAME:
            return any(path.with_suffix(ending) in present for ending in (".nsys-rep", ".sqlite"))
        if path.name == PERFETTO_NAME:
            return any(
                other.name.endswith((XPLANE_NAME, JSON_NAME))
                for other in present
                if other != path and other.parent == path.parent
            )
        if path.name.startswith(_MERGED):
            parts = path.name.removeprefix(_MERGED).removesuffix(JSON_NAME) + "-TP-"
            return any(other.name.startswith(parts) and other.parent == path.parent for other in present)
        if path.name.endswith(JSON_NAME):
            return path.with_name(path.name.removesuffix(JSON_NAME) + XPLANE_NAME) in present
        for report_ending, export_endings in _EXPORTS.items():
            ending = next((e for e in (*export_endings, report_ending) if path.name.endswith(e)), None)
            if ending is None:
                continue
            stem = path.name.removesuffix(ending)
            report = path.with_name(stem + report_ending)
            exports = [twin for e in export_endings if (twin := path.with_name(stem + e)) in present]
            whole = [twin for twin in exports if not twin.name.endswith(".details.csv")]
            if report in present and not (whole and changed_ns(whole[0]) >= changed_ns(report)):
                return path != report
            return path != (whole or exports or [path])[0]
        return False

    return [path for path in paths if not has_better_twin(path)]


def changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:  # it has just been deleted: reading it tells
        return 0


_PACKED_RATIO = 12
"""Typical compression ratio of a trace."""
_MOST_RUNS = 20
_CONVERTED = "converted"
_HEAD_BYTES = 1 << 16
_LOG_FOLDER = "torch_trace"
"""Of logs of torch.compile, in or beside the folder of the traces."""
_SIDECAR_NAMES = re.compile(r"\.(?:json|log)(?:\.gz)?$")
_LOG_NAMES = re.compile(r"torch_trace.*\.log$")


@dataclass(frozen=True)
class Sources:
    """The trace files of a run, and an error for each file that was skipped."""

    files: tuple[Path, ...]
    skipped: tuple[RankscopeError, ...] = ()
    ranks: Mapping[Path, int] = field(default_factory=dict)
    """The rank of a file, where the capture's manifest names it."""
    sidecar_files: tuple[Path, ...] = ()
    """Files that may add to the traces: captures of graphs, logs of torch.compile."""
    copies: Mapping[Path, Path] = field(default_factory=dict)
    """Files that are another one compressed or unpacked, and are not read; and that one."""


def find_sources(
    paths: Sequence[Path],
    unchanged: Collection[Path] = (),
    store: Path | None = None,
    folders: Folders | None = None,
) -> Sources:
    """The given traces, and those in the given folders. Files that cannot be read are skipped and reported.

    `unchanged` files are in a store already. They are not opened: otherwise every command would open every trace.
    Recordings that nsys did not convert are converted, beside them or, where that is read-only, in the store's folder.
    """
    folders = folders or Folders()
    files: dict[Path, None] = {}
    skipped: list[RankscopeError] = []
    ranks: dict[Path, int] = {}
    sidecars: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            raise no_such_path(path)
        candidates = [path]
        if path.is_dir():
            with one_file(path):
                sidecars |= dict.fromkeys(_sidecars_near(path, folders))
                elsewhere, gone = folders.elsewhere(path)
                below, recordings = folders.below(path)
                candidates = [*folders.traces(path), *below, *elsewhere]
            skipped += [*gone, *_earlier(path, recordings)]
            ranks |= elsewhere
        for file in candidates:
            try:
                with one_file(file):
                    if file.suffix == STREAM_NAME:
                        # Late: it imports the tools, which few runs need.
                        from rankscope.readers.nsys.stream import report_of

                        converted = (store or file.parent) / _CONVERTED
                        file = report_of(file, converted, writable=can_write(file.parent))
                    if file not in unchanged:
                        find_reader(file)
                files[file] = None
            except NotATraceError as error:
                # Other JSON files beside the traces are ignored silently, empty traces are not.
                if path.is_file() or isinstance(error, EmptyTraceError) or rank_from_name(file) is not None:
                    skipped.append(error)
            except RankscopeError as error:
                skipped.append(error)
    if not files:
        raise _no_traces(paths, skipped, [*sidecars], folders)
    copies = _copies([*files], unchanged)
    unique = tuple(path for path in files if path not in copies)
    return Sources(unique, tuple(skipped), ranks, tuple(sidecars), copies)


def _copies(files: Sequence[Path], unchanged: Collection[Path]) -> dict[Path, Path]:
    """The files of which another one has the same recording, and that one: exports, and traces that are compressed too.

    Of these it is the one that is in the store already, or the older one, which is the original: a copy may be
    unfinished.
    """
    best = without_twins(files)
    present = set(best)
    copies = {
        path: next((other for other in best if other.stem == path.stem), best[0])
        for path in files
        if path not in present
    }
    for packed in best:
        plain = packed.with_name(unpacked_name(packed.name))
        if plain != packed and plain in present and _begin_alike(plain, packed):
            original, copy = sorted(
                (plain, packed), key=lambda path: (path not in unchanged, changed_ns(path), path == packed)
            )
            copies[copy] = original
    return copies


def _begin_alike(first: Path, second: Path) -> bool:
    try:
        heads = [read_head(path, _HEAD_BYTES)[0] for path in (first, second)]
    except ReadError:
        return False
    shared = min(map(len, heads))
    return shared > 0 and heads[0][:shared] == heads[1][:shared]


def _sidecars_near(folder: Path, folders: Folders) -> list[Path]:
    """Files in the folder of the traces, and in certain folders in it and beside it, judged by their names."""
    named = (folder / _LOG_FOLDER, folder.parent / _LOG_FOLDER, folder / CAPTURES)
    near = [other for other in named if other != folder and other.is_dir()]
    paths = [path for path in folders.files(folder) if _LOG_NAMES.search(path.name)]
    return sorted(
        paths + [path for other in near for path in folders.files(other) if _SIDECAR_NAMES.search(path.name)]
    )


def _earlier(folder: Path, recordings: Sequence[Path]) -> list[RankscopeError]:
    """The error for recordings that are not read."""
    if len(recordings) < 2:
        return []
    earlier = len(recordings) - 1
    count = "an earlier recording, which is" if earlier == 1 else f"{earlier} earlier recordings, which are"
    return [
        StoreError(
            f"{folder} has {count} not read",
            why=f"Each recording is a run of its own; the last is {recordings[-1].name}.",
            hint=f"Give the folder of another: rankscope stats {shell_word(recordings[-2])}",
        )
    ]


def sidecar_kind(path: Path) -> str:
    """A capture of a CUDA graph, or a log of torch.compile, by content; '' for other files."""
    # Late: few runs have such files.
    from rankscope.readers.torch_trace import is_torch_trace

    with one_file(path):
        head, _ = read_head(path, _HEAD_BYTES)
        if is_torch_trace(head):
            return "torch.compile log"
        if path.parent.name == CAPTURES and b'"traceEvents"' in head:
            return "graph capture" if find_reader(path).name == "kineto" else ""
    return ""


def text_bytes(path: Path) -> int:
    """The size of a trace when it is decompressed, about."""
    return path.stat().st_size * (_PACKED_RATIO if path.suffix in PACKED else 1)


def named_by_manifests(run: Path) -> Iterator[str]:
    """The traces that the capture's manifests in this folder name: relative to it, or absolute if elsewhere."""
    for manifest in rank_manifests(run):
        for window in manifest["windows"]:
            if window.get("state") in ("whole", "partial") and window.get("file"):
                yield str(window["file"])


def no_such_path(path: Path) -> StoreError:
    """The error for a run that is not there, with the path that was probably meant."""
    around = next(parent for parent in (path.parent, *path.parent.parents) if parent.is_dir())
    missing = path.relative_to(around).parts[0]
    near: list[str] = []
    with suppress(OSError):
        near = [entry.name for entry in around.iterdir() if not entry.name.startswith(".")]
    why = "No such file or folder." if around == path.parent else f"{around} has no {missing}."
    return StoreError(f"there is no {path}", why=why, hint=f"{did_you_mean(missing, near)}Check the path.")


def _several_runs(parent: Path, below: Sequence[Path]) -> NotATraceError:
    """The error for a folder of runs: each is listed, with its job and its ranks where it says so."""
    lines = []
    for folder in below[:_MOST_RUNS]:
        job = (read_json(folder / RUN_MANIFEST) or {}).get("job")
        ranks = sorted({manifest["rank"] for manifest in rank_manifests(folder)})
        about = [f"job {visible(str(job))}"] if job else []
        about += [f"rank{'s' * (len(ranks) > 1)} {as_ranges(ranks)}"] if ranks else []
        lines.append(f"\n    {folder}" + (f": {', '.join(about)}" if about else ""))
    more = f"\n    and {len(below) - _MOST_RUNS} more" if len(below) > _MOST_RUNS else ""
    return NotATraceError(
        f"{parent} has {len(below)} runs below it, and no trace of its own",
        why=f"They are not of one job with a folder for each rank:{''.join(lines)}{more}",
        hint=f"Open one: rankscope stats {shell_word(below[0])}",
    )


def _no_traces(
    paths: Sequence[Path], skipped: list[RankscopeError], sidecars: Sequence[Path], known: Folders
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
    message = f"no trace in {', '.join(map(str, paths))}"
    folders = [path for path in paths if path.is_dir()]
    below = [folder for path in folders for folder in known.with_traces(path)]
    if sidecars and not below:
        logs = [path for path in folders if path.name == _LOG_FOLDER]
        beside = [folder for path in logs for folder in known.with_traces(path.parent)]
        return NotATraceError(
            message,
            why=f"{sidecars[0].name} has no times: a log of torch.compile only adds to a trace.",
            hint=f"Open the profiler's traces: {beside[0]}"
            if beside
            else "Give the folder of the profiler's traces.",
        )
    if len(below) > 1:
        return _several_runs(folders[0], below)
    hint = "Give the folder that the profiler wrote to, or a trace file."
    return NotATraceError(message, why=FORMATS_READ, hint=f"Did you mean {below[0]}?" if below else hint)
