"""Traces into the store: `store.ingest` with the function that gives the bytes of a trace their meaning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankscope.store import ingest as store_ingest
from rankscope.store.ingest import Ingested, IngestProgress, Options
from rankscope.store.worker import Progress, Task


def ingest(
    paths: Sequence[Path], options: Options | None = None, progress: IngestProgress | None = None
) -> Ingested:
    """Bring the store of these traces up to date and return it. Unchanged files are not read again."""
    return store_ingest.ingest(paths, read_trace, options, progress)


def read_trace(task: Task, folder: Path, progress: Progress) -> dict[str, Any]:
    """Read a trace into a folder, in a worker process or in this one."""
    # Late: imports numpy, which a command that starts workers does not need itself.
    from rankscope.timeline.segment import build_segment

    sidecar_files = [*map(Path, task.sidecar_files)]
    return build_segment(
        Path(task.path), folder, task.threads, progress, task.part, task.rank_source, sidecar_files
    )


def load_modules() -> None:
    """In the process that workers are forked from: what `read_trace` needs, and the readers that see every file."""
    import rankscope.readers.ascend.reader
    import rankscope.readers.kineto.reader
    import rankscope.readers.xla.trace_json
    import rankscope.timeline.segment  # noqa: F401
