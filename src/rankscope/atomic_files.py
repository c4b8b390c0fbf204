"""Files that appear as a whole and are on the disk when the call returns. Standard library only.

Their mode is that of `private_files`: for the owner, or also for the group of the folder.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankscope.private_files import open_private

_TEMPORARY = ".tmp"
_COPY_BYTES = 2**20


def write_json(path: Path, content: Mapping[str, Any], indent: int | None = 1) -> None:
    """Write or replace a small file: readers see the old content or the new one, never a part.

    Without an indent, a large content is written ten times as fast.
    """
    write_text(path, _as_text(content, indent))


def write_text(path: Path, text: str) -> None:
    """The same for a text."""
    _write_temporary(path, text).replace(path)


def create_json(path: Path, content: Mapping[str, Any]) -> bool:
    """Write a small file unless it exists. Of several writers at the same time, exactly one gets True."""
    return _take(path, _write_temporary(path, _as_text(content)))


def copy_file(source: Path, path: Path) -> bool:
    """Copy a file unless ``path`` exists. Of several writers at the same time, exactly one gets True."""
    import shutil  # late: every captured rank imports this module, and only a job's end copies

    temporary = _temporary_name(path)
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


def _temporary_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{unique_name()}{_TEMPORARY}")


def _as_text(content: Mapping[str, Any], indent: int | None = 1) -> str:
    return json.dumps(content, indent=indent) + "\n"


def _write_temporary(path: Path, text: str) -> Path:
    temporary = _temporary_name(path)
    try:
        with open_private(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def sync_folder(folder: Path) -> None:
    """Flush every file of a folder, and the folder itself, to disk."""
    for entry in [*folder.iterdir(), folder]:
        descriptor = os.open(entry, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
