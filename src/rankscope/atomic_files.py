"""Files that appear as a whole and are on the disk when the call returns. Standard library only."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write or replace a small file: readers see the old content or the new one, never a part."""
    _write_temporary(path, content).replace(path)


def create_json(path: Path, content: Mapping[str, Any]) -> bool:
    """Write a small file unless it exists. Of several writers at the same time, exactly one gets True."""
    temporary = _write_temporary(path, content)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:
        # Some FUSE and SMB mounts have no hard links. O_EXCL is as good on a local disk.
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(temporary.read_text(encoding="utf-8"))
        except FileExistsError:
            return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _write_temporary(path: Path, content: Mapping[str, Any]) -> Path:
    """The host is part of the name: processes of several nodes may write into one shared folder."""
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def sync_folder(folder: Path) -> None:
    """Flush every file of a folder, and the folder itself, to disk."""
    for entry in [*folder.rglob("*"), folder]:
        descriptor = os.open(entry, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
