"""Nsight Compute: both pages of its csv, every spelling of a unit, reports through ncu or its module, damage."""

from __future__ import annotations

import csv
import io
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import DATA, open_trace
from rankscope import tools
from rankscope.analysis import REPORTS
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.efficiency.hot_kernels import hot_kernels
from rankscope.analysis.efficiency.ncu import measured_kernels
from rankscope.capture.ncu_selection import BY_SIZE, Selection
from rankscope.cli import main
from rankscope.errors import ReadError
from rankscope.readers.ncu import base_value
from rankscope.store.ingest import Options
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

pytestmark = pytest.mark.usefixtures("without_workers")

_INSTALLED = Path(sys.prefix) / "nsight" / "bin" / "ncu"  # tests/integration/install-nsight.sh
REAL_NCU = str(_INSTALLED) if _INSTALLED.exists() else shutil.which("ncu")
ABOUT = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size"]
ABOUT += ["Grid Size", "Device", "CC"]
ROW = ["0", "7", "python", "host", "gemm, the <1> kernel", "1", "7", "(384, 1, 1)", "(2, 66, 1)", "0", "9.0"]


def raw_page(metrics: dict[str, tuple[str, str]], rows: int = 1) -> str:
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow([*ABOUT, *metrics])
    writer.writerow([*([""] * len(ABOUT)), *(unit for unit, _ in metrics.values())])
    for number in range(rows):
        writer.writerow([str(number), *ROW[1:], *(value for _, value in metrics.values())])
    return out.getvalue()


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        ("75.680000", "us", (75680.0, "ns")),
        ("75.680000", "usecond", (75680.0, "ns")),
        ("1,234.5", "msecond", (1_234_500_000.0, "ns")),
        ("2", "s", (2e9, "ns")),
        ("12", "nsecond", (12.0, "ns")),
        ("0.887340", "Tbyte/s", (887_340_000_000.0, "byte/s")),
        ("0.887340", "Tbyte/second", (887_340_000_000.0, "byte/s")),
        ("887,340,380,549.68", "byte/second", (887_340_380_549.68, "byte/s")),
        ("233.472", "Kbyte", (233_472.0, "byte")),
        ("1", "Mibyte", (1_048_576.0, "byte")),
        ("213.188", "Kbyte/block", (213_188.0, "byte/block")),
        ("1.639", "Ghz", (1_639_000_000.0, "hz")),
        ("1.639", "cycle/nsecond", (1_639_000_000.0, "hz")),
        ("349.5", "cycle/usecond", (349_500_000.0, "hz")),
        ("681020.184355", "/nsecond", (681_020_184_355_000.0, "/s")),
        ("62.80", "%", (62.8, "%")),
        ("51,539,607,552", "", (51_539_607_552.0, "")),
        ("5 (1; 2; 2)", "inst", (5.0, "inst")),
        ("CachePreferNone", "", (None, "")),
        ("2x", "", (None, "")),
        ("", "%", (None, "%")),
    ],
)
def test_units(text: str, unit: str, expected: tuple[float | None, str]) -> None:
    value, base = base_value(text, unit)
    assert value == pytest.approx(expected[0]) and base == expected[1]


@pytest.mark.slow
def test_a_kernel_of_the_raw_page(tmp_path: Path) -> None:
    metrics = {
        "gpu__time_duration.sum": ("msecond", "1,000.5"),
        "dram__bytes_read.sum": ("Gbyte", "1.5"),
        "dram__bytes_write.sum": ("Mbyte", "500"),
        "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": ("inst", "1,000"),
        "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum": ("inst", "10"),
        "smsp__sass_thread_inst_executed_op_hfma_pred_on.sum": ("inst", "3"),
        "sm__ops_path_tensor_src_fp16.sum": ("", "5"),
        "sm__ops_path_tensor_src_int8.sum": ("", "1,000,000"),
        "sm__ops_path_tensor_op_hmma_src_fp16_dst_fp16_sparsity_off.sum": ("", "5"),
        "sm__warps_active.avg.pct_of_peak_sustained_active": ("%", "18.5"),
        "launch__func_cache_config": ("", "CachePreferNone"),
    }
    path = tmp_path / "rank-3.csv"
    path.write_text("==PROF== Connected to process 7\nstep 1, loss 2.5\n" + raw_page(metrics))
    run = open_trace(path)
    (kernel,) = measured_kernels(run, Scope())
    assert (kernel.rank, kernel.name, kernel.grid, kernel.block) == (
        3,
        "gemm, the <1> kernel",
        (2, 66, 1),
        (384, 1, 1),
    )
    assert kernel.duration_ns == 1_000_500_000
    assert kernel.dram_bytes == 2e9
    assert kernel.flops_by_type == {
        "fp16": 5 + 12,
        "fp32": 2010,
    }  # the op_ metrics repeat the others; int8 is no FLOP
    assert kernel.dtype == "fp32"
    assert kernel.shares == {"occupancy_pct": 18.5}
    assert run.rows("SELECT value, text FROM ncu_metrics WHERE metric = 'launch__func_cache_config'") == [
        (None, "CachePreferNone")
    ]
    assert run.rows("SELECT count(*) FROM events UNION ALL SELECT count(*) FROM slices") == [(0,), (0,)]


@pytest.mark.slow
def test_launches_with_the_same_work_are_one_point(tmp_path: Path) -> None:
    metrics = {
        "gpu__time_duration.sum": ("us", "2"),
        "dram__bytes.sum.per_second": ("Gbyte/s", "500"),
        "sm__ops_path_tensor_src_bf16_dst_fp32.sum.per_cycle_elapsed": ("/cycle", "1000"),
        "sm__cycles_elapsed.avg": ("cycle", "3,000"),
    }
    path = tmp_path / "a.csv"
    path.write_text(raw_page(metrics, rows=4))
    (row,) = REPORTS["roofline"].analyse(open_trace(path), Scope(), None).rows
    figures = [row[name] for name in ("calls", "flops", "bytes", "device_ns", "dtype")]
    assert figures == [4, 12_000_000, 4_000_000, 8000, "bfloat16"]


@pytest.mark.parametrize(
    "metrics",
    [
        {},
        {"launch__func_cache_config": ("", "")},
        {"sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "1")},
    ],
)
def test_a_row_without_a_metric(metrics: dict[str, tuple[str, str]], tmp_path: Path) -> None:
    """As with a set of sections that measures nothing, or a page of a launch that was not profiled to its end."""
    path = tmp_path / "a.csv"
    path.write_text(raw_page(metrics))
    run = open_trace(path)
    (kernel,) = measured_kernels(run, Scope())
    assert (kernel.duration_ns, kernel.dram_bytes, kernel.flops_by_type) == (None, None, {})
    for report in REPORTS.values():
        report.analyse(run, Scope(), None)


@pytest.mark.slow
def test_a_run_without_reports_says_how_to_make_one(tmp_path: Path) -> None:
    from conftest import slice_event, write_kineto

    run = open_trace(write_kineto(tmp_path / "rank-0.json", [slice_event("aten::mm", 1, 2)]))
    result = REPORTS["ncu"].analyse(run, Scope(), None)
    assert result.rows == () and any("--tool ncu" in note for note in result.notes)


@pytest.mark.thorough
def test_the_real_report_by_either_way(
    dataset: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if REAL_NCU is None:
        pytest.skip("the real ncu is not installed (tests/integration/install-nsight.sh)")
    monkeypatch.setenv(tools.NCU_VARIABLE, REAL_NCU)
    opened = [
        Run(ingest([dataset(f"ncu/{name}")], Options(cache=tmp_path)))
        for name in ("gemm_bf16.raw.csv", "gemm_bf16.ncu-rep")
    ]
    from_csv, from_report = (measured_kernels(run, Scope()) for run in opened)
    assert len(from_csv) == len(from_report) == 4
    for ours, theirs in zip(from_csv, from_report, strict=True):
        assert (ours.name, ours.grid, ours.block) == (theirs.name, theirs.grid, theirs.block)
        assert ours.duration_ns == theirs.duration_ns
        assert ours.flops == pytest.approx(theirs.flops, rel=1e-8)  # the csv is rounded to six digits
        assert ours.dram_bytes == pytest.approx(theirs.dram_bytes, rel=2e-6)
        assert ours.dtype == theirs.dtype == "bf16"
    tensor = [kernel.flops_by_type["bf16"] for kernel in from_csv]
    assert tensor == [51_539_607_552, 17_179_869_184, 68_719_476_736, 68_719_476_736]


@pytest.mark.slow
def test_the_launches_of_a_real_report(dataset: Callable[[str], Path]) -> None:
    name = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_bias_TNT"
    page = dataset("ncu/gemm_bf16.raw.csv").read_text()
    expected = [tools.Launch(name, (2, 66, 1), (384, 1, 1))] * 4
    assert tools.read_ncu_launches(page) == expected
    assert tools.read_ncu_launches("no page") == []


@pytest.mark.thorough
def test_the_real_ncu_lists_the_launches(dataset: Callable[[str], Path]) -> None:
    if REAL_NCU is None:
        pytest.skip("no real ncu")
    page = dataset("ncu/gemm_bf16.raw.csv").read_text()
    ncu = tools.find_tool("ncu", REAL_NCU)
    assert tools.ncu_launches(ncu, dataset("ncu/gemm_bf16.ncu-rep")) == tools.read_ncu_launches(page)
    assert tools.ncu_counts_by_size(REAL_NCU)


@pytest.mark.thorough
@pytest.mark.parametrize("whole", [True, False])
def test_the_real_ncu_accepts_the_filter(
    whole: bool, open_real: Callable[[Path], Run], tmp_path: Path
) -> None:
    """Without a GPU it goes no further than its options, which it checks first."""
    if REAL_NCU is None:
        pytest.skip("no real ncu")
    [trace] = (DATA / "hf-trainer-h200").glob("*.json.gz")
    kernels = hot_kernels(open_real(trace), 20).kernels
    selection = Selection(kernels, 1, whole_names=whole, by_size=True, skip=1, take=1)
    options = tools.NcuOptions(
        kernels=selection.pattern,
        kernel_name_base="demangled" if whole else "function",
        launch_skip=1,
        filter_mode=BY_SIZE,
        launch_count=1,
        extra=("--set", "full", "--clock-control=none"),
    )
    words = tools.ncu_profile(REAL_NCU, options, tmp_path / "r.ncu-rep", None, ["true"])
    answer = subprocess.run(words, capture_output=True, text=True, check=False)
    for complaint in ("regex", "option", "more than once"):
        assert complaint not in answer.stdout + answer.stderr
    refused = subprocess.run(
        [REAL_NCU, "-k", "regex:^((", "true"], capture_output=True, text=True, check=False
    )
    assert "Invalid regex" in refused.stdout + refused.stderr


@pytest.mark.slow
def test_the_real_details_page(dataset: Callable[[str], Path], open_real: Callable[[Path], Run]) -> None:
    raw = measured_kernels(open_real(dataset("ncu/gemm_bf16.raw.csv")), Scope())
    details = measured_kernels(open_real(dataset("ncu/gemm_bf16.details.csv")), Scope())
    assert len(raw) == len(details) == 4
    for whole, rounded in zip(raw, details, strict=True):
        assert rounded.duration_ns == pytest.approx(whole.duration_ns, abs=5)
        for share in ("compute_pct", "memory_pct", "dram_pct"):
            assert rounded.shares[share] == pytest.approx(whole.shares[share], abs=0.005)
        assert rounded.flops is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (raw_page({"m": ("%", "1")}).split("\n")[0] + "\n", "no row of units"),
        ("\n".join(raw_page({"m": ("%", "1")}).split("\n")[::2]), "no row of units"),
        ("\n".join(raw_page({"m": ("%", "1")}).split("\n")[:2]) + "\n", "no kernel"),
        (raw_page({"m": ("%", "1")}).rsplit(",", 3)[0], "no kernel"),
    ],
)
def test_csv_that_is_cut(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "rank-0.csv"
    path.write_text(content)
    with pytest.raises(ReadError, match=says) as caught:
        ingest([path])
    assert caught.value.why and caught.value.hint


@pytest.mark.slow
def test_a_row_cut_short_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.csv"
    path.write_text(raw_page({"m": ("%", "1")}, rows=3).rsplit(",", 2)[0])
    run = open_trace(path)
    assert run.rows("SELECT count(*) FROM ncu_kernels") == [(2,)]
    assert run.rows("SELECT lost FROM segments") == [(1,)]


def test_other_csv_files_are_nobodys_problem(tmp_path: Path) -> None:
    from conftest import slice_event, write_kineto

    write_kineto(tmp_path / "rank-0.json", [slice_event("aten::mm", 1, 2)])
    (tmp_path / "rank-0.losses.csv").write_text("step,loss\n1,2.5\n")
    ingested = ingest([tmp_path])
    assert len(ingested.index.segments) == 1 and ingested.problems == ()


def fake_ncu(folder: Path, script: str) -> str:
    path = folder / "ncu"
    path.write_text(f"#!/bin/sh\n[ \"$1\" = --version ] && echo 'Version 2024.1.1.0' && exit 0\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def report_file(folder: Path) -> Path:
    path = folder / "rank-0.ncu-rep"
    path.write_bytes(b"NVR\x00" + bytes(100))
    return path


@pytest.mark.slow
def test_what_ncu_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "echo '==ERROR== Failed to load report file.'; exit 1"
    monkeypatch.setenv(tools.NCU_VARIABLE, fake_ncu(tmp_path, script))
    with pytest.raises(ReadError, match="ncu cannot read") as caught:
        ingest([report_file(tmp_path)])
    assert "2024.1.1.0: Failed to load report file." in caught.value.why
    assert "newer Nsight Compute" in caught.value.hint


@pytest.mark.thorough
def test_damaged_reports_with_the_real_ncu(
    dataset: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if REAL_NCU is None:
        pytest.skip("the real ncu is not installed (tests/integration/install-nsight.sh)")
    monkeypatch.setenv(tools.NCU_VARIABLE, REAL_NCU)
    whole = dataset("ncu/gemm_bf16.ncu-rep").read_bytes()
    for name, content in {"cut": whole[:3000], "junk": b"NVR\x00" + whole[:4] * 1000}.items():
        path = tmp_path / f"{name}.ncu-rep"
        path.write_bytes(content)
        with pytest.raises(ReadError, match="ncu cannot read"):
            ingest([path])


@pytest.fixture
def without_ncu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No ncu on PATH; Python itself must still be found by its full path."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(tools.NCU_VARIABLE, raising=False)
    yield


@pytest.mark.slow
@pytest.mark.usefixtures("without_ncu")
def test_without_ncu_the_error_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="without Nsight Compute") as caught:
        ingest([report_file(tmp_path)])
    assert "ncu --import rank-0.ncu-rep --csv --page raw" in caught.value.hint


@pytest.mark.slow
def test_far_from_both_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def metrics(time: str, compute: str, memory: str) -> dict[str, tuple[str, str]]:
        return {
            "gpu__time_duration.sum": ("us", time),
            "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", compute),
            "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": ("%", memory),
        }

    page = raw_page(metrics("100", "20", "30"))
    for name, values in {"near": ("100", "20", "80"), "short": ("1", "2", "3")}.items():
        page += raw_page(metrics(*values)).splitlines()[2].replace("gemm, the <1> kernel", name) + "\n"
    path = tmp_path / "rank-0.csv"
    path.write_text(page)
    (finding,) = REPORTS["ncu"].analyse(open_trace(path), Scope(), None).findings
    assert (finding.kind, finding.title) == ("limit", "Kernels faster: gemm, the <1> kernel")
    assert [line.partition(",")[0] for line in finding.lines] == [
        "share of the compute peak: 20 %",
        "share of the memory peak: 30 %",
        "its time: 100 µs",
        "share of the measured time: 49.8 %",
    ]
    assert finding.cost_ns == 50_000, "at 60 % of the memory peak it takes half of its 100 µs"
    assert main(["stats", str(path)]) == 0
    screen = capsys.readouterr().out
    assert "No trace, but 1 Nsight Compute report (-r ncu,roofline)." in screen
    _, table = screen.split("Duration (µs)  Compute %  Memory %  Kernel\n")
    assert [line.split()[1:4] for line in table.splitlines()[1:4]] == [
        ["20.0", "30.0", "gemm,"],
        ["20.0", "80.0", "near"],
        ["2.0", "3.0", "short"],
    ]
