"""Loaded by Dask workers of the tests (DASK_DISTRIBUTED__WORKER__PRELOAD): some files are held while they are read.

A file NAME in the folder $DASK_HOLD holds the trace of that name; NAME.held then appears with the process's id.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

from rankscope.timeline import segment

if "_build" not in globals():  # Dask may load it twice
    _build = segment.build_segment


def _held(path: Path, folder: Path, *rest: Any) -> dict[str, Any]:
    hold = Path(os.environ["DASK_HOLD"]) / path.name
    if hold.exists():
        (folder / "events.parquet").write_bytes(b"unfinished")
        hold.with_name(f"{path.name}.held").write_text(str(os.getpid()))
        while hold.exists():
            time.sleep(0.02)
    return _build(path, folder, *rest)


setattr(segment, "build_segment", _held)  # noqa: B010 - mypy knows the original
_name = os.environ.get("DASK_HOST_NAME") or socket.gethostname()
socket.gethostname = lambda: _name
