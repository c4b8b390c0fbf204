"""A folder under a path without special characters, for DuckDB (docs/adr/0131-no-names-for-duckdb.md).

DuckDB takes names in a path for more than names: `*`, `?`, `[1]` and `{a,b}` for patterns, `rank=7` for the value of a
column, and it refuses text that is not UTF-8. Users' folders are named like that, so DuckDB is never given their names.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

from rankscope.host import has_descriptor_paths


class PlainFolder:
    """A folder that is kept open: `path` names it within this process, until it is closed or this object is gone."""

    def __init__(self, folder: Path) -> None:
        self.close: weakref.finalize[Any, Any]
        self.descriptors: tuple[int, ...] = ()
        """What a child process must inherit for `path` to be valid there."""
        if has_descriptor_paths():
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self.descriptors = (descriptor,)
            self.path = Path(f"/proc/self/fd/{descriptor}")
            self.close = weakref.finalize(self, os.close, descriptor)
        else:  # macOS
            links = tempfile.mkdtemp(prefix="rankscope-")
            self.path = Path(links) / "folder"
            self.path.symlink_to(folder.resolve())
            self.close = weakref.finalize(self, shutil.rmtree, links, ignore_errors=True)
