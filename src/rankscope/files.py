"""Files that appear as a whole and are on the disk when the call returns, and the modes of run folders and their files.

Run folders and their files are for their owner only, or also for the group where that was asked for: traces hold paths,
host names and source lines, and a login node has many users. What the umask would leave open to all is closed here. A
folder decides for everything below it: it is shared with its group when it has the set-group-ID bit and the group may
read it (`chmod g+rxs DIR`, which is how project folders of clusters are made). A new folder is shared where the folder
around it is and the umask allows it, or when its maker says so. Standard library only.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TextIO, TypeVar

_OWNER_FOLDER, _GROUP_FOLDER = 0o700, 0o2750
_OWNER_FILE, _GROUP_FILE = 0o600, 0o640
_TEMPORARY = ".tmp"
_COPY_BYTES = 2**20

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def make_private_folder(path: Path, *, for_group: bool = False) -> None:
    """Make a folder, unless it exists; an existing one keeps its mode. The folders around it are made as usual."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        # The set-group-ID bit comes from the folder around it; the umask removes what it forbids.
        path.mkdir(0o750 if _shared(path.parent) else _OWNER_FOLDER)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    if for_group:
        path.chmod(_GROUP_FOLDER)


def open_private(path: Path, mode: str, *, follow_links: bool = True, **options: Any) -> IO[Any]:
    """`open` for a new file, readable as its folder says, whatever the umask is."""
    return io.open(path, mode, opener=_open if follow_links else _open_no_link, **options)  # noqa: UP020  (a job may replace the builtin)


def close_to_others(path: Path) -> None:
    """Give a file that another program has made the mode of its folder's files."""
    path.chmod(_file_mode(path.parent))


def _open_no_link(path: str, flags: int) -> int:
    return _open(path, flags | os.O_NOFOLLOW)


def _open(path: str, flags: int) -> int:
    descriptor = os.open(path, flags, _OWNER_FILE)
    try:
        mode = _file_mode(Path(path).parent)
        if mode != _OWNER_FILE:
            os.fchmod(descriptor, mode)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _file_mode(folder: Path) -> int:
    return _GROUP_FILE if _shared(folder) else _OWNER_FILE


def _shared(folder: Path) -> bool:
    mode = folder.stat().st_mode
    return bool(mode & stat.S_ISGID and mode & stat.S_IRGRP)


def write_json(path: Path, content: Mapping[str, Any], indent: int | None = 1) -> None:
    """Write or replace a small file: readers see the old content or the new one, never a part.

    Without an indent, a large content is written ten times as fast.
    """
    write_text(path, _as_text(content, indent))


def write_text(path: Path, text: str) -> None:
    """The same for a text."""
    _write_temporary(path, text).replace(path)


def write_bytes(path: Path, pieces: Iterable[Any]) -> None:
    """The same for bytes, which are not on the disk yet when the call returns: of files that can be made again."""
    temporary = temporary_path(path)
    try:
        with open_private(temporary, "wb") as file:
            file.writelines(pieces)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def create_json(path: Path, content: Mapping[str, Any]) -> bool:
    """Write a small file unless it exists. Of several writers at the same time, exactly one gets True."""
    return _take(path, _write_temporary(path, _as_text(content)))


def copy_file(source: Path, path: Path) -> bool:
    """Copy a file unless ``path`` exists. Of several writers at the same time, exactly one gets True."""
    import shutil  # late: every captured rank imports this module, and only a job's end copies

    temporary = temporary_path(path)
    try:
        with source.open("rb") as content, open_private(temporary, "wb") as file:
            shutil.copyfileobj(content, file, _COPY_BYTES)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return _take(path, temporary)


def is_temporary(name: str) -> bool:
    """Whether a file of this name is one that its writer did not finish."""
    return name.startswith(".") and name.endswith(_TEMPORARY)


def _take(path: Path, temporary: Path) -> bool:
    """Give a finished file its name, unless another writer was first."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:
        # Some FUSE and SMB mounts have no hard links. O_EXCL is as good on a local disk.
        try:
            open_private(path, "x").close()
        except FileExistsError:
            return False
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def unique_name() -> str:
    """A name that no other process uses, on this host or another: several nodes may write into one shared folder."""
    return f"{socket.gethostname()}.{os.getpid()}.{os.urandom(4).hex()}"


def temporary_path(path: Path) -> Path:
    """A new name beside a file, for its content until it is whole."""
    return path.with_name(f".{path.name}.{unique_name()}{_TEMPORARY}")


def _as_text(content: Mapping[str, Any], indent: int | None = 1) -> str:
    return json.dumps(content, indent=indent) + "\n"


def _write_temporary(path: Path, text: str) -> Path:
    temporary = temporary_path(path)
    try:
        with open_private(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def file_identity(descriptor: int) -> tuple[int, int] | None:
    """Which file is open under a number; None where none is."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def line_break(stream: TextIO) -> str:
    """What a new line begins with: a line break where the stream is a file that ends within a line. Of a pipe or a
    terminal that cannot be known."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, replaced, not for us to read
        stream.flush()
        if size := os.fstat(stream.fileno()).st_size:
            reader = os.open(f"/proc/self/fd/{stream.fileno()}", os.O_RDONLY)
            try:
                return "" if os.pread(reader, 1, size - 1) == b"\n" else "\n"
            finally:
                os.close(reader)
    return ""


def sync_folder(folder: Path) -> None:
    """Flush every file of a folder, and the folder itself, to disk."""
    for entry in [*folder.iterdir(), folder]:
        descriptor = os.open(entry, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def side_by_side(function: Callable[[Item], Answer], items: Sequence[Item], at_a_time: int) -> list[Answer]:
    """The answers about several files, in their order; found in threads, since the work waits for the disk."""
    if len(items) < 2:
        return list(map(function, items))
    # Late: importing it takes 5 ms, and many runs have one file.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(at_a_time) as pool:
        return list(pool.map(function, items))
