"""A question that is asked again: the same answer, from what the store keeps, until anything it rests on changes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import DATA, kernel_event, slice_event, write_kineto
from rankscope.analysis import REPORTS
from rankscope.analysis.core.kept_answers import from_json, to_json
from rankscope.analysis.core.result import Note
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.health.doubts import doubts
from rankscope.cli import main
from rankscope.cli import stats as stats_command
from rankscope.store.derived import ANSWERS, path_of

PROGRAM = """
import sys
from rankscope.cli import main
code = main(sys.argv[1:])
print(*sys.modules)
"""
QUESTIONS = (
    (), ("--format", "json"), ("--format", "csv"), ("-r", "kernels,idle"), ("-r", "findings", "--format", "markdown"),
    ("-r", "steps", "--top", "2"),
)  # fmt: skip


def _write(folder: Path, kernel_us: float = 60, ranks: int = 2) -> Path:
    for rank in range(ranks):
        events = [
            slice_event(f"ProfilerStep#{step}", step * 100, 90, cat="user_annotation") for step in range(4)
        ]
        events += [kernel_event("gemm", step * 100 + 5, kernel_us + rank, step) for step in range(4)]
        info = {"backend": "nccl", "rank": rank, "world_size": ranks}
        write_kineto(folder / f"rank-{rank}.pt.trace.json", events, distributedInfo=info)
    return folder


def _asked(capsys: pytest.CaptureFixture[str], *words: Any) -> str:
    assert main(["stats", *map(str, words), "-q"]) == 0
    return capsys.readouterr().out


@pytest.fixture
def no_analysis(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From now on nothing can be computed."""

    def refuse() -> None:
        for name in ("_screen_parts", "_answer"):
            monkeypatch.setattr(stats_command, name, None)

    return refuse


@pytest.mark.slow
def test_the_second_answer_is_the_first(
    tmp_path: Path, without_workers: None, capsys: pytest.CaptureFixture[str], no_analysis: Callable[[], None]
) -> None:
    run = _write(tmp_path / "run")
    first = [_asked(capsys, run, *words) for words in QUESTIONS]
    no_analysis()
    assert [_asked(capsys, run, *words) for words in QUESTIONS] == first
    for words in (
        ("-r", "overlap"),
        ("--ranks", "0"),
        ("--steps", "1"),
        ("-r", "steps", "--clocks", "raw"),
        ("--top", "1"),
    ):
        assert main(["stats", str(run), "-q", *words]) != 0, "another question: it cannot be answered now"


@pytest.mark.slow
def test_a_change_is_noticed(
    tmp_path: Path, without_workers: None, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _write(tmp_path / "run")
    first = _asked(capsys, run)
    same = tmp_path / "cpy"  # as long a name: lines break alike
    shutil.copytree(run, same)
    _write(run, kernel_us=30)
    second = _asked(capsys, run)
    assert second != first
    (run / "rank-1.pt.trace.json").unlink()
    shutil.rmtree(run / ".rankscope" / "rank=00001")
    _write(run, kernel_us=30, ranks=1)
    assert "1 rank," in _asked(capsys, run)
    path = path_of(same / ".rankscope", ANSWERS)
    path.write_bytes(path.read_bytes().replace(b"60", b"61"))
    assert _asked(capsys, same).replace("/cpy", "/run") == first


def test_telemetry_is_read_anew(
    tmp_path: Path, without_workers: None, capsys: pytest.CaptureFixture[str], no_analysis: Callable[[], None]
) -> None:
    run = _write(tmp_path / "run")
    _asked(capsys, run)
    (run / "telemetry").mkdir()
    no_analysis()
    assert main(["stats", str(run), "-q"]) != 0


@pytest.mark.slow
def test_it_needs_no_library(tmp_path: Path) -> None:
    run = _write(tmp_path / "run")
    for _ in range(2):
        command = [sys.executable, "-c", PROGRAM, "stats", str(run), "-q"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "rankscope.analysis.core.kept_answers" in loaded
    assert not loaded & {"numpy", "duckdb", "rankscope.analysis.questions", "rankscope.readers.kineto"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt-h200", "seqpar-gloo4-slow2"])
def test_every_result_comes_back(name: str, open_real: Callable[[Path], Any]) -> None:
    run = open_real(DATA / name)
    values = [report.analyse(run, Scope(), None) for report in REPORTS.values()]
    for value in (*values, doubts(run, Scope())):
        back = from_json(json.loads(json.dumps(to_json(value))))
        assert back == value
        notes = getattr(value, "notes", ())
        assert [getattr(note, "kind", None) for note in getattr(back, "notes", ())] == [
            getattr(note, "kind", None) for note in notes
        ]
    assert any(isinstance(note, Note) for value in values for note in value.notes)


def test_values_of_other_types_are_not_kept() -> None:
    assert from_json(to_json({1: (np.int64(2), [None, "a"]), "b": {}})) == {1: (2, [None, "a"]), "b": {}}
    with pytest.raises(TypeError):
        to_json({"x": object()})


@pytest.mark.slow
def test_damage_is_found_by_who_reads_the_tables(
    tmp_path: Path, without_workers: None, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _write(tmp_path / "run")
    first, steps = _asked(capsys, run), _asked(capsys, run, "-r", "steps")
    (table,) = run.glob(".rankscope/rank=00001/*/*/gpu.parquet")
    table.write_bytes(table.read_bytes()[::-1])
    assert (_asked(capsys, run), _asked(capsys, run, "-r", "steps")) == (first, steps)
    assert main(["stats", str(run), "-r", "kernels"]) == 0
    assert "damaged at rank 1" in capsys.readouterr().err
