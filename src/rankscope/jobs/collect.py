"""Copy the files that one node's ranks have written to the run folder. All nodes do this at the same time."""

from __future__ import annotations

import filecmp
import socket
from pathlib import Path

from rankscope.capture.run_folder import RUN_MANIFEST
from rankscope.errors import RankscopeError
from rankscope.files import copy_file, is_temporary


def collect(source: Path, run: Path) -> int:
    """Copy every file of ``source``, however deep, to the same place in ``run``; returns how many were copied.

    Each file appears whole, and has one writer. rankscope.json is the same job's on every node: the first one stays.
    Any other file that another node has written with other content is an error, after the rest is copied.
    """
    copied, refused = 0, []
    for path in sorted(source.rglob("*")):
        if not path.is_file() or is_temporary(path.name):
            continue
        target = run / path.relative_to(source)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if copy_file(path, target):
                copied += 1
            elif target.name != RUN_MANIFEST and not filecmp.cmp(path, target, shallow=False):
                refused.append(str(path.relative_to(source)))
        except OSError as error:
            raise RankscopeError(
                f"cannot copy {path} to {target}",
                why=f"{error.strerror or error}.",
                hint=f"The files stay in {source} on {socket.gethostname()}.",
            ) from error
    if refused:
        raise RankscopeError(
            f"{', '.join(refused)} of {socket.gethostname()} was not copied",
            why=f"Another node has written a different file of that name to {run}.",
            hint=f"The files stay in {source} on {socket.gethostname()}. Do two nodes count the same ranks?",
        )
    return copied
