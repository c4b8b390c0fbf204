"""Checksums of the store's files: they find damage by disks, copies and other programs, not by an attacker.

CRC-32 is computed at 7 GB/s, faster than anything else is done with a table, so every table is checked whenever a run
is opened (docs/adr/0133-several-writers.md).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isal.isal_zlib import crc32

from rankscope.files import write_bytes, write_json

_PIECE = 1 << 20
_KEY = "checksum"

FileSums = dict[str, list[int]]
"""Name of a file within a folder -> its size and checksum."""


class DamagedFileError(ValueError):
    """The content of a file is not what was written."""


def checksums(folder: Path) -> FileSums:
    """Of every file in a folder."""
    return {path.name: _size_and_checksum(str(path)) for path in sorted(folder.iterdir())}


def damage(folder: Path, files: FileSums, *, by_size: bool = False) -> str:
    """What is wrong with these files of a folder, in a few words; '' if nothing is. By size they are not read."""
    for name, (size, checksum) in files.items():
        try:
            if by_size and os.lstat(f"{folder}/{name}").st_size == size:
                continue
            size_now, checksum_now = _size_and_checksum(f"{folder}/{name}", size)
            if size_now != size:
                return f"{name} has {size_now:,} bytes instead of {size:,}"
            if checksum_now != checksum:
                return f"{name} has another checksum than when it was written"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
    return ""


def _size_and_checksum(path: str, expected_size: int | None = None) -> list[int]:
    """No link is followed, and no pipe waited for. A file of another size than expected is not read."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        size = os.fstat(file).st_size
        value = 0
        if expected_size in (None, size):
            # Of few bytes: a buffer that is much larger than the file takes longer to make than the file to read.
            while piece := os.read(file, min(_PIECE, size + 1)):
                value = crc32(piece, value)
        return [size, value]
    finally:
        os.close(file)


def write_checked_json(path: Path, content: Mapping[str, Any], *, on_disk: bool = True) -> None:
    """Write or replace a small file that contains its own checksum, and wait until it is on the disk, or not."""
    checked = {_KEY: _text_checksum(content), **content}
    if on_disk:
        write_json(path, checked, indent=None)
    else:
        write_bytes(path, [json.dumps(checked).encode(), b"\n"])


def read_checked_json(path: Path) -> dict[str, Any]:
    """The content of such a file. Raises OSError, or DamagedFileError if it is not what was written."""
    try:
        content = json.loads(path.read_bytes())
        checksum = content.pop(_KEY)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFileError(f"{path.name} is not what was written") from error
    if not isinstance(content, dict) or checksum != _text_checksum(content):
        raise DamagedFileError(f"{path.name} has another checksum than when it was written")
    return content


def _text_checksum(content: Mapping[str, Any]) -> int:
    return crc32(json.dumps(content, sort_keys=True).encode())
