"""What is being written into a store: folders of unfinished segments, and who may remove what is left of them.

Several processes, of several hosts, may write one store at the same time (docs/adr/0133-several-writers.md). Whoever
writes holds a lock on its folder; the system releases it when the process dies, however it dies. A lock is believed on
the host that took it, where it holds across containers too. Of another host only the age of its files is believed:
locks of some network file systems do not reach other hosts. A folder of this host may hold work of others: a task on a
Dask cluster writes to a folder that is named after the host it runs on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import stat
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO

from rankscope.files import is_temporary, make_private_folder, open_private, unique_name
from rankscope.store.derived import unused

INCOMING = "incoming-"
_LOCK_FILE = "lock"
_READERS = "readers"
PUBLISHING = "publishing"
"""A file in a folder while its segments are moved out, and those that they replace are to be removed."""
OWN_FILES = (f"{INCOMING}*", f"/{_LOCK_FILE}", f"/{_READERS}")
"""What processes of one machine tell each other by; rsync's patterns."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ABANDONED_AFTER_S = 24 * 3600
"""A process of another host that has written nothing for a day is taken to be dead."""


@contextlib.contextmanager
def incoming_folder(store: Path) -> Iterator[Path]:
    """A new folder in the store for unfinished segments; what is left in it is removed at the end.

    If publishing it was not ended, it stays: it tells whoever opens the store next to clean up.
    """
    folder = store / f"{INCOMING}{unique_name()}"
    with contextlib.ExitStack() as stack:
        with exclusive(store):  # so that nobody sees the folder without its lock
            make_private_folder(folder)
            stack.callback(_remove_unless_publishing, folder)
            stack.enter_context(in_use(folder))
        yield folder


def _remove_unless_publishing(folder: Path) -> None:
    if not (folder / PUBLISHING).exists():
        shutil.rmtree(folder, ignore_errors=True)
        return
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


def in_use(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Mark a folder as written to: by its owner, and by a worker process, which may outlive its owner."""
    return _locked(folder / _LOCK_FILE, fcntl.LOCK_SH)


def exclusive(store: Path) -> contextlib.AbstractContextManager[None]:
    """One process at a time changes the index of a store, as far as the file system's locks reach."""
    return _locked(store / _LOCK_FILE, fcntl.LOCK_EX)


@contextlib.contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    with _open_lock(path) as file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, how)
        yield


class ReadLock:
    """Held by a process that reads the tables of a store, until `release` or the end of this object.

    Tables that are replaced meanwhile stay until nobody holds one. There is none before a store has been written, nor
    on file systems without locks.
    """

    def __init__(self, store: Path) -> None:
        self._path = store / _READERS
        self.take()

    def take(self) -> None:
        """Waits while another process removes tables."""
        self.release: Callable[[], object] = lambda: None
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            self.release = weakref.finalize(self, os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH)


@contextlib.contextmanager
def while_unread(store: Path) -> Iterator[bool]:
    """Whether no process reads the tables of a store; none begins to meanwhile."""
    with _open_lock(store / _READERS) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:  # a file system without locks
            pass
        yield True


def _open_lock(path: Path) -> IO[str]:
    return open_private(path, "a+", follow_links=False)


def has_abandoned(store: Path) -> bool:
    """Whether a process that is dead has left something in this store."""
    return any(_is_abandoned(path) for path in _unfinished(store))


def clean(store: Path, listed: Collection[str]) -> bool:
    """Remove what dead processes have left, and segments that are not listed. Call it within `exclusive`.

    False if the segments stay for now, because a process may be reading them.
    """
    for path in unused(store, {_file_of(folder) for folder in listed}):
        if not is_temporary(path.name) or _is_old(path):
            _remove(store, path)
    # Within the lock no other process of this host has a finished segment that it has not listed yet.
    unlisted = [
        folder
        for folder in store.glob("rank=*/segment=*/*")
        if str(folder.relative_to(store)) not in listed and (_is_from_here(folder) or _is_old(folder))
    ]
    with while_unread(store) as unread:
        if unlisted and not unread:
            return False
        for path in (*unlisted, *filter(_is_abandoned, _unfinished(store))):
            _remove(store, path)
    return True


def _file_of(folder: str) -> tuple[int, int]:
    """Rank and segment."""
    rank, segment, _ = folder.split("/")
    return int(rank.partition("=")[2]), int(segment.partition("=")[2])


def _unfinished(store: Path) -> list[Path]:
    return [
        path
        for path in store.iterdir()
        if (path.name.startswith(INCOMING) or is_temporary(path.name)) and not path.is_symlink()
    ]


def _is_abandoned(path: Path) -> bool:
    if is_temporary(path.name) or not _is_from_here(path):
        return _is_old(path)
    try:
        with _open_lock(path / _LOCK_FILE) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return _is_old(path)
    return all(_is_from_here(inside) or _is_old(inside) for inside in path.iterdir() if inside.is_dir())


def _is_from_here(path: Path) -> bool:
    """Whether a name of unique_name is of a process of this host."""
    return path.name.removeprefix(INCOMING).rsplit(".", 2)[0] == socket.gethostname()


def _is_old(path: Path) -> bool:
    with contextlib.suppress(OSError):
        changed = [path.lstat().st_ctime, *(inside.lstat().st_ctime for inside in path.rglob("*"))]
        return time.time() - max(changed) > _ABANDONED_AFTER_S
    return False


def _remove(store: Path, path: Path) -> None:
    """Remove what is in a store, and nothing else: no folder on the way to it may be a link.

    Another process may remove it at the same time.
    """
    *folders, name = path.relative_to(store).parts
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        inside = os.open(store, _FOLDER)
        stack.callback(os.close, inside)
        for folder in folders:
            inside = os.open(folder, _FOLDER, dir_fd=inside)
            stack.callback(os.close, inside)
        _remove_from(inside, name)


def _remove_from(folder: int, name: str) -> None:
    """Remove a file, a link, or a folder with all that is in it, from an open folder."""
    if not stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
        os.unlink(name, dir_fd=folder)
        return
    inside = os.open(name, _FOLDER, dir_fd=folder)
    try:
        with os.scandir(inside) as entries:
            for entry in list(entries):
                _remove_from(inside, entry.name)
    finally:
        os.close(inside)
    os.rmdir(name, dir_fd=folder)
