"""Rollups: the same answers as from events, made again when they do not fit, and harmless when they are damaged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from conftest import open_trace
from rankscope.analysis import REPORTS
from rankscope.analysis.core import rollups
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.record_json import codec_of
from rankscope.analysis.core.rollups import rollup_use
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.rollups import keep_rollups, make_in_store
from rankscope.bench.synthetic import Plan, Straggler, write
from rankscope.cli import main
from rankscope.records import dataclass
from rankscope.store.ingest import Options
from rankscope.store.rollups import FOLDER
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

pytestmark = pytest.mark.slow

PLAN = Plan(ranks=3, events_per_rank=1_500, steps=3, straggler=Straggler(1, "host", 3_000_000))

WITHOUT_STORE = shutil.ignore_patterns(".rankscope")


@pytest.fixture(autouse=True)
def for_small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollups, "_LEAST_RANKS", 1)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    write(PLAN, folder)
    return folder


def kept(run: Run) -> list[Path]:
    return sorted((run.store / FOLDER).glob("*.json"))


def opened(run: Run, *patterns: str, **options: Any) -> Run:
    """The same store opened anew."""
    return Run(run._ingested, patterns, **options)


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
        assert rollup_use(again).kept == set(run.ranks)
    assert len(kept(run)) == len(run.ranks)


@pytest.mark.thorough
def test_a_synthetic_run_has_the_same_answers(traces: Path, tmp_path: Path) -> None:
    check_same(open_trace(shutil.copytree(traces, tmp_path / "run", ignore=WITHOUT_STORE)))


@pytest.mark.parametrize("name", ["gpt-h200-stack", "ddp-gloo4"])
def test_recorded_runs_have_the_same_answers(
    name: str, dataset: Callable[[str], Path], tmp_path: Path
) -> None:
    check_same(Run(ingest([dataset(name)], Options(cache=tmp_path))))


@pytest.fixture(scope="module")
def store(traces: Path) -> Path:
    """A run with a store that has rollups."""
    run = open_trace(traces)
    rollups.make(run, run.ranks)
    return traces


@pytest.fixture
def run(store: Path, tmp_path: Path) -> Run:
    """A copy of it."""
    run = open_trace(shutil.copytree(store, tmp_path, dirs_exist_ok=True))
    assert len(kept(run)) == 3
    return run


def steps_of(run: Run) -> Any:
    return REPORTS["breakdown"].analyse(run, Scope(), None).rows


def test_damaged_and_foreign_files_are_made_again(run: Run) -> None:
    whole = [path.read_bytes() for path in kept(run)]
    expected = steps_of(opened(run, from_events=True))
    first, second, third = kept(run)
    first.write_bytes(whole[0].replace(b"steps", b"stepz", 1))
    second.write_bytes(whole[2])
    third.write_bytes(b"")
    assert steps_of(run) == expected
    assert [path.read_bytes() for path in kept(run)] == whole


def test_a_new_version_of_a_function_is_computed_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [path.read_bytes() for path in kept(run)]
    old = rollups._kept["steps"]
    monkeypatch.setitem(
        rollups._kept, "steps", rollups._Kept("steps", 99, old.function, old.codec, old.any_window)
    )
    rollups.make(run, run.ranks)
    assert all(path.read_bytes() != text for path, text in zip(kept(run), before, strict=True))


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
    asked = Run(run._ingested, **options)
    REPORTS["summary"].analyse(asked, scope, None)
    assert rollup_use(asked).read[reason] == {0, 1, 2}
    assert f"({reason})" in str(rollup_use(asked))


def test_a_rank_that_is_read_again_or_is_gone(run: Run, tmp_path: Path) -> None:
    traces = sorted(tmp_path.glob("*.json*"))
    os.utime(traces[0], (0, 0))
    again = open_trace(tmp_path)
    assert again.newly_read
    before = [path.read_bytes() for path in kept(run)]
    assert steps_of(again) == steps_of(opened(again, from_events=True))
    changed = [path.read_bytes() != text for path, text in zip(kept(run), before, strict=True)]
    assert changed == [True, False, False]
    traces[2].unlink()
    left = Run(ingest(traces[:2], Options(output=tmp_path)))
    assert left.store == run.store
    assert len(kept(run)) == 2


def test_a_store_that_cannot_be_written_to(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(run)[0].unlink()
    monkeypatch.setattr(Run, "keeps_results", False)
    assert steps_of(run) == steps_of(opened(run, from_events=True))
    assert len(kept(run)) == 2
    assert rollup_use(run).kept == {1, 2}


def test_made_when_ranks_are_read(traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(
        "rankscope.analysis.rollups.run_calls",
        lambda tasks, jobs: [(key, make_in_store(**task.arguments)) for key, task in tasks.items()],
    )
    run = open_trace(shutil.copytree(traces, tmp_path / "run", ignore=WITHOUT_STORE))
    keep_rollups(run, 2, lambda done, ranks: calls.append((done, ranks)), calls.append)
    assert calls == [(1, 3), (2, 3), (3, 3)]
    assert len(kept(run)) == 3
    steps_of(run)
    assert str(rollup_use(run)) == "from rollups: 3 of 3 ranks"


def test_stats_says_what_it_used(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["stats", str(tmp_path), "-v", "-r", "steps"])
    assert capsys.readouterr().err.endswith("rankscope: from rollups: 3 of 3 ranks\n")
    main(["stats", str(tmp_path), "-v", "-r", "steps", "--from-events"])
    assert capsys.readouterr().err.endswith("rankscope: from events: all 3 ranks (--from-events)\n")


class Pair(NamedTuple):
    name: str
    values: Ints


@dataclass(frozen=True)
class Everything:
    number: int
    text: str | None
    pairs: tuple[Pair, ...]
    spans: tuple[tuple[int, int], ...]
    by_name: dict[str, int]
    more: dict[str, Pair]
    nothing: Pair | None


def test_records_as_json() -> None:
    values = np.array([2**62, -1], dtype=np.int64)
    record = Everything(1, None, (Pair("a", values),), ((1, 2),), {"x": 3}, {"y": Pair("b", values)}, None)
    codec = codec_of(Everything)
    back = codec.decode(codec.encode(record))
    assert back.pairs[0].name == "a" and back.pairs[0].values.tolist() == values.tolist()
    assert back.more["y"].values.tolist() == values.tolist()
    assert (back.number, back.text, back.spans, back.by_name, back.nothing) == (
        1,
        None,
        ((1, 2),),
        {"x": 3},
        None,
    )
