"""Several processes, of several hosts, write one store: none removes or overwrites what another is doing."""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from conftest import slice_event, write_kineto
from rankscope import errors
from rankscope.errors import NotATraceError, RankscopeError
from rankscope.readers.kineto.reader import KinetoReader
from rankscope.store import incoming, pool
from rankscope.store.incoming import incoming_folder
from rankscope.store.index import Index
from rankscope.store.ingest import IngestProgress
from rankscope.store.worker import Outcome, Task, error_from_json, error_to_json, perform
from rankscope.timeline import segment
from rankscope.timeline.reading import ingest, read_trace
from rankscope.timeline.run import Run


def write_rank(folder: Path, rank: int, events: int = 3) -> Path:
    return write_kineto(
        folder / f"rank-{rank}.json", [slice_event(f"op {i}", 1000.0 + 10 * i, 5.0) for i in range(events)]
    )


def counts(run: Run) -> list[tuple[int, int]]:
    return [
        (rank, count)
        for rank, count in run.rows("SELECT rank, count(*) FROM slices GROUP BY rank ORDER BY 1")
    ]


@pytest.mark.slow
def test_work_of_other_hosts_and_of_living_processes_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rank(tmp_path, 0)
    store = ingest([tmp_path]).store
    here = socket.gethostname()
    dead = store / f"incoming-{here}.{os.getpid()}.aa"  # the pid lives, and says nothing
    elsewhere = store / "incoming-another-host.1.bb"  # a pid that lives on this host too
    built_elsewhere = store / "rank=00007" / "segment=0" / "another-host.1.cc"
    for folder in (dead, elsewhere, built_elsewhere):
        folder.mkdir(parents=True)
        (folder / "slices.parquet").write_bytes(b"unfinished")
    with incoming_folder(store) as living:
        ingest([tmp_path])
        assert not dead.exists() and elsewhere.exists() and living.exists()
        write_rank(tmp_path, 1)
        ingest([tmp_path])
        assert elsewhere.exists() and built_elsewhere.exists() and living.exists()
    assert not living.exists()
    monkeypatch.setattr(incoming, "_ABANDONED_AFTER_S", -1)  # a day later
    ingest([tmp_path])
    assert not elsewhere.exists() and not built_elsewhere.exists()


def test_a_worker_that_outlives_its_owner_keeps_its_folder(tmp_path: Path) -> None:
    write_rank(tmp_path, 0)
    store = ingest([tmp_path]).store
    left = store / f"incoming-{socket.gethostname()}.1.aa"
    left.mkdir()
    with (left / "lock").open("a+") as held_by_worker:
        fcntl.flock(held_by_worker, fcntl.LOCK_SH)
        ingest([tmp_path])
        assert left.exists()
    ingest([tmp_path])
    assert not left.exists()


def test_a_task_on_another_host_keeps_the_folder_of_a_dead_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a worker of a Dask cluster does, whose lock may not be seen here."""
    write_rank(tmp_path, 0)
    store = ingest([tmp_path]).store
    left = store / f"incoming-{socket.gethostname()}.1.aa"
    attempt = left / "another-host.7.bb"
    attempt.mkdir(parents=True)
    (attempt / "slices.parquet").write_bytes(b"unfinished")
    ingest([tmp_path])
    assert attempt.exists()
    monkeypatch.setattr(incoming, "_ABANDONED_AFTER_S", -1)  # a day later
    ingest([tmp_path])
    assert not left.exists()


def test_the_attempt_that_finishes_first_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster gives the task of a worker that it takes for dead to another one: both may finish."""
    trace = write_rank(tmp_path, 0)
    with incoming_folder(tmp_path) as folder:
        task = Task(read_trace, str(trace), str(folder / "result"), threads=1)
        build = segment.build_segment
        outcomes: list[Outcome] = []

        def overtaken(*given: Any) -> dict[str, Any]:
            monkeypatch.setattr(segment, "build_segment", build)
            outcomes.append(perform(task, lambda read, doing: None))
            return build(*given)

        monkeypatch.setattr(segment, "build_segment", overtaken)
        outcomes.append(perform(task, lambda read, doing: None))
        assert sorted(path.name for path in folder.iterdir()) == ["lock", "result"]
        monkeypatch.setattr(segment, "build_segment", None)  # nothing is read a third time
        outcomes.append(perform(task, lambda read, doing: None))
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_what_was_read_is_listed_from_time_to_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.store.ingest._LISTED_EVERY_S", -1.0)
    for rank in range(3):
        write_rank(tmp_path, rank)
    seen: list[list[int]] = []

    def look(files: int) -> None:
        seen.append([entry.rank for entry in Index.load(tmp_path / ".rankscope").segments])

    ingested = ingest([tmp_path], progress=IngestProgress(finish=look))
    assert seen == [[], [0], [0, 1]]
    assert [entry.rank for entry in ingested.read] == [0, 1, 2]
    assert counts(Run(ingest([tmp_path]))) == [(0, 3), (1, 3), (2, 3)]


def test_what_was_read_before_ctrl_c_is_not_read_again(tmp_path: Path) -> None:
    for rank in range(3):
        write_rank(tmp_path, rank)

    def interrupted(files: int) -> None:
        if files == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest([tmp_path], progress=IngestProgress(finish=interrupted))
    assert not list((tmp_path / ".rankscope").glob("incoming-*"))
    again = ingest([tmp_path])
    assert [entry.rank for entry in again.read] == [2]
    assert counts(Run(again)) == [(0, 3), (1, 3), (2, 3)]


@pytest.mark.slow
def test_a_store_that_another_process_changes_meanwhile(tmp_path: Path) -> None:
    """The first one has read rank 0 when a second one has read and listed both: nothing is lost or read in vain."""
    write_rank(tmp_path, 0)
    inner: list[int] = []

    def second(path: Path, read: int, doing: str) -> None:
        if not inner:
            inner.append(1)
            write_rank(tmp_path, 1)
            inner.extend(entry.rank for entry in ingest([tmp_path]).read)

    outer = ingest([tmp_path], progress=IngestProgress(advance=second))
    assert inner == [1, 0, 1]
    assert counts(Run(outer)) == [(0, 3), (1, 3)] == counts(Run(ingest([tmp_path])))
    assert ingest([tmp_path]).read == ()
    assert [path.name for path in outer.store.glob("incoming-*")] == []
    assert len(list(outer.store.glob("rank=*/segment=*/*"))) == 2


def test_of_two_that_read_a_fresh_run_the_second_keeps_the_segments_of_the_first(tmp_path: Path) -> None:
    """The first has opened them: it would not find its tables any more."""
    for rank in range(2):
        write_rank(tmp_path, rank)
    first: list[Run] = []

    def read_by_another(path: Path, read: int, doing: str) -> None:
        if not first:
            first.append(Run(ingest([tmp_path])))

    second = Run(ingest([tmp_path], progress=IngestProgress(advance=read_by_another)))
    assert second.segments == first[0].segments and second.ingested.read == ()
    assert counts(first[0]) == counts(second) == [(0, 3), (1, 3)]
    assert not list(second.store.glob("incoming-*"))
    assert len(list(second.store.glob("rank=*/segment=*/*"))) == 2


@pytest.mark.slow
def test_eight_pairs_at_the_same_moment(tmp_path: Path) -> None:
    def opened(folder: Path, together: Barrier) -> list[tuple[int, int]]:
        together.wait()
        return counts(Run(ingest([folder])))

    with ThreadPoolExecutor(2) as pool:
        for number in range(8):
            folder = write_rank(write_rank(tmp_path / str(number), 0).parent, 1).parent
            together = Barrier(2)
            pair = [pool.submit(opened, folder, together) for _ in range(2)]
            assert [one.result() for one in pair] == [[(0, 3), (1, 3)]] * 2


@pytest.mark.slow
def test_tables_that_are_replaced_stay_while_they_are_read(tmp_path: Path) -> None:
    write_rank(tmp_path, 0)
    reader = Run(ingest([tmp_path]))
    write_rank(tmp_path, 0, events=4)
    assert counts(Run(ingest([tmp_path]))) == [(0, 4)]
    assert counts(Run(ingest([tmp_path]))) == [(0, 4)]
    assert counts(reader) == [(0, 3)]
    store = reader.store
    assert len(list(store.glob("rank=*/segment=*/*"))) == 2
    del reader
    gc.collect()
    assert counts(Run(ingest([tmp_path]))) == [(0, 4)]
    assert len(list(store.glob("rank=*/segment=*/*"))) == 1 and not list(store.glob("incoming-*"))


def test_ctrl_c_while_segments_are_put_in_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was moved but is not listed, and what was to be removed, goes at the next opening."""
    write_rank(tmp_path, 0)
    store = ingest([tmp_path]).store
    write_rank(tmp_path, 0, events=4)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("rankscope.store.ingest.clean", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ingest([tmp_path])
    assert len(list(store.glob("rank=*/segment=*/*"))) == 2
    assert counts(Run(ingest([tmp_path]))) == [(0, 4)]
    assert len(list(store.glob("rank=*/segment=*/*"))) == 1 and not list(store.glob("incoming-*"))


@pytest.mark.slow
def test_what_was_read_before_another_process_listed_other_files_is_used(tmp_path: Path) -> None:
    write_rank(tmp_path, 0)
    aside = tmp_path / "aside.kept"

    begun: list[int] = []

    def second(files: int, total_bytes: int) -> None:
        begun.append(files)
        (tmp_path / "rank-0.json").rename(aside)
        write_rank(tmp_path, 1)
        ingest([tmp_path])
        aside.rename(tmp_path / "rank-0.json")

    outer = ingest([tmp_path], progress=IngestProgress(begin=second))
    assert begun == [1]
    assert counts(Run(outer)) == [(0, 3), (1, 3)]


ALL_ERRORS = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RankscopeError)
]


@pytest.mark.parametrize("kind", ALL_ERRORS)
def test_errors_cross_processes_with_their_type(kind: type[RankscopeError]) -> None:
    error = error_from_json(error_to_json(kind("what", "why", "hint")))
    assert type(error) is kind and str(error) == str(kind("what", "why", "hint"))


@pytest.mark.slow
def test_the_error_of_a_worker_keeps_its_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_SMALL_BYTES", 0)  # files this small are not given to workers
    write_rank(tmp_path, 0)
    (tmp_path / "rank-1.trace.json").write_text('{"schemaVersion": 1, "no": "events"}')
    ingested = ingest([tmp_path])
    assert counts(Run(ingested)) == [(0, 3)]
    assert [type(problem) for problem in ingested.problems] == [NotATraceError]


def test_a_failure_of_a_reader_is_the_failure_of_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process as in a worker."""
    write_rank(tmp_path, 0)
    write_rank(tmp_path, 1)
    original = KinetoReader.open

    def fails(self: KinetoReader, path: Path, part: str = "") -> object:
        if path.name == "rank-1.json":
            raise KeyError("a bug")
        return original(self, path, part)

    monkeypatch.setattr(KinetoReader, "open", fails)
    ingested = ingest([tmp_path])
    assert counts(Run(ingested)) == [(0, 3)]
    assert "KeyError: 'a bug'" in ingested.problems[0].why and ingested.problems[0].hint


def test_a_store_can_be_deleted_while_it_is_written(tmp_path: Path) -> None:
    write_rank(tmp_path, 0)
    with pytest.raises(RankscopeError, match="cannot"):
        ingest(
            [tmp_path],
            progress=IngestProgress(begin=lambda files, size: shutil.rmtree(tmp_path / ".rankscope")),
        )
    assert counts(Run(ingest([tmp_path]))) == [(0, 3)]
