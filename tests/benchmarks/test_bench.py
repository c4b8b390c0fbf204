"""The benchmark as a whole: what fails does not stop the rest, the gate's exit code, which parts of the table stay."""

from __future__ import annotations

from pathlib import Path

import pytest

import bench
import figures
from figures import JSON_LOAD, OURS, Figures, Part, Row
from measure import Cost

OPTIONS = bench.Options(("10MB",), Path("none"), 1, 10.0, None, None, peers=False)


def read_part(ours_cpu: float) -> Part:
    rows = [Row("stacks 10MB", OURS, Cost(1, ours_cpu, 1)), Row("stacks 10MB", JSON_LOAD, Cost(1, 10, 1))]
    return Part("read", "A whole trace", OURS, rows=rows)


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark that runs at the same time keeps its own."""
    monkeypatch.setattr(bench, "STORE", tmp_path / "store")


@pytest.fixture
def last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of the test's own instead of the committed ones."""
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    monkeypatch.setattr(bench, "LAST", tmp_path / "last.json")
    monkeypatch.setattr(bench, "PAGE", tmp_path / "performance.md")
    bench.PAGE.write_text("<!-- measured: begin -->\n<!-- measured: end -->\n")
    return bench.LAST


def test_a_command_that_fails_is_a_note_and_the_next_one_is_measured() -> None:
    part = Part("read", "A whole trace", OURS)
    measured = bench.Bench(part, OPTIONS)
    measured.run("broken", "stacks 10MB", ["sh", "-c", "echo no such luck >&2; exit 1"])
    measured.run("works", "stacks 10MB", ["true"])
    assert [row.program for row in part.rows] == ["works"]
    assert part.notes == ["broken, stacks 10MB: no such luck"]


def test_a_part_that_fails_says_so() -> None:
    part = bench.measure_part("read", OPTIONS)
    assert part.rows == []
    assert part.notes[0].startswith("not complete: ")


@pytest.mark.parametrize(("cpu", "strict", "code"), [(1.0, True, 0), (1.2, False, 0), (1.2, True, 1)])
def test_the_gate_fails_only_when_it_is_strict(
    last: Path, monkeypatch: pytest.MonkeyPatch, cpu: float, strict: bool, code: int
) -> None:
    monkeypatch.setattr(bench, "measure_part", lambda *_: read_part(cpu))
    figures.save(Figures({"CPU": bench.cpu()}, {"read": read_part(1.0)}), last)
    assert bench.check(OPTIONS, strict) == code


def test_a_warning_on_a_busy_machine_says_so(
    last: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = read_part(1.2)
    now.load_before = 1000.0
    monkeypatch.setattr(bench, "measure_part", lambda *_: now)
    figures.save(Figures({"CPU": bench.cpu()}, {"read": read_part(1.0)}), last)
    bench.check(OPTIONS, strict=False)
    assert "Other programs are running (load 1000.0)" in capsys.readouterr().out


def test_nothing_to_compare_with_is_no_failure(last: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.check(OPTIONS, strict=True) == 0
    assert "--write makes it" in capsys.readouterr().out


def test_parts_that_were_not_measured_stay_if_they_are_of_this_machine(last: Path) -> None:
    other = Part("start", "A small trace", "")
    figures.save(Figures({"cores": "2"}, {"start": other, "read": read_part(9.0)}), last)
    bench.write(Figures({"cores": "2"}, {"read": read_part(1.0)}))
    assert figures.load(last).parts == {"read": read_part(1.0), "start": other}
    assert "### A small trace" in bench.PAGE.read_text()
    bench.write(Figures({"cores": "8"}, {"read": read_part(1.0)}))
    assert list(figures.load(last).parts) == ["read"]


def test_the_page_is_that_of_the_rounded_figures(last: Path) -> None:
    bench.write(Figures({"cores": "2"}, {"read": read_part(1.00049)}))
    assert figures.markdown(figures.load(last)) in bench.PAGE.read_text()


def test_the_committed_figures_are_those_of_the_page() -> None:
    assert figures.markdown(figures.load(bench.LAST)) in bench.PAGE.read_text(encoding="utf-8")
