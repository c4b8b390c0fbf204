"""The benchmark as a whole: what fails does not stop the rest, the gate's exit code, which parts of the table stay."""

from __future__ import annotations

import json
import math
import platform
import time
from pathlib import Path

import pytest

import bench
import figures
from figures import JSON_LOAD, OURS, Figures, Part, Row
from measure import Cost

OPTIONS = bench.Options(("10MB",), Path("none"), 1, 10.0, None, None, peers=False)


THIS_MACHINE = {"CPU": bench.cpu(), "Python": platform.python_version()}


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
    monkeypatch.setattr(bench, "SCALING", tmp_path / "scaling.json")
    monkeypatch.setattr(bench, "SCALE_PAGE", tmp_path / "scale.md")
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
    part = bench.empty_part("read")
    bench.measure_part(part, OPTIONS)
    assert part.rows == []
    assert part.notes[0].startswith("not complete: ")


@pytest.mark.parametrize(("cpu", "strict", "code"), [(1.0, True, 0), (1.2, False, 0), (1.2, True, 1)])
def test_the_gate_fails_only_when_it_is_strict(
    last: Path, monkeypatch: pytest.MonkeyPatch, cpu: float, strict: bool, code: int
) -> None:
    monkeypatch.setattr(bench, "measure_part", lambda part, _: part.rows.extend(read_part(cpu).rows))
    figures.save(Figures(THIS_MACHINE, {"read": read_part(1.0)}), last)
    assert bench.check(OPTIONS, strict) == code


def test_a_warning_on_a_busy_machine_says_so(
    last: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure_part(part: Part, options: bench.Options) -> None:
        part.rows, part.load_before = read_part(1.2).rows, 1000.0

    monkeypatch.setattr(bench, "measure_part", measure_part)
    figures.save(Figures(THIS_MACHINE, {"read": read_part(1.0)}), last)
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
    page = bench.PAGE.read_text(encoding="utf-8")
    for path in (bench.LAST, bench.SCALING):
        assert not path.exists() or figures.markdown(figures.load(path)) in page


def test_another_python_is_not_judged_by_json_load(last: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its speed differs threefold between Pythons; the scanner's does not."""
    monkeypatch.setattr(bench, "measure_part", lambda part, _: part.rows.extend(read_part(2.0).rows))
    figures.save(Figures({**THIS_MACHINE, "Python": "3.1"}, {"read": read_part(1.0)}), last)
    assert bench.check(OPTIONS, strict=True) == 0
    assert figures.slower(read_part(1.0), read_part(2.0))


def test_figures_are_saved_row_by_row_and_nothing_starts_when_the_time_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, saved = tmp_path / "figures.json", []

    def measure(measured: bench.Bench) -> None:
        measured.run("first", "input", ["true"])
        saved.append([row["program"] for row in json.loads(target.read_text())["parts"]["read"]["rows"]])
        measured.options = bench.Options(None, Path("none"), 1, 10.0, None, None, deadline=time.monotonic())
        measured.run("second", "input", ["touch", tmp_path / "started"])

    monkeypatch.setitem(bench.PARTS, "read", bench.Kind("A whole trace", OURS, measure))
    monkeypatch.setattr(bench, "machine", lambda _: {"cores": "2"})
    now = bench.measure_parts(["read"], OPTIONS, target)
    assert saved == [["first"]]
    assert now.parts["read"].notes == ["not complete: the time was spent"]
    assert not (tmp_path / "started").exists()
    assert figures.load(target).parts["read"].notes == now.parts["read"].notes


def test_a_missing_package_does_not_stop_the_description_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.metadata.distributions", lambda: iter(()))
    monkeypatch.setattr("shutil.which", lambda _: None)
    described = bench.machine(bench.Options(None, Path("none"), 1, math.inf, None, None))
    assert "duckdb of unknown version" in described["rankscope"]
    assert platform.machine() in described["CPU"]
