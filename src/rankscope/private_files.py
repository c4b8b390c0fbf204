"""Run folders and their files: for their owner only, or also for the group where that was asked for.

Traces hold paths, host names and source lines, and a login node has many users: what the umask would leave open to all
is closed here. A folder decides for everything below it: it is shared with its group when it has the set-group-ID bit
and the group may read it (`chmod g+rxs DIR`, which is how project folders of clusters are made). A new folder is shared
where the folder around it is and the umask allows it, or when its maker says so. Standard library only.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO, Any

_OWNER_FOLDER, _GROUP_FOLDER = 0o700, 0o2750
_OWNER_FILE, _GROUP_FILE = 0o600, 0o640


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
    return open(path, mode, opener=_open if follow_links else _open_no_link, **options)


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
