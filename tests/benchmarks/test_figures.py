"""The figures of a benchmark: the regression gate, the table, and the page, with made-up numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

import figures
from figures import JSON_LOAD, OURS, Figures, Part, Row
from measure import Cost


def part(ours_cpu: float, load_cpu: float, *inputs: str) -> Part:
    rows = []
    for name in inputs:
        rows.append(Row(name, OURS, Cost(ours_cpu / 2, ours_cpu, 200_000_000), 100_000_000, 300_000))
        rows.append(Row(name, JSON_LOAD, Cost(load_cpu, load_cpu, 500_000_000), 100_000_000, 300_000))
    return Part("read", "A whole trace", OURS, "2026-11-16", 0.1, 1.5, rows, ["HTA: not installed"])


def test_more_than_ten_percent_more_cpu_is_a_warning() -> None:
    (line,) = figures.slower(part(1.0, 10.0, "stacks 10MB"), part(1.2, 10.0, "stacks 10MB"))
    assert line.startswith(
        "stacks 10MB: rankscope ingest needs 0.120 of the CPU time of json.load; it was 0.100 (20 %"
    )


@pytest.mark.parametrize(
    ("ours", "load"),
    [
        (1.09, 10.0),  # within the tolerance
        (2.0, 20.0),  # a machine half as fast
        (0.5, 10.0),
    ],
)
def test_noise_and_a_slower_machine_are_no_warning(ours: float, load: float) -> None:
    assert figures.slower(part(1.0, 10.0, "stacks 10MB"), part(ours, load, "stacks 10MB")) == []


def test_only_inputs_of_both_runs_are_compared() -> None:
    last, now = part(1.0, 10.0, "stacks 10MB", "stacks 1GB"), part(3.0, 10.0, "stacks 100MB", "stacks 10MB")
    assert [line.partition(":")[0] for line in figures.slower(last, now)] == ["stacks 10MB"]


def test_a_run_without_json_load_is_not_compared() -> None:
    now = part(9.0, 10.0, "stacks 10MB")
    now.rows.pop()
    assert figures.slower(part(1.0, 10.0, "stacks 10MB"), now) == []


def test_ratios_are_to_the_base_of_the_same_input() -> None:
    ours, load = figures.cells(part(1.0, 10.0, "stacks 100MB"))
    assert ours == (
        "stacks 100MB",
        OURS,
        "0.500 s",
        "1.00 s",
        "0.20 GB",
        "200",
        "3.33 µs",
        "1.00",
        "1.00",
        "",
    )
    assert load == (
        "stacks 100MB",
        JSON_LOAD,
        "10.0 s",
        "10.0 s",
        "0.50 GB",
        "10",
        "33.33 µs",
        "20.0",
        "10.0",
        "",
    )


def test_without_its_base_a_row_has_no_ratio() -> None:
    alone = part(1.0, 10.0, "stacks 100MB")
    alone.rows.pop(0)
    assert figures.cells(alone)[0][-3:] == ("", "", "")


def test_figures_come_back_from_their_file(tmp_path: Path) -> None:
    written = Figures({"cores": "2"}, {"read": part(1.0, 10.0, "stacks 10MB")})
    figures.save(written, tmp_path / "last.json")
    assert figures.load(tmp_path / "last.json") == written


def test_the_page_is_written_between_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text("before\n<!-- measured: begin -->\nold\n<!-- measured: end -->\nafter\n")
    table = figures.markdown(Figures({"cores": "2"}, {"read": part(1.0, 10.0, "stacks 10MB")}))
    figures.write_between_markers(page, table)
    text = page.read_text()
    assert text.startswith("before\n<!-- measured: begin -->\n| machine | |")
    assert text.endswith("<!-- measured: end -->\nafter\n")
    assert "old" not in text
    assert "| stacks 10MB | json.load |" in text
    assert "Ratio 1: rankscope ingest. 2026-11-16; load 0.1 before, 1.5 after." in text
    assert "HTA: not installed." in text
    figures.write_between_markers(page, table)
    assert page.read_text() == text


def test_the_page_says_when_the_machine_was_busy() -> None:
    figures_of_two_cores = Figures({"cores": "2"}, {"read": part(1.0, 10.0, "stacks 10MB")})
    assert "rough" not in figures.markdown(figures_of_two_cores)
    figures_of_two_cores.parts["read"].load_before = 7.0
    assert "Other programs were running: these figures are rough." in figures.markdown(figures_of_two_cores)


def test_a_page_without_markers_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text("no markers")
    with pytest.raises(ValueError, match="needs the markers"):
        figures.write_between_markers(page, "new")


def grid_part(times: dict[int, float]) -> Part:
    rows = [
        Row("stacks 1GB", f"{cores} cores", Cost(seconds, 8.0, 500_000_000), 1_000_000_000, 4_000_000)
        for cores, seconds in times.items()
    ]
    rows += [Row("stacks 10MB", "1 cores", Cost(0.5, 0.4, 50_000_000), 10_000_000)]
    return Part("cores", "One file", "", rows=rows, grid=True)


def test_a_grid_has_inputs_by_size_and_programs_by_their_number() -> None:
    lines = figures.grid(grid_part({16: 1.0, 1: 8.0, 2: 4.5}))
    assert lines[0] == ("", "stacks 10MB", "stacks 1GB")
    assert [line[0] for line in lines[1:]] == ["1 cores", "2 cores", "16 cores"]
    assert lines[1][1] == "0.500 s; 0.400 s CPU; 0.05 GB"
    assert lines[3][1:] == ("", "1.00 s; 8.00 s CPU (2.00 µs an event); 0.50 GB")


@pytest.mark.parametrize("serial", [0.0, 0.5, 3.0])
def test_the_serial_part_is_that_of_amdahls_law(serial: float) -> None:
    part = grid_part({cores: serial + (8.0 - serial) / cores for cores in (1, 2, 16)})
    assert figures.serial_seconds(part, "stacks 1GB") == pytest.approx(serial)
    assert figures.serial_seconds(part, "stacks 10MB") is None


def test_the_ratio_to_the_scanner_has_a_column_where_it_was_measured() -> None:
    measured = part(1.0, 10.0, "stacks 10MB")
    assert "scanner = 1" not in "\n".join(figures.part_table(measured))
    measured.rows.append(Row("stacks 10MB", figures.SCANNER, Cost(0.4, 0.4, 1)))
    assert [line[-1] for line in figures.cells(measured)] == ["2.50", "25.0", "1.00"]
    assert figures.slower(measured, measured, references=[figures.SCANNER]) == []
