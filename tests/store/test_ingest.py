"""Ingest: once, in parallel, atomic; ranks and segments; read-only, killed, full disk, vanished."""

from __future__ import annotations

import errno
import gzip
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from conftest import DATA, ROOT, slice_event, write_kineto
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.health.doubts import world_size
from rankscope.analysis.run_info import facts
from rankscope.errors import RankError, ReadError, StoreError
from rankscope.model import TIMELINE_FORMATS
from rankscope.readers.nsys.reader import NSYS
from rankscope.readers.nsys.report import NSYS_REPORT
from rankscope.store import pool
from rankscope.store.checksums import read_checked_json, write_checked_json
from rankscope.store.discover import find_sources
from rankscope.store.ingest import IngestProgress, Options
from rankscope.store.rank_assignment import assign
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run


def trace(
    path: Path, rank: int | None = None, at: float = 1000.0, trace_id: str = "", events: int = 3
) -> Path:
    header = {"distributedInfo": {"rank": rank, "world_size": 4}} if rank is not None else {}
    if trace_id:
        header["trace_id"] = trace_id  # type: ignore[assignment]
    return write_kineto(path, [slice_event(f"op {i}", at + 10 * i, 5.0) for i in range(events)], **header)


def read_names(ingested_from: list[Path]) -> list[str]:
    return sorted(entry.source.name for entry in ingest(ingested_from).read)


@pytest.mark.slow
def test_a_second_call_does_nothing_and_a_changed_file_is_read_again(tmp_path: Path) -> None:
    trace(tmp_path / "rank-0.json")
    trace(tmp_path / "rank-1.json")
    assert read_names([tmp_path]) == ["rank-0.json", "rank-1.json"]
    assert read_names([tmp_path]) == []
    trace(tmp_path / "rank-1.json", events=7)
    assert read_names([tmp_path]) == ["rank-1.json"]
    trace(tmp_path / "rank-2.json")
    assert read_names([tmp_path]) == ["rank-2.json"]
    (tmp_path / "rank-0.json").unlink()
    run = Run(ingest([tmp_path]))
    assert run.ranks == [1, 2]
    assert run.rows("SELECT count(*) FROM slices WHERE rank = 1") == [(7,)]


@pytest.mark.slow
def test_a_second_call_opens_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command starts with this: with a thousand ranks on a shared disk, opening them all would be felt."""
    trace(tmp_path / "rank-0.json")
    trace(tmp_path / "rank-1.json")
    ingest([tmp_path])
    opened: list[str] = []
    real_open = Path.open

    def note(self: Path, *args: object, **kwargs: object) -> object:
        opened.append(self.name)
        return real_open(self, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", note)
    assert ingest([tmp_path]).read == ()
    assert not [name for name in opened if name.startswith("rank-")]


def test_what_lies_beside_the_traces_is_no_problem(tmp_path: Path) -> None:
    trace(tmp_path / "rank-0.json")
    for name in ("rankscope.json", "rank-00000.rankscope.json", "config.json"):
        (tmp_path / name).write_text('{"rank": 0}')
    ingested = ingest([tmp_path])
    assert ingested.problems == () and Run(ingested).ranks == [0]


@pytest.mark.slow
def test_rank_from_the_file_then_its_name(tmp_path: Path) -> None:
    trace(tmp_path / "rank-7.json", rank=3)
    trace(tmp_path / "trace_rank5.json")
    trace(tmp_path / "x-2-of-8.json")
    run = Run(ingest([tmp_path]))
    assert {entry.rank: entry.rank_source for entry in run.segments} == {
        2: "file name",
        3: "distributedInfo",
        5: "file name",
    }


def test_a_lone_file_without_a_rank_is_a_run_of_one(tmp_path: Path) -> None:
    said: list[str] = []
    run = Run(ingest([trace(tmp_path / "host1234_gpu80.json")], progress=IngestProgress(say=said.append)))
    assert [(entry.rank, entry.rank_source) for entry in run.segments] == [(0, "alone")]
    assert len(said) == 1 and "rank 0" in said[0]


@pytest.mark.slow
def test_among_several_a_missing_rank_is_an_error_and_can_be_said(tmp_path: Path) -> None:
    trace(tmp_path / "rank-0.json")
    lost = trace(tmp_path / "trace_x.json")
    with pytest.raises(RankError, match=r"cannot tell the rank of .*trace_x") as caught:
        ingest([tmp_path])
    assert "--rank 17=" in caught.value.hint
    assert Run(ingest([tmp_path], Options(ranks={lost: 17}))).ranks == [0, 17]
    assert Run(ingest([tmp_path])).ranks == [0, 17]


def snapshot(path: Path) -> Path:
    """A memory snapshot of torch, with one allocation."""
    entry = {"action": "alloc", "addr": 1, "size": 512, "stream": 0, "time_us": 10, "frames": []}
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[entry]]}))
    return path


def sources(folder: Path) -> dict[str, tuple[int, str]]:
    """Rank and its source, by file; nothing is read."""
    found = find_sources([folder])
    places, _, _ = assign(found.files, {}, found.ranks, [], [])
    return {place.path.name: (place.rank, place.rank_source) for place in places}


@pytest.mark.slow
def test_a_snapshot_without_a_rank_is_that_of_the_only_rank(tmp_path: Path) -> None:
    snapshot(tmp_path / "memory.pickle")
    assert sources(tmp_path) == {"memory.pickle": (0, "alone")}
    ingest([tmp_path])
    trace(tmp_path / "rank-3.json")
    said: list[str] = []
    index = ingest(
        [tmp_path], progress=IngestProgress(say=said.append)
    ).index  # the store's rank 0 no longer holds
    assert {(entry.rank, entry.rank_source) for entry in index.segments} == {
        (3, "file name"),
        (3, "beside the only rank"),
    }
    assert said == ["memory.pickle has no rank; it is read as that of the only rank here, 3"]
    trace(tmp_path / "rank-4.json")
    (problem,) = ingest([tmp_path]).problems
    assert "cannot tell the rank of" in str(problem) and "memory.pickle" in str(problem)


def test_an_nsys_report_is_of_the_format_of_its_export() -> None:
    """Else a rank with a torch trace and a .nsys-rep would count twice, and its recordings would not be known."""
    assert {NSYS.name, NSYS_REPORT.name} <= set(TIMELINE_FORMATS)


def test_a_snapshot_beside_a_lone_trace(tmp_path: Path) -> None:
    trace(tmp_path / "trace.json")
    snapshot(tmp_path / "a.pickle")
    assert sources(tmp_path) == {"trace.json": (0, "alone"), "a.pickle": (0, "beside the only rank")}
    trace(tmp_path / "trace_x.json")
    with pytest.raises(RankError, match="cannot tell the rank of"):
        sources(tmp_path)


def test_several_snapshots_of_a_job_of_several_ranks_are_not_guessed(tmp_path: Path) -> None:
    trace(tmp_path / "trace.json", rank=0)  # of 4
    snapshot(tmp_path / "a.pickle")
    assert sources(tmp_path)["a.pickle"] == (0, "beside the only rank")
    snapshot(tmp_path / "b.pickle")
    with pytest.raises(RankError, match=r"cannot tell the rank of .*a.pickle"):
        sources(tmp_path)


def test_traces_that_the_manifest_names_in_another_folder(tmp_path: Path) -> None:
    """As `rankscope profile --tensorboard-dir` leaves them; names without a rank, as torch's own handler writes."""
    folder, elsewhere = tmp_path / "job" / "run", tmp_path / "job" / "tb"
    folder.mkdir(parents=True)
    elsewhere.mkdir()
    files = [trace(elsewhere / f"host_1.{cycle}.pt.trace.json", at=1000 + 9000 * cycle) for cycle in range(2)]
    copy = trace(elsewhere / "copy.pt.trace.json")
    trace(folder / "kept-5-of-8.json", at=50_000)
    windows: list[dict[str, object]] = [
        {"index": i, "state": "whole", "file": str(path), "relative": f"../tb/{path.name}"}
        for i, path in enumerate(files)
    ]
    windows += [
        {"index": 2, "state": "whole", "file": "kept-5-of-8.json"},
        {"index": 2, "state": "whole", "file": str(copy)},
        {"index": 3, "state": "lost"},
    ]
    (folder / "rank-00005.rankscope.json").write_text(json.dumps({"rank": 5, "windows": windows}))
    expected = {files[0].name: (5, "manifest"), files[1].name: (5, "manifest")}
    assert sources(folder) == {**expected, "kept-5-of-8.json": (5, "file name")}
    moved = tmp_path / "moved"
    (tmp_path / "job").rename(moved)
    assert len(sources(moved / "run")) == 3
    (moved / "tb" / files[0].name).unlink()
    found = find_sources([moved / "run"])
    assert len(found.files) == 2
    assert "its trace is not where the capture wrote it" in found.skipped[0].message
    assert str(files[0]) in found.skipped[0].why
    shutil.rmtree(moved / "tb")
    (moved / "run" / "kept-5-of-8.json").unlink()
    with pytest.raises(StoreError, match="2 of its traces are not where the capture wrote them"):
        sources(moved / "run")


@pytest.mark.slow
def test_new_traces_in_another_folder_are_read_and_a_store_without_them_is_used(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "run", tmp_path / "tb"
    folder.mkdir()
    elsewhere.mkdir()

    def captured(name: str) -> None:
        path = trace(elsewhere / name)
        windows = [{"index": 0, "state": "whole", "file": str(path)}]
        (folder / "rank-00000.rankscope.json").write_text(json.dumps({"rank": 0, "windows": windows}))

    captured("first.json")
    assert read_names([folder]) == ["first.json"]
    captured("second.json")
    assert read_names([folder]) == ["second.json"]
    shutil.rmtree(elsewhere)
    assert Run(ingest([folder])).ranks == [0]


@pytest.mark.slow
def test_cycles_of_one_rank_are_segments(tmp_path: Path) -> None:
    trace(tmp_path / "rank-0.1.json", at=1000)
    trace(tmp_path / "rank-0.2.json", at=5000)
    run = Run(ingest([tmp_path]))
    assert [(entry.rank, entry.segment) for entry in run.segments] == [(0, 0), (0, 1)]
    assert run.rows("SELECT segment, min(start_ns) FROM slices GROUP BY segment ORDER BY 1") == [
        (0, 0),
        (1, 4_000_000),
    ]


@pytest.mark.slow
def test_two_files_of_one_time_and_rank_are_an_error_that_names_both(tmp_path: Path) -> None:
    trace(tmp_path / "rank-0.a.json")
    trace(tmp_path / "rank-0.b.json", at=1002)
    with pytest.raises(RankError, match=r"rank-0\.a\.json and .*rank-0\.b\.json are both of rank 0"):
        ingest([tmp_path])


@pytest.mark.slow
def test_a_bad_file_among_good_ones_costs_itself(tmp_path: Path) -> None:
    """A copy under the name of another rank or of its own, a trace without a rank, a second one of a rank's time."""
    trace(tmp_path / "rank-0.json", trace_id="ABC")
    for rank in (1, 2, 3):
        trace(tmp_path / f"rank-{rank}.json")

    def problem() -> str:
        again = [ingest([tmp_path]) for _ in range(2)]  # what is in the store is compared, too
        assert [str(error) for error in again[0].problems] == [str(error) for error in again[1].problems]
        (error,) = again[1].problems
        assert again[1].read == ()
        return str(error)

    copy = trace(tmp_path / "rank-7.json", trace_id="ABC")
    os.utime(copy, (0, 2 * 10**9))
    assert problem().startswith(
        f"{copy} is not read\n  It is the same trace as {tmp_path / 'rank-0.json'}: both "
    )
    assert Run(ingest([tmp_path])).ranks == [0, 1, 2, 3]
    copy.unlink()
    stranger = trace(tmp_path / "trace.json")
    assert problem().startswith(f"cannot tell the rank of {stranger}\n")
    stranger.unlink()
    copy = trace(tmp_path / "rank-1.copy.json")
    os.utime(copy, (0, 2 * 10**9))
    assert (
        f"{tmp_path / 'rank-1.json'} and {copy} are both of rank 1\n  They are the same recording"
        in problem()
    )
    assert Run(ingest([tmp_path])).rows("SELECT count(*) FROM slices WHERE rank = 1") == [(3,)]
    trace(copy, at=1002)
    assert "rank-1.copy.json are both of rank 1\n  They cover the same time" in problem()
    assert Run(ingest([tmp_path])).ranks == [0, 2, 3]
    trace(tmp_path / "rank-2.copy.json", at=1002)
    with pytest.raises(RankError, match="both of rank"):  # two runs
        ingest([tmp_path])


@pytest.mark.slow
def test_several_files_from_anywhere(tmp_path: Path) -> None:
    files = [trace(tmp_path / "a" / "rank-0.json"), trace(tmp_path / "b" / "rank-1.json")]
    ingested = ingest(files, Options(output=tmp_path / "run"))
    assert ingested.store == tmp_path / "run" / ".rankscope"
    shutil.rmtree(tmp_path / "a")
    assert Run(ingest([tmp_path / "run"])).ranks == [0, 1]


@pytest.mark.slow
def test_a_read_only_folder_is_read_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "run"
    trace(folder / "rank-0.json")
    folder.chmod(0o555)
    said: list[str] = []
    try:
        ingested = ingest([folder], progress=IngestProgress(say=said.append))
        assert ingested.store.is_relative_to(tmp_path / "cache" / "rankscope")
        assert any("cannot be written to" in line for line in said)
        assert ingest([folder]).read == ()
        assert ingest([folder], Options(cache=tmp_path / "other")).store.is_relative_to(tmp_path / "other")
    finally:
        folder.chmod(0o755)
    assert not (folder / ".rankscope").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission_as_a_user(tmp_path: Path) -> None:
    path = trace(tmp_path / "rank-0.json")
    path.chmod(0)
    with pytest.raises(ReadError, match="cannot read") as caught:
        ingest([path])
    assert "chmod" in caught.value.hint


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's refusal, for root too: opening the file fails as it would for a user."""
    path = trace(tmp_path / "rank-0.json")
    real_open = Path.open

    def refuse(self: Path, *args: object, **kwargs: object) -> object:
        if self == path:
            raise PermissionError(13, "Permission denied", str(path))
        return real_open(self, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ReadError, match="cannot read") as caught:
        ingest([path])
    assert "chmod" in caught.value.hint


OPENED_BY_ANOTHER_USER = """
import encodings.utf_8_sig, os, sys
from pathlib import Path
from rankscope.timeline.run import open_run
from rankscope.store.ingest import IngestProgress
warm, *runs = map(Path, sys.argv[1:])
nobody = 65534
open_run([warm]).rows("SELECT count(*) FROM slices")  # imports what another user may not be able to
os.setgroups([]), os.setresgid(nobody, nobody, nobody), os.setresuid(nobody, nobody, nobody)
for run in (*runs, *runs):
    opened = open_run([run], progress=IngestProgress(say=print))
    print(opened.store.parent, opened.rows("SELECT count(*) FROM slices"), len(opened.ingested.read))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")
def test_a_store_that_another_user_has_closed_counts_as_absent() -> None:
    closed = (".rankscope", ".rankscope/rank=00000", ".rankscope/store.json")
    with tempfile.TemporaryDirectory(prefix="home-") as home:
        warm, cache, *runs = (Path(home) / name for name in ("warm", "cache", "a", "b", "c"))
        trace(warm / "rank-0.json")
        Path(home).chmod(0o755)
        for run, part in zip(runs, closed, strict=True):
            trace(run / "rank-0.json")
            ingest([run])
            for path in (run, *run.rglob("*")):
                path.chmod(0o755)
            (run / part).chmod(0o700)
        cache.mkdir()
        cache.chmod(0o777)
        done = subprocess.run(
            [sys.executable, "-c", OPENED_BY_ANOTHER_USER, str(warm), *map(str, runs)],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "XDG_CACHE_HOME": str(cache)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    lines = done.stdout.splitlines()
    assert len(lines) == 12, done.stderr
    for run, said in zip([*runs, *runs], lines[::2], strict=True):
        assert f"{run}/.rankscope is closed to you" in said and "--cache DIR" in said
    assert lines[1::2] == [f"{cache}/rankscope [(3,)] {read}" for read in (1, 1, 1, 0, 0, 0)]


def test_a_trace_beside_itself_compressed_is_read_once(tmp_path: Path) -> None:
    """The older of the two is the original; a copy may not be finished."""
    plain = trace(tmp_path / "rank-0.json", 0, trace_id="a")
    packed = tmp_path / "rank-0.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    os.utime(plain, (100, 100))
    said: list[str] = []
    ingested = ingest([tmp_path], progress=IngestProgress(say=said.append))
    assert [entry.source.name for entry in ingested.read] == ["rank-0.json"]
    assert said == ["rank-0.json.gz is not read: rank-0.json beside it is the same trace"]
    os.utime(plain)  # newer now, and another file to the store: the compressed one is the original
    assert read_names([tmp_path]) == ["rank-0.json.gz"]
    os.utime(packed, (50, 50))
    assert read_names([plain, packed]) == ["rank-0.json.gz"]
    packed.write_bytes(gzip.compress(trace(tmp_path / "other", 1, at=1e9, trace_id="b").read_bytes()))
    assert read_names([tmp_path]) == ["rank-0.json", "rank-0.json.gz"]  # of two ranks: not the same trace


def test_a_report_and_its_export_are_one_recording(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.nsys-rep", "a.sqlite", "b.qdrep", "b.sqlite")]
    for path in files:
        path.write_bytes(b"SQLite format 3\0" if path.suffix == ".sqlite" else b"NVIDIA")
    sources = find_sources(files, unchanged=files)
    assert [path.name for path in sources.files] == ["a.sqlite", "b.sqlite"]
    assert {copy.name: path.name for copy, path in sources.copies.items()} == {
        "a.nsys-rep": "a.sqlite",
        "b.qdrep": "b.sqlite",
    }


def test_a_pipe_is_no_trace_and_does_not_block(tmp_path: Path) -> None:
    pipe = tmp_path / "rank-0.json"
    os.mkfifo(pipe)
    with pytest.raises(ReadError, match="is not read") as caught:
        ingest([pipe])
    assert "pipe" in caught.value.why and caught.value.hint
    trace(tmp_path / "rank-1.json")
    os.mkfifo(tmp_path / "rank-00000.rankscope.json")
    for name in ("rank-2.json", "rank-00002.rankscope.json", "x.nsys-rep"):
        (tmp_path / name).symlink_to(
            "/proc/kmsg"
        )  # a file, but reading it waits for the next line of the kernel
    assert Run(ingest([tmp_path])).ranks == [1]


@pytest.mark.parametrize(
    "manifest",
    [
        5,
        {"rank": 0, "windows": 5},
        {"rank": 0, "windows": [5, "x", None]},
        {"rank": 0, "windows": [{"state": "whole", "file": 5, "index": []}]},
        {"rank": "0", "windows": [{"state": "whole", "file": "/x/y.json"}]},
        {"windows": [{"state": "whole", "file": "\0"}]},
        {"rank": -1, "world_size": 10**15, "windows": []},
    ],
)
def test_an_odd_manifest_of_a_rank(manifest: object, tmp_path: Path) -> None:
    trace(tmp_path / "rank-0.json")
    (tmp_path / "rank-00000.rankscope.json").write_text(json.dumps(manifest))
    run = Run(ingest([tmp_path]))
    assert run.ranks == [0] and world_size(run) == 0
    assert facts(run, Scope())["Run"]


@pytest.mark.slow
def test_runs_below_a_stray_trace_are_named(tmp_path: Path) -> None:
    for name in ("a b", "c"):
        trace(tmp_path / name / "rank-0.json")
    said: list[str] = []
    ingest([tmp_path / "c"])
    trace(tmp_path / "rank-0.json", events=7)
    assert Run(ingest([tmp_path], progress=IngestProgress(say=said.append))).rows("FROM segments")
    assert said == [
        "the traces in a b, c are not read, those beside the folders are\n"
        f"  Open them alone: rankscope stats '{tmp_path}/a b'"
    ]


def test_the_store_of_other_files_is_not_taken_for_that_of_a_run(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    trace(first / "rank-0.json")
    ingest([first])
    trace(second / "rank-0.json", events=7)
    shutil.copytree(first / ".rankscope", second / ".rankscope")
    said: list[str] = []
    run = Run(ingest([second], progress=IngestProgress(say=said.append)))
    assert run.rows("SELECT count(*) FROM slices") == [(7,)]
    assert said == [
        f"the traces in {second} have other times than its store lists, as after a copy: they are read again"
    ]
    # As after `ingest -o`: what was exported into the folder later does not replace the store.
    trace(third / "exported.json")
    shutil.copytree(first / ".rankscope", third / ".rankscope")
    assert Run(ingest([third], progress=IngestProgress(say=said.append))).rows(
        "SELECT count(*) FROM slices"
    ) == [(3,)]
    assert said[1].endswith("exported.json is not read, remove the store to read it")


def test_traces_that_the_disk_cannot_read_are_no_missing_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(3):
        trace(tmp_path / f"rank-{rank}.json")
    real_open = Path.open

    def fails(self: Path, *args: object, **kwargs: object) -> object:
        if self.parent == tmp_path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self))
        return real_open(self, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", fails)
    with pytest.raises(
        ReadError, match=r"cannot read .*rank-0.json \(2 more files could not be read"
    ) as caught:
        ingest([tmp_path])
    assert caught.value.why == "Input/output error."


@pytest.mark.slow
def test_killed_while_publishing_and_the_next_call_recovers(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for rank in range(3):
        trace(folder / f"rank-{rank}.json", events=40_000)
    store = folder / ".rankscope"
    code = (  # files that are read have their place, and are not listed yet
        "import os, signal; from rankscope.cli import main; from rankscope.store.index import Index\n"
        "Index.save = lambda *words: os.killpg(0, signal.SIGKILL)\n"
        f"main(['ingest', '-q', '--jobs', '1', {str(folder)!r}])"
    )
    victim = subprocess.run([sys.executable, "-c", code], start_new_session=True)
    assert victim.returncode == -signal.SIGKILL and list(store.glob("incoming-*"))
    run = Run(ingest([folder]))
    assert run.rows("SELECT rank, count(*) FROM slices GROUP BY rank ORDER BY rank") == [
        (r, 40_000) for r in range(3)
    ]
    assert list(store.glob("incoming-*")) == []


@pytest.mark.slow
def test_a_worker_that_dies_takes_only_its_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker is killed as the out-of-memory killer would; the other ranks are still read, by the next worker."""
    for rank in range(4):
        trace(tmp_path / f"rank-{rank}.json")
    killer = tmp_path / "site" / "sitecustomize.py"
    killer.parent.mkdir()
    killer.write_text(
        "import sys, os, pickle, signal\n"
        "def load(file, load=pickle.load):\n"
        "    task = load(file)\n"
        "    if 'rank-1' in getattr(task, 'path', ''): os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return task\n"
        "if 'rankscope.store.worker' in sys.orig_argv: pickle.load = load\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(killer.parent))
    monkeypatch.setattr(pool, "_SMALL_BYTES", 0)  # files this small are not given to workers
    ingested = ingest([tmp_path], Options(jobs=1))
    assert Run(ingested).ranks == [0, 2, 3]
    assert [type(problem) for problem in ingested.problems] == [StoreError]
    assert "SIGKILL" in ingested.problems[0].message and "--jobs 1" in ingested.problems[0].hint


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_disk_full_while_writing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24k", "tmpfs", disk], capture_output=True
    ).returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        source = trace(tmp_path / "rank-0.json", events=60_000)
        with pytest.raises((StoreError, ReadError), match="cannot") as caught:
            ingest([source], Options(cache=disk))
        assert "space" in str(caught.value).lower()
        assert not list(disk.rglob("store.json"))
        assert Run(ingest([source], Options(cache=tmp_path / "roomy"))).ranks == [0]
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.slow
def test_a_file_that_vanishes_while_it_is_read(tmp_path: Path) -> None:
    """Gone between the listing and the reading: an error for that file, the rest is read."""
    trace(tmp_path / "rank-0.json")
    gone = trace(tmp_path / "rank-1.json")
    ingested = ingest([tmp_path], Options(jobs=1), IngestProgress(begin=lambda files, size: gone.unlink()))
    assert Run(ingested).ranks == [0]
    assert len(ingested.problems) == 1 and "rank-1.json" in ingested.problems[0].message


def test_a_file_cut_short_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import duckdb

    from rankscope.readers.kineto.reader import KINETO

    monkeypatch.setattr("rankscope.readers.kineto.reader.BLOCK_BYTES", 4000)
    path = trace(tmp_path / "rank-0.json", events=500)
    reading = KINETO.open(path)
    rows = 0
    with duckdb.connect() as connection:
        for batch in reading.batches():
            if rows == 0:
                os.truncate(path, 20_000)
            rows += len(connection.execute(batch.select()).fetchall())
            batch.close()
    assert 0 < rows < 500
    assert reading.report.damage


@pytest.mark.slow
def test_a_store_of_another_format_is_read_again(tmp_path: Path) -> None:
    trace(tmp_path / "rank-0.json")
    store = ingest([tmp_path]).store
    index = store / "store.json"
    content = read_checked_json(index)
    write_checked_json(index, {**content, "format": 999})
    assert read_names([tmp_path]) == ["rank-0.json"]
    write_checked_json(index, {"format": 999, "tables": "as they will be"})
    (tmp_path / "rank-0.json").unlink()
    for path in (tmp_path, store):
        with pytest.raises(StoreError, match="cannot be used") as caught:
            ingest([path])
        assert "It has format 999, and this version reads" in caught.value.why


@pytest.mark.slow
def test_real_ranks_in_parallel(tmp_path: Path) -> None:
    shutil.copytree(DATA / "ddp-gloo4", tmp_path / "run")
    run = Run(ingest([tmp_path / "run"], Options(jobs=2)))
    assert run.rows("SELECT rank, count(*) FROM events GROUP BY rank ORDER BY rank") == [
        (0, 7758),
        (1, 7758),
        (2, 7754),
        (3, 7754),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("group", [False, True])
def test_a_store_is_as_open_as_its_folder(group: bool, tmp_path: Path) -> None:
    """For its owner only, whatever the umask is; for the group too in a folder that is the group's (g+rxs)."""
    run = tmp_path / "run"
    trace(run / "rank-0.json")
    run.chmod(0o2750 if group else 0o755)
    before = os.umask(0o022)
    try:
        store = ingest([run]).store
        Run(ingest([run])).rows("SELECT 1")
    finally:
        os.umask(before)
    made = [store, *store.rglob("*")]
    folders = {path.stat().st_mode & 0o777 for path in made if path.is_dir()}
    files = {path.stat().st_mode & 0o777 for path in made if path.is_file()}
    assert (folders, files) == (({0o750}, {0o640}) if group else ({0o700}, {0o600}))
