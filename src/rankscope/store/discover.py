"""Which files are read: the traces of a run, those beside them that add to them, and what is left out and why."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path

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
from rankscope.ranges import as_ranges
from rankscope.readers import (
    FORMATS_READ,
    STREAM_NAME,
    find_reader,
    folders_below,
    looks_like_a_trace,
    one_file,
)
from rankscope.readers.base import is_usable_rank, rank_from_name
from rankscope.readers.byte_stream import read_head
from rankscope.readers.safe_pickle import PICKLE_NAMES
from rankscope.readers.xla.recordings import JSON_NAME, PERFETTO_NAME, XPLANE_NAME
from rankscope.records import dataclass
from rankscope.store.index import INDEX_FILE, STORE_NAME, can_write
from rankscope.store.roles import folders_of_worlds
from rankscope.text.run_words import shell_word
from rankscope.text.spelling import did_you_mean
from rankscope.text.visible_text import visible

_EXPORTS = {
    ".nsys-rep": (".sqlite",),
    ".qdrep": (".sqlite",),
    ".ncu-rep": (".raw.csv", ".details.csv", ".csv"),
}
"""Files that tools export from their reports; they hold the same recording."""
_GZIP_RATIO = 12
"""Typical compression ratio of a trace."""
_MOST_RUNS = 20
_CONVERTED = "converted"
_HEAD_BYTES = 1 << 16
_SIDECAR_FOLDERS = ("chakra", "et", "execution_trace", "execution_traces", "torch_trace")
"""Folders in or beside that of the traces in which frameworks write what adds to them (Megatron: chakra)."""
_CAPTURES = "capture_traces"
"""Traces of the captures of CUDA graphs, in the folder of the traces that replay them (vLLM, SGLang)."""
_MEGATRON = ("torch_profile", "pytorch_profile")
"""Beside its TensorBoard folder. NeMo writes memory snapshots to the latter, or beside them."""
_ITERATION = re.compile(r"iteration_(\d+)")
_SIDECAR_NAMES = re.compile(r"\.(?:json|et|log)(?:\.gz)?$")
_SIDECAR_NAMES_BESIDE = re.compile(r"\.et(?:\.gz)?$|torch_trace.*\.log$")


@dataclass(frozen=True)
class Sources:
    """The trace files of a run, and an error for each file that was skipped."""

    files: tuple[Path, ...]
    skipped: tuple[RankscopeError, ...] = ()
    ranks: Mapping[Path, int] = field(default_factory=dict)
    """The rank of a file, where the capture's manifest names it."""
    sidecar_files: tuple[Path, ...] = ()
    """Files that may add to the traces: execution traces, captures of graphs, logs of torch.compile."""
    copies: Mapping[Path, Path] = field(default_factory=dict)
    """Files that are another one compressed or unpacked, and are not read; and that one."""


def find_sources(
    paths: Sequence[Path], unchanged: Collection[Path] = (), store: Path | None = None
) -> Sources:
    """The given traces, and those in the given folders. Files that cannot be read are skipped and reported.

    `unchanged` files are in a store already. They are not opened: otherwise every command would open every trace.
    Recordings that nsys did not convert are converted, beside them or, where that is read-only, in the store's folder.
    """
    files: dict[Path, None] = {}
    skipped: list[RankscopeError] = []
    ranks: dict[Path, int] = {}
    sidecars: dict[Path, None] = {}
    without_times: list[RankscopeError] = []
    for path in paths:
        if not path.exists():
            raise no_such_path(path)
        candidates = [path]
        if path.is_dir():
            with one_file(path):
                sidecars |= dict.fromkeys(_sidecars_near(path))
                elsewhere = traces_elsewhere(path)
                below, left_out = _traces_below(path)
                candidates = [*_traces_in(path), *below, *elsewhere.files]
            skipped += [*elsewhere.skipped, *left_out]
            ranks |= elsewhere.ranks
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
            except NoTimesError as error:
                sidecars[file] = None
                without_times += [error] * path.is_file()
            except NotATraceError as error:
                # Other JSON files beside the traces are ignored silently, empty traces are not.
                if path.is_file() or isinstance(error, EmptyTraceError) or rank_from_name(file) is not None:
                    skipped.append(error)
            except RankscopeError as error:
                skipped.append(error)
    if not files:
        raise _no_traces(paths, skipped or without_times, [*sidecars])
    copies = _copies([*files], unchanged)
    unique = tuple(path for path in files if path not in copies)
    return Sources(unique, tuple(skipped), ranks, tuple(sidecars), copies)


def _traces_in(folder: Path) -> list[Path]:
    """The traces of a folder."""
    return _without_twins(
        sorted(path for path in folder.iterdir() if path.is_file() and looks_like_a_trace(path))
    )


def _without_twins(paths: Collection[Path]) -> list[Path]:
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


def _copies(files: Sequence[Path], unchanged: Collection[Path]) -> dict[Path, Path]:
    """The files of which another one has the same recording, and that one: exports, and traces that are compressed too.

    Of these it is the one that is in the store already, or the older one, which is the original: a copy may be
    unfinished.
    """
    best = _without_twins(files)
    present = set(best)
    copies = {
        path: next((other for other in best if other.stem == path.stem), best[0])
        for path in files
        if path not in present
    }
    for packed in best:
        plain = packed.with_name(packed.name.removesuffix(".gz").removesuffix(".xz"))
        if plain != packed and plain in present and _begin_alike(plain, packed):
            original, copy = sorted(
                (plain, packed), key=lambda path: (path not in unchanged, changed_ns(path), path == packed)
            )
            copies[copy] = original
    return copies


def changed_ns(path: Path) -> int:
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


def _sidecars_near(folder: Path) -> list[Path]:
    """Files in the folder of the traces, and in certain folders in it and beside it, judged by their names."""
    near = [base / name for base in (folder, folder.parent) for name in _SIDECAR_FOLDERS]
    near = [other for other in (*near, folder / _CAPTURES) if other != folder and other.is_dir()]
    paths = [path for path in folder.iterdir() if _SIDECAR_NAMES_BESIDE.search(path.name)]
    paths += [path for other in near for path in other.iterdir() if _SIDECAR_NAMES.search(path.name)]
    return sorted(path for path in paths if path.is_file())


def sidecar_kind(path: Path) -> str:
    """An execution trace, a capture of a CUDA graph, or a log of torch.compile, by content; '' for other files."""
    # Late: few runs have such files.
    from rankscope.readers.execution_trace import is_execution_trace
    from rankscope.readers.torch_trace import is_torch_trace

    with one_file(path):
        head, _ = read_head(path, _HEAD_BYTES)
        if is_execution_trace(head):
            return "execution trace"
        if is_torch_trace(head):
            return "torch.compile log"
        if path.parent.name == _CAPTURES and b'"traceEvents"' in head:
            return "graph capture" if find_reader(path).name == "kineto" else ""
    return ""


def _traces_below(folder: Path) -> tuple[list[Path], list[RankscopeError]]:
    """The traces in folders that profilers make below this one; of several recordings those of the last."""
    ranks, recordings = folders_below(folder)
    ranks += [
        *_folders_of_one_job(folder),
        *_iterations(folder),
        *folders_of_worlds(folder),
        *_beside_snapshots(folder),
    ]
    traces = [trace for below in (*ranks, *recordings[-1:]) for trace in _traces_in(below)]
    if len(recordings) < 2:
        return traces, []
    earlier = len(recordings) - 1
    count = "an earlier recording, which is" if earlier == 1 else f"{earlier} earlier recordings, which are"
    return traces, [
        StoreError(
            f"{folder} has {count} not read",
            why=f"Each recording is a run of its own; the last is {recordings[-1].name}.",
            hint=f"Give the folder of another: rankscope stats {shell_word(recordings[-2])}",
        )
    ]


def _iterations(folder: Path) -> list[Path]:
    """The folders of windows that torchtitan records one after another, each with all ranks: iteration_5, …"""
    with suppress(OSError):
        named = [(match, path) for path in folder.iterdir() if (match := _ITERATION.fullmatch(path.name))]
        return [path for _, path in sorted((int(match[1]), path) for match, path in named if path.is_dir())]
    return []


def _beside_snapshots(folder: Path) -> list[Path]:
    """Megatron's folder of traces, and the other one, where memory snapshots are in that or in this one alone."""
    near = [path for name in _MEGATRON if (path := folder / name).is_dir()]
    if not near:
        return []
    beside = _traces_in(folder)
    snapshots = all(path.name.endswith(PICKLE_NAMES) for path in beside)
    return near if snapshots and (beside or len(near) > 1) else []


def _folders_of_one_job(folder: Path) -> list[Path]:
    """The folders that the ranks of one job, or its roles, wrote below this one, as with -o RUN/%q{PMI_RANK}; [] for
    other folders."""
    below = sorted(path.parent for path in folder.glob(f"*/{RUN_MANIFEST}"))
    ranks = [
        (manifest.get("role"), manifest.get("rank")) for path in below for manifest in rank_manifests(path)
    ]
    jobs = {str((read_json(path / RUN_MANIFEST) or {}).get("job") or path) for path in below}
    distinct = len(set(ranks)) == len(ranks)
    return below if len(below) > 1 and len(jobs) == 1 and distinct and not _traces_in(folder) else []


def folder_with_traces(path: Path) -> Path:
    """The folder that is meant: this one, or the only one in it that has traces, where it has neither any nor a store.

    Megatron writes pytorch_profile beside chakra, checkpoints and logs, torchtitan profiling/traces.
    """
    if not path.is_dir() or (path / STORE_NAME).exists() or (path / INDEX_FILE).exists():
        return path
    if _traces_in(path) or traces_elsewhere(path).files:
        return path
    for folder in (path, path / "traces", path / "profiling" / "traces"):
        if _iterations(folder) or folders_of_worlds(folder):
            return folder
    below = folders_with_traces(path)
    return below[0] if len(below) == 1 else path


def folders_with_traces(path: Path) -> list[Path]:
    """The folders in this one whose traces can be read."""
    try:
        folders = sorted(
            entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith(".")
        )
    except OSError:
        return []
    return [folder for folder in folders if folder.name != _CAPTURES and any(readable_traces(folder))]


def text_bytes(path: Path) -> int:
    """The size of a trace when it is decompressed, about."""
    return path.stat().st_size * (_GZIP_RATIO if path.suffix == ".gz" else 1)


def readable_traces(folder: Path) -> Iterator[Path]:
    """The traces in a folder that a reader takes, judged by their first bytes."""
    with suppress(OSError):
        for path in _traces_in(folder):
            with suppress(RankscopeError), one_file(path):
                if path.suffix != STREAM_NAME:
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
        windows: dict[str, list[Path]] = {}
        for window in manifest["windows"]:
            if window.get("state") in ("whole", "partial"):
                names = [window[key] for key in ("file", "relative") if window.get(key)]
                paths = [Path(os.path.normpath(run / name)) for name in names if isinstance(name, str)]
                windows.setdefault(str(window.get("index")), []).extend(paths)
        for paths in windows.values():
            if not paths or any((run / path.name).is_file() for path in paths):
                continue
            there = next((path for path in paths if path.is_file()), None)
            if there is not None:
                ranks[there] = manifest["rank"]
            elif paths[0].parent != run:
                gone.append(paths[0])
    if not gone:
        return Sources(tuple(ranks), (), ranks)
    count, them = ("its trace is", "it") if len(gone) == 1 else (f"{len(gone)} of its traces are", "them")
    missing = StoreError(
        f"{run}: {count} not where the capture wrote {them}",
        why=f"Its manifest names {gone[0]}, and there is no such file: moved, deleted, or on another machine.",
        hint="Give the folder that holds them now: rankscope stats DIR",
    )
    return Sources(tuple(ranks), (missing,), ranks)


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
    paths: Sequence[Path], skipped: list[RankscopeError], sidecars: Sequence[Path]
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
    below = [folder for path in folders for folder in folders_with_traces(path)]
    if sidecars and not below:
        sidecar_folders = [path for path in folders if path.name in _SIDECAR_FOLDERS]
        beside = [folder for path in sidecar_folders for folder in folders_with_traces(path.parent)]
        return NoTimesError(
            message,
            why=f"{sidecars[0].name} has no times: execution traces and logs of torch.compile only add to a trace.",
            hint=f"Open the profiler's traces: {beside[0]}"
            if beside
            else "Give the folder of the profiler's traces.",
        )
    if len(below) > 1:
        return _several_runs(folders[0], below)
    hint = "Give the folder that the profiler wrote to, or a trace file."
    return NotATraceError(message, why=FORMATS_READ, hint=f"Did you mean {below[0]}?" if below else hint)
