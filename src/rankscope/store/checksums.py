"""Checksums of the store's files: they find damage by disks, copies and other programs, not by an attacker.

CRC-32 is computed at 7 GB/s, faster than anything else is done with a table, so every table is checked whenever a run
is opened (docs/adr/0132-damage-is-found.md).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isal.isal_zlib import crc32

from rankscope.files import write_json

_PIECE = 1 << 20
_KEY = "checksum"

FileSums = dict[str, list[int]]
"""Name of a file within a folder -> its size and checksum."""


class DamagedFileError(ValueError):
    """The content of a file is not what was written."""


def checksums(folder: Path) -> FileSums:
    """Of every file in a folder."""
    return {path.name: list(_size_and_checksum(path)) for path in sorted(folder.iterdir())}


def damage(folder: Path, files: FileSums) -> str:
    """What is wrong with these files of a folder, in a few words; '' if nothing is."""
    for name, (size, checksum) in files.items():
        path = folder / name
        try:
            if (found := path.stat().st_size) != size:
                return f"{name} has {found:,} bytes instead of {size:,}"
            if _size_and_checksum(path)[1] != checksum:
                return f"{name} has another checksum than when it was written"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
    return ""


def _size_and_checksum(path: Path) -> tuple[int, int]:
    size = value = 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            size += len(piece)
            value = crc32(piece, value)
    return size, value


def write_checked_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write or replace a small file that contains its own checksum."""
    write_json(path, {_KEY: _text_checksum(content), **content}, indent=None)


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
