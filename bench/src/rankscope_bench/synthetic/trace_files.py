"""Trace files as bytes, compressed or not."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rankscope.errors import StoreError

Progress = Callable[[int], None]
"""Called with the bytes of text that were written."""


def new_folder(folder: Path, why: str) -> None:
    """Make it; `why` is said where it has files already."""
    if folder.is_dir() and any(folder.iterdir()):
        raise StoreError(f"{folder} is not empty", why=why, hint="Choose another folder with -o")
    folder.mkdir(parents=True, exist_ok=True)


def read_bytes(path: Path) -> bytes:
    content = path.read_bytes()
    return gzip.decompress(content) if path.suffix == ".gz" else content


def write_pieces(path: Path, pieces: Iterable[bytes], progress: Progress | None = None) -> int:
    """Write a file, compressed if its name ends in .gz; returns the bytes before compression.

    The gzip header has no file name and time 0, so that the same job gives the same bytes.
    """
    total = 0
    with path.open("wb") as raw:
        sink: Any = raw
        if path.suffix == ".gz":
            from isal.igzip import IGzipFile

            sink = IGzipFile(filename="", mode="wb", compresslevel=1, fileobj=raw, mtime=0)  # type: ignore[no-untyped-call]
        for piece in pieces:
            sink.write(piece)
            total += len(piece)
            if progress:
                progress(len(piece))
        if sink is not raw:
            sink.close()
    return total
