"""Copy a run from another machine: its store, which is what the views need, or its raw files."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from rankscope.capture.run_folder import RUN_MANIFEST, read_json
from rankscope.errors import RemoteError, StoreError
from rankscope.files import make_private_folder, write_json
from rankscope.readers import TRACE_NAMES
from rankscope.remote.ssh import NOT_FOUND, SSH_FAILED, RemotePath, Ssh, check_remote, path_argument, rsync
from rankscope.store.discover import named_by_manifests
from rankscope.store.incoming import OWN_FILES, while_unread
from rankscope.store.index import INDEX_FILE, STORE_NAME, Index, SegmentEntry, refuse_links

_MANIFESTS = ("--include=/rankscope.json", "--include=/rank-*.rankscope.json", "--exclude=*")
_ENDING = re.compile(r"(\.pt\.trace)?(\.json(\.gz|\.xz|\.zst)?|\.nsys-rep|\.ncu-rep|\.sqlite)$")
_RSYNC_PROTOCOL_ERROR = 12
_RAW_NAMES = [f"*{ending}" for ending in (*TRACE_NAMES, ".csv")]
_RAW_NAMES += ["*_dump_*", "nccl_trace_rank_*", "profiler_*"]
"""What a profiler writes: traces, reports, snapshots, dumps, and the tables of rankscope.profile."""
_ORIGIN_FILE = ".fetched.json"
"""Beside raw files: where they come from."""


class Fetched(NamedTuple):
    """A copied run."""

    files: int
    """Trace files in the store."""
    copied_bytes: int
    raw_bytes: int
    """The size of those trace files, which stay where they are."""


def default_target(remote_path: RemotePath) -> Path:
    """The run's own name, without the ending of a trace file."""
    name = _ENDING.sub("", PurePosixPath(remote_path.path).name)
    return Path(name if name not in ("", "..") else remote_path.host.rpartition("@")[2])


def is_earlier_copy(target: Path, remote_path: RemotePath) -> bool:
    """Whether this folder was fetched from that machine before."""
    return (read_json(target / _ORIGIN_FILE) or {}).get("from") == str(remote_path) or _has_store_of(
        target, remote_path
    )


def _has_store_of(target: Path, remote_path: RemotePath) -> bool:
    with contextlib.suppress(StoreError):
        entries = Index.load(target / STORE_NAME).segments
        return bool(entries) and all(
            str(entry.source).startswith(f"{remote_path.host}:") for entry in entries
        )
    return False


def fetch(
    ssh: Ssh, program: Sequence[str], target: Path, *, quiet: bool, log: Callable[[str], None]
) -> Fetched:
    """Have the run read over there, if it is not yet, and copy its store to ``target``; again: only what changed."""
    remote_path, store = ssh.remote_path, target / STORE_NAME
    source = _remote_store(ssh, program, quiet, log)
    _make_folder(store, target)
    refuse_links(store)
    with while_unread(store) as unread:
        excluded = [f"--exclude={name}" for name in OWN_FILES]
        _copy(ssh, [f"{source}/"], store, [*excluded, *(["--delete"] if unread else [])])
    # The manifests of the capture are small; a single trace has none, which is not an error.
    rsync(ssh, [f"{remote_path.path}/"], target, _MANIFESTS, silent=True)
    entries = _note_origin(store, remote_path)
    if not entries:
        raise RemoteError(
            f"what came from {remote_path} cannot be used here",
            why="Its store is empty, or of another version of rankscope.",
            hint="Use the same version on both machines.",
        )
    copied = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    return Fetched(len(entries), copied, sum(entry.manifest["source"]["bytes"] for entry in entries))


def fetch_raw(ssh: Ssh, program: Sequence[str], target: Path) -> Fetched:
    """Copy the raw traces and reports to ``target``; again: only what changed. Over there only rsync is needed."""
    remote_path = ssh.remote_path
    there = ssh.run(["test", "-d", path_argument(remote_path.path)]).returncode
    if there == SSH_FAILED:
        check_remote(there, remote_path, program)
    _make_folder(target, target)
    options = ["--partial-dir=.rsync-partial", "--copy-links"]  # the files that links over there lead to
    if there == 0:
        names = [f"--include=/{name}" for name in _RAW_NAMES]
        _copy(ssh, [f"{remote_path.path}/"], target, [*options, *names, "--exclude=*"])
    else:
        _copy(ssh, [remote_path.path], target, options)
    elsewhere = sorted({name for name in named_by_manifests(target) if Path(name).is_absolute()})
    if elsewhere:
        _copy(ssh, elsewhere, target, options)
    if _has_store_of(target, remote_path):
        shutil.rmtree(target / STORE_NAME, ignore_errors=True)  # of the raw files as they were
    copied = [path for path in target.iterdir() if path.is_file() and path.name != _ORIGIN_FILE]
    traces = [path for path in copied if not path.name.endswith(RUN_MANIFEST)]
    if not traces:
        with contextlib.suppress(OSError):
            target.rmdir()
        raise RemoteError(
            f"there is no trace in {remote_path}",
            why=f"None of its files is named as one: {', '.join(_RAW_NAMES)}.",
            hint="Name the folder that the profiler wrote to, or one file.",
        )
    write_json(target / _ORIGIN_FILE, {"from": str(remote_path)})
    return Fetched(len(traces), sum(path.stat().st_size for path in copied), 0)


def _make_folder(folder: Path, target: Path) -> None:
    """Make a folder in ``target``, which is what -o names."""
    try:
        make_private_folder(folder)
    except OSError as error:
        raise StoreError(
            f"cannot write {target}", why=f"{error.strerror}.", hint="Name another folder: -o DIR"
        ) from error


def _remote_store(ssh: Ssh, program: Sequence[str], quiet: bool, log: Callable[[str], None]) -> str:
    """Where the store is over there; the run is read first, if it has not been."""
    remote_path = ssh.remote_path
    options = ["--print-store", *(["-q"] if quiet else [])]
    done = ssh.run([*program, "ingest", path_argument(remote_path.path), *options])
    lines = done.stdout.strip().splitlines()
    if lines and lines[-1].startswith("/"):  # printed also when some files are damaged
        return lines[-1]
    if done.returncode == NOT_FOUND:
        # The run may have been read before; that store can be used, though it may not be the newest.
        store = f"{remote_path.path.rstrip('/')}/{STORE_NAME}"
        if ssh.run(["test", "-f", f"{store}/{INDEX_FILE}"]).returncode == 0:
            log(f"rankscope is not on {remote_path.host}: copying the store as it is there")
            return store
    check_remote(done.returncode or 1, remote_path, program)
    raise AssertionError("check_remote raises for every code but 0")


def _copy(ssh: Ssh, sources: Sequence[str], target: Path, options: Sequence[str]) -> None:
    code = rsync(ssh, sources, target, options)
    if code in (NOT_FOUND, _RSYNC_PROTOCOL_ERROR):
        raise RemoteError(
            f"rsync could not copy from {ssh.remote_path.host}",
            why="It is not installed over there, or the connection was lost; its own message is above.",
            hint=f"Try: ssh {ssh.remote_path.host} rsync --version. Run this again: it continues where it stopped.",
        )
    if code:
        raise RemoteError(
            f"rsync from {ssh.remote_path.host} ended with {code}",
            why="Its own message is above.",
            hint="Run this again: it continues where it stopped.",
        )


def _note_origin(store: Path, remote_path: RemotePath) -> list[SegmentEntry]:
    """Write the machine into the index: a file here with the path of a raw file over there is another file."""
    index = Index.load(store)
    entries = [entry.with_source(f"{remote_path.host}:{entry.source}") for entry in index.segments]
    if entries:
        Index(entries).save(store)
    return entries
