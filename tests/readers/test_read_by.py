"""What read a file's events is told rightly, with the C parts and without them: `ingest -v` and doctor show it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import kineto_text, slice_event
from flight_dumps import dump, op
from nccl_files import prometheus_text
from nsys_files import ExportFile
from rankscope import native
from rankscope.errors import ReadError
from rankscope.readers import find_reader
from rankscope.readers.columns import DUCKDB, IN_C, IN_PYTHON, SQLITE
from readers.test_rocprof import STEP
from rocprof_files import write_rocpd, write_tool_json
from xspace_files import environment, gpu_planes, write_space

PLAIN = kineto_text([slice_event("op", 1000.0, 5.0)])
BROKEN = kineto_text([slice_event("op", 1000.0, 5.0), '{"ph": "X", "name": nothing at all}'])


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def snapshot(folder: Path) -> Path:
    entry = {"action": "alloc", "addr": 2**40, "size": 8, "stream": 0, "time_us": 5, "frames": []}
    content = {"segments": [], "device_traces": [[entry]], "allocator_settings": {}}
    return written(folder, "rank-0.pickle", pickle.dumps(content))


def damaged_tool_json(folder: Path) -> Path:
    path = write_tool_json(folder / "x_results.json", STEP)
    path.write_text(path.read_text().replace('"start_timestamp":', '"start_timestamp": oh ', 1))
    return path


WRITERS: dict[str, tuple[Callable[[Path], Path], set[str], set[str]]] = {
    "kineto": (lambda folder: written(folder, "rank-0.json", PLAIN), {IN_C}, {DUCKDB}),
    "kineto, damaged": (lambda folder: written(folder, "rank-0.json", BROKEN), {DUCKDB}, {DUCKDB}),
    "nsys": (lambda folder: ExportFile(folder / "a.sqlite").kernel("k", 5, 9).write(), {IN_C}, {SQLITE}),
    "rocpd": (lambda folder: write_rocpd(folder / "x.db", STEP), {IN_C, IN_PYTHON}, {SQLITE, IN_PYTHON}),
    "rocprofv3": (
        lambda folder: write_tool_json(folder / "x_results.json", STEP), {DUCKDB, IN_PYTHON}, {DUCKDB, IN_PYTHON}
    ),
    "xla": (
        lambda folder: write_space(folder / "a.xplane.pb", environment(), *gpu_planes()), {IN_C, IN_PYTHON}, set()
    ),
    "snapshot": (snapshot, {IN_C}, {IN_PYTHON}),
    "flight recorder": (
        lambda folder: written(folder, "nccl_trace_rank_0", pickle.dumps(dump([op("0", 1)], {"0": [0, 1]}))),
        {IN_PYTHON}, {IN_PYTHON},
    ),
    "prometheus": (
        lambda folder: written(folder, "rank-0.prom", prometheus_text(0, [("AllReduce", "1MB", 5.0, 9.0)])),
        {IN_PYTHON}, {IN_PYTHON},
    ),
    "rocprofv3, damaged": (damaged_tool_json, {DUCKDB, IN_PYTHON}, {DUCKDB, IN_PYTHON}),
}  # fmt: skip


@pytest.mark.parametrize("in_c", [True, False])
@pytest.mark.parametrize("kind", WRITERS)
def test_what_read_the_events(kind: str, in_c: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if in_c and native.functions is None:
        pytest.skip("the C parts were not built")
    if not in_c:
        monkeypatch.setattr(native, "functions", None)
    write, with_c, without = WRITERS[kind]
    path = write(tmp_path)
    if not in_c and not without:
        with pytest.raises(ReadError, match="C parts"):
            next(find_reader(path).open(path).batches())
        return
    read_by = set()
    for batch in find_reader(path).open(path).batches():
        read_by.add(batch.columns().read_by)
        batch.close()
    assert read_by == (with_c if in_c else without)
