"""A reader of another package: the one of docs/readers.md, found by its entry point."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import ROOT, slice_event, write_kineto
from rankscope.errors import NotATraceError, ReadError
from rankscope.readers import find_reader, looks_like_a_trace
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

PAGE = (ROOT / "docs" / "readers.md").read_text(encoding="utf-8")
SPANS = "1700000000000000000\n0 900 main step\n100 250 gpu gemm\nnonsense\n400 50 gpu gemm\n"


def block(name: str) -> str:
    found = re.search(rf'```\w+ title="{re.escape(name)}"\n(.*?)```', PAGE, re.DOTALL)
    assert found
    return found[1]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the package as pip installs it."""
    folder = tmp_path / "site"
    about = folder / "spans_reader-1.0.dist-info"
    about.mkdir(parents=True)
    (folder / "spans_reader.py").write_text(block("spans_reader.py"))
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: spans-reader\nVersion: 1.0\n")
    group, entry = block("pyproject.toml").splitlines()
    assert group == '[project.entry-points."rankscope.readers"]'
    (about / "entry_points.txt").write_text("[rankscope.readers]\n" + entry.replace('"', "") + "\n")
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop("spans_reader", None)


def write(folder: Path, *names: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text(SPANS)
    return folder


@pytest.mark.usefixtures("package", "without_workers")
def test_its_files_are_a_run(tmp_path: Path) -> None:
    run = Run(
        ingest([write(tmp_path / "run", "rank-0.spans", "rank-1.spans", "notes.spans", "rank-1.other")])
    )
    rows = run.rows("SELECT rank, name, count(*), sum(dur_ns) FROM gpu GROUP BY ALL ORDER BY ALL")
    assert rows == [(0, "gemm", 2, 300_000), (1, "gemm", 2, 300_000)]
    assert [(entry.format, entry.unix_origin_ns) for entry in run.segments] == [
        ("other", 1_700_000_000 * 10**9)
    ] * 2
    assert run.segments[0].manifest["reading"]["events_lost"] == 1
    single = write(tmp_path / "single", "notes.spans") / "notes.spans"
    assert ingest([single]).index.segments[0].rank == 0


def test_without_the_package_they_are_no_traces(tmp_path: Path) -> None:
    path = write(tmp_path, "rank-0.spans") / "rank-0.spans"
    assert not looks_like_a_trace(path)
    with pytest.raises(NotATraceError):
        find_reader(path)


def test_a_package_that_cannot_be_imported_is_an_error_of_its_files(package: Path, tmp_path: Path) -> None:
    (package / "spans_reader.py").write_text("import nothing_of_this_name\n")
    path = write(tmp_path, "rank-0.spans") / "rank-0.spans"
    with pytest.raises(ReadError) as caught:
        find_reader(path)
    assert "spans_reader:READER of the package spans-reader" in caught.value.why
    assert "pip uninstall spans-reader" in caught.value.hint


def test_readers_that_are_not_needed_are_not_imported(tmp_path: Path) -> None:
    write_kineto(tmp_path / "rank-0.json", [slice_event("op", 1.0, 2.0)])
    (tmp_path / "job.log").write_text("step 1 loss 2.0\n")
    code = (
        "import sys; from pathlib import Path; from rankscope.readers import find_reader, looks_like_a_trace\n"
        "folder = Path(sys.argv[1])\n"
        "print(find_reader(folder / 'rank-0.json').name, looks_like_a_trace(folder / 'job.log'))\n"
        "print(*sorted(name for name in sys.modules if name.startswith('rankscope.readers.')))\n"
        "print('importlib.metadata' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    answer, modules, metadata = ended.stdout.splitlines()
    assert answer == "kineto False" and metadata == "False"
    vendors = ("ascend", "xla", "rocprof", "nccl", "gpu_counters", "ncu", "nsys", "memory_snapshot")
    assert not [name for name in modules.split() if name.split(".")[2] in vendors]
