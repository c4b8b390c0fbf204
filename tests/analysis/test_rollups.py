"""Rollups: the same answers as from events, made again when they do not fit, and harmless when they are damaged."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import open_trace
from rankscope.analysis import REPORTS
from rankscope.analysis.core import rollups
from rankscope.analysis.core.rollups import rollup_use
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.critical_path import scenarios
from rankscope.analysis.critical_path.whatif import whatif
from rankscope.analysis.rollups import keep_rollups
from rankscope.cli import main
from rankscope.store import derived
from rankscope.store.derived import path_of
from rankscope.store.ingest import Options
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope_bench.synthetic import Plan, Straggler, write

pytestmark = pytest.mark.slow

PLAN = Plan(ranks=3, events_per_rank=1_500, steps=3, straggler=Straggler(1, "host", 3_000_000))

GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
WITHOUT_STORE = shutil.ignore_patterns(".rankscope")


@pytest.fixture
def of_several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank is read alone."""
    monkeypatch.setattr(rollups, "_CHUNK_EVENTS", 1)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    write(PLAN, folder)
    return folder


def path(run: Run, name: str = "breakdown") -> Path:
    return path_of(run.store, name)


def rows(run: Run, name: str = "breakdown") -> dict[int, int]:
    """By rank, the keys of the rows of a table."""
    return {rank: key for rank, (key, _) in rollups._specs[name].table.rows(run.store).items()}


def make_all(run: Run) -> None:
    rollups.Rollups(run).add([rollups.make(run, run.ranks, Scope())])


def opened(run: Run, *patterns: str, **options: Any) -> Run:
    """The same store opened anew."""
    return Run(run.ingested, patterns, **options)


def answers(run: Run, scope: Scope | None = None) -> dict[str, Any]:
    """All that every report says."""
    found = {}
    for name, report in REPORTS.items():
        for by in (None, *report.keys):
            result = report.analyse(run, scope or Scope(), by)
            found[f"{name} {by}"] = (
                result.title,
                [dict(row) for row in result.rows],
                result.findings,
                result.notes,
                result.facts,
            )
    return found


def check_same(run: Run) -> None:
    expected = answers(opened(run, from_events=True))
    for _ in ("made", "read"):
        again = opened(run)
        assert answers(again) == expected
        assert rollup_use(again).from_rollups == set(run.ranks)
    assert {*rows(run)} == {*run.ranks}


@pytest.mark.thorough
def test_a_synthetic_run_has_the_same_answers(traces: Path, tmp_path: Path) -> None:
    check_same(open_trace(shutil.copytree(traces, tmp_path / "run", ignore=WITHOUT_STORE)))


@pytest.mark.parametrize("name", ["gpt-h200-stack", "ddp-gloo4"])
def test_recorded_runs_have_the_same_answers(
    name: str, dataset: Callable[[str], Path], tmp_path: Path
) -> None:
    check_same(Run(ingest([dataset(name)], Options(cache=tmp_path))))


@pytest.fixture(scope="module")
def mixed(dataset: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ranks 1 and 3 have no GPU events."""
    folder = tmp_path_factory.mktemp("mixed")
    for number, file in enumerate(sorted(dataset("ddp-gloo4").glob("*.json.gz"))):
        trace = json.loads(gzip.decompress(file.read_bytes()))
        if number % 2:
            events = trace["traceEvents"]
            trace["traceEvents"] = [one for one in events if one.get("cat") not in GPU_CATEGORIES]
        (folder / file.name.removesuffix(".gz")).write_text(json.dumps(trace))
    return folder


@pytest.mark.slow
@pytest.mark.thorough
def test_records_do_not_depend_on_how_ranks_are_grouped(mixed: Path, tmp_path: Path) -> None:
    run = Run(ingest([mixed], Options(cache=tmp_path)))
    together = rollups.make(run, run.ranks, Scope())
    for groups in ([[0], [1], [2], [3]], [[0, 2], [1, 3]], [[0, 1], [2, 3]]):
        parts = [rollups.make(run, group, Scope()) for group in groups]
        for name, records in together.items():
            apart = {rank: record for part in parts for rank, record in part[name].items()}
            written = []
            for each in (records, {rank: apart[rank] for rank in records}):
                rollups.write_part({name: each}, tmp_path / "part")
                written.append(path_of(tmp_path / "part", name).read_bytes())
            assert written[0] == written[1], (name, groups)


@pytest.mark.slow
def test_ranks_without_gpu_events_have_the_same_answers(mixed: Path, tmp_path: Path) -> None:
    run = Run(ingest([mixed], Options(cache=tmp_path)))
    reports = ("breakdown", "stragglers", "critical", "findings")
    expected, again = opened(run, from_events=True), opened(run)
    for name in reports:
        theirs, ours = (REPORTS[name].analyse(each, Scope(), None) for each in (expected, again))
        assert ours.rows == theirs.rows and ours.findings == theirs.findings, name
    changes = [scenarios.rank_at_median(rank) for rank in run.ranks]
    assert whatif(again, Scope(), changes).rows == whatif(expected, Scope(), changes).rows
    assert rollup_use(again).from_rollups == set(run.ranks)


@pytest.fixture(scope="module")
def store(traces: Path) -> Path:
    """A run with a store that has rollups."""
    run = open_trace(traces)
    make_all(run)
    return traces


@pytest.fixture
def run(store: Path, tmp_path: Path) -> Run:
    """A copy of it."""
    run = open_trace(shutil.copytree(store, tmp_path, dirs_exist_ok=True))
    assert {*rows(run)} == {0, 1, 2}
    return run


def steps_of(run: Run) -> Any:
    return REPORTS["breakdown"].analyse(run, Scope(), None).rows


@pytest.mark.parametrize("damage", ["a byte", "cut off", "empty", "foreign", "another length"])
def test_a_damaged_or_foreign_file_is_made_again(run: Run, damage: str) -> None:
    whole = path(run).read_bytes()
    expected = steps_of(opened(run, from_events=True))
    other = {
        "a byte": whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:],
        "cut off": whole[: len(whole) // 2],
        "empty": b"",
        "foreign": b'{"columns": []}\n',
        "another length": whole + bytes(8),
    }
    path(run).write_bytes(other[damage])
    assert rows(run) == {}
    assert steps_of(run) == expected
    assert path(run).read_bytes() == whole


def test_other_code_computes_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path(run).read_bytes()
    expected = steps_of(opened(run, from_events=True))
    monkeypatch.setattr(derived, "code_fingerprint", lambda: "of another version")
    assert rows(run) == {}
    assert steps_of(run) == expected
    assert path(run).read_bytes() != before
    assert {*rows(run)} == {0, 1, 2}


@pytest.mark.parametrize(
    ("scope", "options", "reason"),
    [
        (Scope(steps=(1, 1)), {}, "--steps"),
        (Scope(whole_file=True), {}, "--window file"),
        (Scope(), {"from_events": True}, "--from-events"),
        (Scope(), {"comm_patterns": ("gemm",)}, "--comm-pattern"),
    ],
)
def test_another_question_is_answered_from_events(
    run: Run, scope: Scope, options: dict[str, Any], reason: str
) -> None:
    asked = Run(run.ingested, **options)
    REPORTS["summary"].analyse(asked, scope, None)
    assert rollup_use(asked).read[reason] == {0, 1, 2}
    assert f"({reason})" in str(rollup_use(asked))


def test_a_rank_that_is_read_again_or_is_gone(run: Run, tmp_path: Path) -> None:
    traces = sorted(tmp_path.glob("*.json*"))
    os.utime(traces[0], (0, 0))
    again = open_trace(tmp_path)
    assert again.ingested.read
    before = rows(run)
    assert steps_of(again) == steps_of(opened(again, from_events=True))
    changed = [rank for rank, key in rows(run).items() if key != before[rank]]
    assert len(changed) == 1
    traces[2].unlink()
    left = Run(ingest(traces[:2], Options(output=tmp_path)))
    assert left.store == run.store
    assert steps_of(left) == steps_of(opened(left, from_events=True))
    assert rollup_use(left).from_rollups == {*left.ranks}
    assert {*rows(run)} == {0, 1, 2}, "nothing was missing, nothing is written"


def without_first_rank(run: Run) -> None:
    for spec in rollups._specs.values():
        kept = spec.table.rows(run.store)
        spec.table.write(run.store, {rank: row for rank, row in kept.items() if rank})


def test_a_store_that_cannot_be_written_to(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    without_first_rank(run)
    monkeypatch.setattr(Run, "keeps_results", False)
    assert steps_of(run) == steps_of(opened(run, from_events=True))
    assert {*rows(run)} == {1, 2}


@pytest.mark.parametrize("several", [False, True])
def test_what_is_missing_is_made(run: Run, several: bool, request: pytest.FixtureRequest) -> None:
    if several:
        request.getfixturevalue("of_several_chunks")
    without_first_rank(run)
    assert steps_of(run) == steps_of(opened(run, from_events=True))
    assert {*rows(run)} == {0, 1, 2}
    assert {*rows(run, "kernels")} == ({0, 1, 2} if several else {1, 2}), (
        "events are read once for all functions"
    )


def test_what_is_made_is_written_when_the_rest_fails(run: Run) -> None:
    without_first_rank(run)

    def parts() -> Iterator[rollups.Records]:
        yield rollups.make(run, [0], Scope())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rollups.Rollups(run).add(parts())
    assert {*rows(run)} == {0, 1, 2}


def test_made_when_ranks_are_read(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_several_chunks: None
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(
        "rankscope.analysis.rollups.run_calls",
        lambda tasks, jobs: [(key, task.function(**task.arguments)) for key, task in tasks.items()],
    )
    run = open_trace(shutil.copytree(traces, tmp_path / "run", ignore=WITHOUT_STORE))
    keep_rollups(run, 2, lambda done, ranks: calls.append((done, ranks)), calls.append)
    assert calls == [(1, 3), (2, 3), (3, 3)]
    assert {*rows(run)} == {0, 1, 2}
    names = {each.stem for each in path(run).parent.iterdir()}
    assert names == {*rollups._specs, "clocks", "collectives"}, "nothing is left of the parts"
    steps_of(run)
    assert str(rollup_use(run)) == "from rollups: 3 of 3 ranks"


def test_what_was_made_by_other_code_is_made_for_all_ranks_at_once(
    traces: Path, tmp_path: Path, of_several_chunks: None
) -> None:
    """Else each report makes its own, in one process."""
    run = Run(ingest([traces], Options(cache=tmp_path)))
    keep_rollups(run, 2, lambda done, ranks: None, lambda text: None)
    kept = {file.name for file in (run.store / derived.FOLDER).iterdir()}
    shutil.rmtree(run.store / derived.FOLDER)
    again, done = Run(ingest([traces], Options(cache=tmp_path))), list[tuple[int, int]]()
    assert not again.ingested.read and rollups.not_kept(again) == {0, 1, 2}
    keep_rollups(again, 2, lambda ranks, of: done.append((ranks, of)), lambda text: None)
    assert {file.name for file in (run.store / derived.FOLDER).iterdir()} == kept
    assert done[-1] == (3, 3) and not rollups.not_kept(opened(again))


def test_stats_says_what_it_used(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["stats", str(tmp_path), "-v", "-r", "steps"])
    assert capsys.readouterr().err.endswith("rankscope: from rollups: 3 of 3 ranks\n")
    main(["stats", str(tmp_path), "-v", "-r", "steps", "--from-events"])
    assert capsys.readouterr().err.endswith("rankscope: from events: all 3 ranks (--from-events)\n")
