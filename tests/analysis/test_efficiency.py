"""FLOPs, roofline, MFU: hand-made shapes, planted truths, and the known figures of real traces on an H200."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from conftest import DATA, kernel_event, open_trace, slice_event, write_kineto
from rankscope.analysis import REPORTS
from rankscope.analysis.core.machine import Machine, given_ceilings
from rankscope.analysis.core.result import Remedy, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import periods
from rankscope.analysis.efficiency.mfu import _OTHER_KERNEL, _TENSOR_CORE_KERNEL
from rankscope.analysis.questions import QUESTIONS
from rankscope.analysis.within_rank.op_work import FORMULAS, op_work, work_of
from rankscope.devices import Ceilings, find_device
from rankscope.errors import UsageError
from rankscope.model import COMPUTING_OPS
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope_bench.synthetic import Plan, write

OpenReal = Callable[[Path], Run]
BF16, FLOAT = "c10::BFloat16", "float"
H200 = [{"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150109880320}]


def report(run: Run, name: str, by: str | None = None, **scope: Any) -> Result:
    return REPORTS[name].analyse(run, Scope(**scope), by)


def work(name: str, dims: list[Any], concrete: list[str] | None = None, kind: str = BF16) -> tuple[int, int]:
    found = work_of(
        name, json.dumps(dims), json.dumps([kind if d else "" for d in dims]), json.dumps(concrete or [])
    )
    assert found is not None and found.bytes is not None
    return found.flops, found.bytes


def test_matrix_products() -> None:
    assert work("aten::mm", [[2, 3], [3, 4]]) == (48, 2 * (6 + 12 + 8))
    assert work("aten::addmm", [[4], [2, 3], [3, 4]]) == (48, 2 * (4 + 6 + 12 + 8))
    assert work("aten::bmm", [[5, 2, 3], [5, 3, 4]]) == (240, 2 * (30 + 60 + 40))
    assert work("aten::baddbmm", [[5, 2, 4], [5, 2, 3], [5, 3, 4]])[0] == 240
    assert work("aten::linear", [[7, 2, 3], [4, 3], [4]], kind=FLOAT) == (336, 4 * (42 + 12 + 4 + 56))
    assert work("aten::matmul", [[7, 2, 3], [3, 4]])[0] == 336


def test_unusable_shapes_have_no_flops() -> None:
    def unknown(name: str, dims: Any) -> bool:
        return work_of(name, json.dumps(dims), "[]", "[]") is None

    assert unknown("aten::mm", [[2, 3], [5, 4]]) and unknown("aten::mm", [[2, 3]]) and unknown("aten::mm", [])
    assert unknown("aten::add", [[2], [2]]) and unknown("aten::linear", [[2, 3], [4, 9]])
    assert unknown("aten::convolution", [[1, 3, 8, 8], [4, 3]]) and unknown("aten::mm", {"a": 1})
    assert unknown("aten::mm", [[2, "x"], ["x", 4]]) and work_of("aten::mm", None, None, None) is None
    assert work_of("aten::mm", "nonsense", "", "") is None
    shapes_alone = work_of("aten::mm", "[[2,3],[3,4]]", None, None)
    assert shapes_alone is not None and (shapes_alone.bytes, shapes_alone.dtype) == (None, None)


def test_attention_is_halved_when_causal_and_flash_backward_is_two_and_a_half_times() -> None:
    q, k = [2, 3, 8, 16], [2, 3, 10, 16]
    whole = 4 * 2 * 3 * 8 * 10 * 16
    forward = "aten::_scaled_dot_product_flash_attention"
    assert work(forward, [q, k, k, [], []], ["", "", "", "0.0", "False"])[0] == whole
    assert work(forward, [q, k, k, [], []], ["", "", "", "0.0", "True"])[0] == whole // 2
    assert work(forward, [q, k, k], ["", "", ""])[1] == 2 * (2 * 768 + 2 * 960)
    backward = "aten::_scaled_dot_product_cudnn_attention_backward"
    concrete = [""] * 14 + ["True"]
    assert work(backward, [q, q, k, k, q], concrete)[0] == whole // 2 * 5 // 2
    grouped = work("aten::scaled_dot_product_attention", [q, [2, 1, 10, 16], [2, 1, 10, 16]])
    assert grouped[0] == whole  # every head of q meets the shared k and v
    flash = work("flash_attn::_flash_attn_forward", [[2, 8, 3, 16], [2, 10, 3, 16], [2, 10, 3, 16]])
    assert flash[0] == whole


CONVOLUTIONS = [
    ((2, 4, 9, 9), (6, 4, 3, 3), {"stride": 2, "padding": 1}),
    ((2, 4, 9, 9), (6, 2, 3, 3), {"groups": 2, "dilation": 2}),
    ((1, 4, 7), (6, 4, 3), {}),
    ((1, 4, 5, 6, 7), (6, 4, 1, 2, 3), {"padding": (0, 1, 1)}),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("x", "weight", "options"), CONVOLUTIONS)
def test_convolutions_as_torch_counts_them(x: Any, weight: Any, options: dict[str, Any]) -> None:
    """torch.utils.flop_counter runs the real op; forward, and backward with both gradients."""
    torch = pytest.importorskip("torch", reason="the reference for FLOPs is torch's own counter")
    from torch.utils.flop_counter import FlopCounterMode

    around = len(x) - 2
    inputs = [torch.randn(x, requires_grad=True), torch.randn(weight, requires_grad=True)]
    conv = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}[around]
    with FlopCounterMode(display=False) as forward:
        out = conv(*inputs, **options)
    with FlopCounterMode(display=False) as backward:
        out.sum().backward()

    def listed(name: str, default: int) -> str:
        value = options.get(name, default)
        return str(list(value) if isinstance(value, tuple) else [value] * around)

    given = [listed("stride", 1), listed("padding", 0), listed("dilation", 1), "False", str([0] * around)]
    groups = str(options.get("groups", 1))
    dims = [list(x), list(weight), [], [], [], [], [], [], []]
    flops, size = work("aten::convolution", dims, ["", "", "", *given, groups])
    assert flops == forward.get_total_flops()
    assert size == 2 * (inputs[0].numel() + inputs[1].numel() + out.numel())
    dims = [list(out.shape), list(x), list(weight), *[[]] * 8]
    both = ["", "", "", "[0]", *given, groups, "[True, True, False]"]
    # torch's counter forgets the groups in the weight's gradient; each gradient is one forward's work.
    twice = backward.get_total_flops() if groups == "1" else 2 * forward.get_total_flops()
    assert work("aten::convolution_backward", dims, both)[0] == twice
    only_weight = [*both[:-1], "[False, True, False]"]
    assert work("aten::convolution_backward", dims, only_weight)[0] * 2 == twice


def test_a_transposed_convolution() -> None:
    concrete = ["", "", "", "[2, 2]", "[0, 0]", "[1, 1]", "True", "[0, 0]", "1"]
    assert work("aten::convolution", [[1, 4, 5, 5], [4, 6, 2, 2]], concrete)[0] == 2 * 100 * 24


def shaped(name: str, ts: float, dur: float, dims: Any, kind: str = BF16, **more: Any) -> dict[str, Any]:
    types = [kind if d else "" for d in dims]
    return slice_event(name, ts, dur, args={"Input Dims": dims, "Input type": types, **more})


def launch(ts: float, correlation: int) -> dict[str, Any]:
    args = {"correlation": correlation}
    return slice_event("cudaLaunchKernel", ts, 1, cat="cuda_runtime", args=args)


def product(
    path: Path, kernel: str = "nvjet_tst", kind: str = BF16, header: Any = H200, dur: float = 2000
) -> Run:
    """linear around addmm, two kernels, one of them a helper: 2 * 4096**3 FLOP."""
    dims = [[4096], [4096, 4096], [4096, 4096]]
    events = [
        slice_event("ProfilerStep#1", 0, 100, cat="user_annotation"),
        shaped("aten::linear", 10, 30, [[4096, 4096], [4096, 4096], [4096]], kind),
        shaped("aten::addmm", 15, 20, dims, kind),
        launch(20, 1),
        launch(22, 2),
        kernel_event(kernel, 50, dur, 1),
        kernel_event("splitKreduce", 50 + dur, 10, 2),
    ]
    return open_trace(
        write_kineto(path / "t.json", events, **({"deviceProperties": header} if header else {}))
    )


@pytest.mark.slow
def test_the_innermost_op_counts_once_with_all_it_launched(tmp_path: Path) -> None:
    run = product(tmp_path)
    found = op_work(run, Scope())
    flops = 2 * 4096**3
    assert found.flops.tolist() == [flops] and found.device_ns.tolist() == [2_010_000]
    assert [found.kernels[i] for i in found.kernel] == ["nvjet_tst"] and found.kernel_ns.tolist() == [
        2_000_000
    ]
    ops = {row["name"]: row["flops"] for row in report(run, "ops").rows}
    assert ops == {"aten::addmm": flops, "aten::linear": None}
    row = report(run, "roofline").rows[0]
    size = 2 * (4096 + 3 * 4096**2)
    assert (row["name"], row["calls"], row["flops"], row["bytes"]) == ("aten::addmm", 1, flops, size)
    assert row["flop_s"] == pytest.approx(flops / 2.010e-3)
    assert row["intensity"] == pytest.approx(flops / size)
    assert row["pct_of_roof"] == pytest.approx(100 * flops / 2.010e-3 / 989e12)
    assert (row["bound"], row["dtype"], row["source"]) == ("compute", "bfloat16", "shapes")
    by_kernel = report(run, "roofline", "kernel").rows[0]
    assert by_kernel["name"] == "nvjet_tst" and by_kernel["flop_s"] == pytest.approx(flops / 2e-3)
    assert report(run, "roofline", "rank").rows[0]["rank"] == 0
    assert json.loads(report(run, "roofline", "shape").rows[0]["shape"]) == [
        [4096],
        [4096, 4096],
        [4096, 4096],
    ]


@pytest.mark.slow
def test_mfu_is_the_step_s_work_over_its_time_and_peak(tmp_path: Path) -> None:
    """The host's step ends after 100 µs, the GPU's work after 2,060."""
    whole, step = report(product(tmp_path), "mfu").rows
    assert (whole["step"], step["step"], step["dur_ns"]) == (None, 1, 2_060_000)
    assert step["mfu_pct"] == pytest.approx(100 * 2 * 4096**3 / 2.060e-3 / 989e12)
    assert step["tensor_core_pct"] == pytest.approx(100 * 2000 / 2010)
    assert any("989 TFLOP/s (bfloat16)" in note for note in report(product(tmp_path), "mfu").notes)


def with_graph(path: Path, graph_us: float) -> Run:
    """A product of 2 * 4096**3 FLOP in 1 ms, and one kernel of a replayed CUDA graph, in one step."""
    events = [
        slice_event("ProfilerStep#1", 0, 100, cat="user_annotation"),
        shaped("aten::mm", 10, 20, [[4096, 4096], [4096, 4096]]),
        launch(15, 1),
        kernel_event("nvjet_tst", 50, 1000, 1),
        slice_event("cudaGraphLaunch", 40, 5, cat="cuda_runtime", args={"correlation": 2}),
        kernel_event("nvjet_tst", 1050, graph_us, 2),
    ]
    return open_trace(write_kineto(path, events, deviceProperties=H200))


def test_mfu_is_not_known_where_kernels_run_in_cuda_graphs(tmp_path: Path) -> None:
    """Three quarters of the kernel time is in a graph: what is counted is a lower bound, not the MFU."""
    result = report(with_graph(tmp_path / "t.json", 3000), "mfu")
    assert [row["mfu_pct"] for row in result.rows] == [row["hfu_pct"] for row in result.rows] == [None, None]
    assert [row["graph_pct"] for row in result.rows] == [75.0, 75.0]
    assert result.rows[0]["flops"] == 2 * 4096**3
    (note,) = [note for note in result.notes if "CUDA graphs" in note]
    least = 100 * 2 * 4096**3 / 4.05e-3 / 989e12
    assert "75.0 % of the compute kernel time is in CUDA graphs" in note and f"at least {least:.1f} %" in note


def test_mfu_is_kept_where_graphs_hardly_matter(tmp_path: Path) -> None:
    result = report(with_graph(tmp_path / "t.json", 5), "mfu")
    assert result.rows[0]["mfu_pct"] == pytest.approx(100 * 2 * 4096**3 / 1.055e-3 / 989e12)
    assert any("0.5 % of the compute kernel time is in CUDA graphs" in note for note in result.notes)


def test_a_run_in_cuda_graphs_is_not_told_to_record_shapes(open_real: OpenReal) -> None:
    """In gpt-graph-h200 one small kernel per step is outside of the graph."""
    result = report(open_real(DATA / "gpt-graph-h200"), "mfu")
    assert [row["mfu_pct"] for row in result.rows] == [None] * 6
    (note,) = result.notes
    assert note.startswith("99.6 % of the compute kernel time is in CUDA graphs") and "not known" in note


@pytest.mark.slow
def test_float32_has_the_peak_of_the_kernel_that_ran(tmp_path: Path) -> None:
    plain = report(product(tmp_path / "a", "sm80_xmma_gemm_f32f32_ffma", FLOAT), "roofline")
    tensor = report(product(tmp_path / "b", "cutlass_80_tensorop_s1688gemm_128x128", FLOAT), "roofline")
    assert [plain.rows[0]["dtype"], tensor.rows[0]["dtype"]] == ["float32", "tf32"]
    assert plain.rows[0]["pct_of_roof"] == pytest.approx(tensor.rows[0]["pct_of_roof"] * 494 / 67)
    (finding,) = plain.findings
    assert finding.kind == "limit" and finding.title.endswith("on tensor cores")
    less = finding.fact("less_ns_per_step")
    assert less is not None and less.value == round(2_010_000 * (1 - 67 / 494))
    # whatif makes the product faster, not its helper of 10 µs
    assert finding.cost_ns == pytest.approx(2_000_000 * (1 - 67 / 494), abs=2)
    assert "set_float32_matmul_precision" in finding.hint
    assert finding.remedy == Remedy("kernels faster", names=("sm80_xmma_gemm_f32f32_ffma",), factor=494 / 67)
    assert [fact.value for fact in finding.facts if fact.quantity == "peak_flop_s"] == [67e12, 494e12]
    assert all("on tensor cores" not in finding.title for finding in tensor.findings)


@pytest.mark.slow
def test_a_product_far_below_its_roof_is_a_finding(tmp_path: Path) -> None:
    (finding,) = report(product(tmp_path, dur=990), "roofline").findings or (None,)
    assert finding is not None and "share of its roof: 13.9 %, all ranks" in finding.lines
    assert finding.title == "Kernels faster: aten::addmm (bfloat16)"
    less, share = finding.fact("less_ns_per_step"), finding.fact("pct_of_roof")
    assert less is not None and less.value == pytest.approx(1_000_000 * (1 - 13.9 / 80), rel=0.01)
    assert share is not None and share.value == pytest.approx(13.9, rel=0.01)
    assert share.row == {"name": "aten::addmm", "dtype": "bfloat16"}
    assert finding.remedy is not None and finding.remedy.names == ("nvjet_tst",)
    assert finding.remedy.factor == pytest.approx(80 / 13.9, rel=0.01)


def test_only_ranks_that_are_far_below_the_roof_are_counted(tmp_path: Path) -> None:
    """Rank 0 reaches 14 % of the roof, rank 1 half of it."""
    for rank, took in enumerate((990.0, 277.0)):
        folder = tmp_path / f"r{rank}"
        product(folder, dur=took)
        text = json.loads((folder / "t.json").read_text())
        text["distributedInfo"] = {"rank": rank, "world_size": 2}
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / f"rank-{rank}.json").write_text(json.dumps(text))
    run = Run(ingest([tmp_path / "run"]))
    (finding,) = QUESTIONS["roofline"].analyse(run, Scope(), None).findings
    assert finding.ranks == (0,) and "far below the roof: 1, of 2 ranks" in finding.lines


@pytest.mark.slow
def test_the_user_s_ceilings_go_before_the_table_s(tmp_path: Path) -> None:
    path = write_kineto(
        tmp_path / "t.json",
        [shaped("aten::mm", 0, 10, [[8, 8], [8, 8]]), launch(2, 1), kernel_event("gemm", 20, 10, 1)],
        deviceProperties=H200,
    )
    run = Run(ingest([path]))
    machine = Machine(Ceilings(any_peak=1e12, source="--peak"))
    row = report(run, "roofline", machine=machine).rows[0]
    # 10 µs: the intensity is 1024 / 384, so 4.8 TB/s allow 12.8 TFLOP/s, and the peak is the roof
    assert row["pct_of_roof"] == pytest.approx(100 * 1024 / 10e-6 / 1e12)
    assert row["bound"] == "compute"
    assert any(
        "--peak and the data sheet of H200" in note for note in report(run, "roofline", machine=machine).notes
    )


def test_notes_on_missing_data(tmp_path: Path) -> None:
    unknown_device = report(product(tmp_path / "a", header=None), "roofline")
    assert unknown_device.rows[0]["pct_of_roof"] is None and unknown_device.rows[0]["bound"] is None
    assert any("--peak 989TF --bandwidth 4.8TB/s" in note for note in unknown_device.notes)
    no_shapes = open_trace(write_kineto(tmp_path / "b.json", [slice_event("aten::mm", 0, 5)]))
    for name in ("roofline", "mfu"):
        assert any("--record-shapes" in note for note in report(no_shapes, name).notes), name
    notes = " ".join(report(no_shapes, "mfu").notes)
    assert "no steps" in notes and "no GPU events" in notes
    recorded = shaped("aten::mm", 0, 5, [[2], []], flops=1234)
    with_flops = report(open_trace(write_kineto(tmp_path / "c.json", [recorded])), "mfu")
    assert with_flops.rows[0]["flops"] == 1234


@pytest.mark.slow
@pytest.mark.parametrize("steps", [None, (2, 2)])
def test_planted_flops_by_rank_and_step(steps: tuple[int, int] | None, tmp_path: Path) -> None:
    truth = write(Plan(ranks=2, events_per_rank=12_000), tmp_path)
    run = Run(ingest([tmp_path]))
    rows = report(run, "mfu", steps=steps).rows
    for rank in truth["ranks"]:
        mine = [row["flops"] for row in rows if row["rank"] == rank["rank"]]
        planted = sum(rank["flops"].values())
        assert mine[0] == sum(mine[1:])
        if steps is None:
            assert mine[0] == planted
        else:
            assert len(mine) == 2 and mine[1] * len(rank["steps"]) == planted
    roofline = report(run, "roofline", steps=steps).rows
    assert sum(row["flops"] for row in roofline) == sum(row["flops"] for row in rows if row["step"] is None)


def test_steps_fill_the_time(open_real: OpenReal) -> None:
    run = open_real(DATA / "ddp-gloo4")
    found = periods(run, Scope())
    for rank in run.ranks:
        mine = found.of(rank)
        assert (mine.end[:-1] == mine.start[1:]).all()
        ((first, last),) = run.rows(
            f"SELECT min(start_ns), max(start_ns + dur_ns) FROM steps WHERE rank = {rank}"
        )
        # What the GPU still had to do from before the recording is not the first step's.
        ((own,),) = run.rows(f"SELECT min(start_ns) FROM gpu WHERE rank = {rank} AND launch IS NOT NULL")
        assert first <= mine.start[0] <= max(first, own) and mine.end[-1] >= last


def test_a_gpt_on_an_h200_does_6_flop_a_parameter_and_token(open_real: OpenReal) -> None:
    """Four layers of 12·d² weights and a head of 32,000·d, 8,192 tokens a step; attention comes on top."""
    run = open_real(DATA / "gpt-h200-stack")
    step = next(row for row in report(run, "mfu").rows if row["step"] == 3)
    weights, tokens = 4 * 12 * 1024**2 + 32_000 * 1024, 8 * 1024
    attention = 4 * (4 * 8 * 16 * 1024 * 1024 * 64) / 2 * 3.5
    assert step["flops"] == 6 * weights * tokens + attention
    assert step["peak_flop_s"] == 989e12 and 14 < step["mfu_pct"] < 18
    rows = {row["name"]: row for row in report(run, "roofline").rows}
    assert 750e12 < rows["aten::mm"]["flop_s"] < 820e12 and rows["aten::mm"]["bound"] == "compute"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "low", "high"), [("bf16", 756e12, 815e12), ("fp32", 50e12, 53e12)])
def test_the_sequence_parallel_loop_on_an_h200(
    name: str, low: float, high: float, open_real: OpenReal
) -> None:
    run = open_real(DATA / f"seqpar-nccl1-{name}")
    (row,) = report(run, "roofline").rows
    assert row["flops"] == 6 * 2 * 4096 * 8192 * 32768
    assert low < row["flop_s"] < high
    for kernel in report(run, "roofline", "kernel").rows:
        ((flop_s,),) = run.rows(
            "SELECT 2e9 * 4096 * 8192 * 32768 / avg(dur_ns) FROM gpu WHERE name = ? AND op IS NOT NULL",
            [kernel["name"]],
        )
        assert kernel["flop_s"] == pytest.approx(flop_s)


def on_tensor_cores(kernel: str) -> bool:
    """As DuckDB matches the names in `mfu`."""
    return bool(re.search(_TENSOR_CORE_KERNEL, kernel)) and not re.search(_OTHER_KERNEL, kernel)


def test_tensor_cores_by_name() -> None:
    yes = ["nvjet_sm90_tst_256x128_64x4", "ampere_bf16_s16816gemm_bf16_128x64_ldg8", "void flash_fwd_kernel<x>",
           "cutlass_80_tensorop_s1688gemm_128x128", "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16",
           "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", "fmha_cutlassF_bf16_aligned_64x64_rf_sm80",
           "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x128x64_MI16x16x1_SN"]  # fmt: skip
    no = ["sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma", "ampere_sgemm_128x64_tn",
          "void at::native::vectorized_elementwise_kernel<4, x>", "void gemv2T_kernel_val<int>",
          "cutlass_80_simt_sgemm_128x64_8x5_tn_align1", "void layer_norm_1688<float>x"]  # fmt: skip
    assert [name for name in yes if not on_tensor_cores(name)] == []
    assert [name for name in no[:-1] if on_tensor_cores(name)] == []
    # The same expressions in DuckDB, which matches the names of a run.
    more = [
        "sgemm_tf32_a",
        "sgemm_tf3",
        "sgemm_t",
        "sgemm_",
        "x_dgemm_tf32",
        "x_dgemm_tx_1688 x",
        "hmma_sgemm_tf32",
    ]
    for name in (*yes, *no, *more):
        ((in_sql,),) = duckdb.execute(
            "SELECT regexp_matches($1, $2) AND NOT regexp_matches($1, $3)",
            [name, _TENSOR_CORE_KERNEL, _OTHER_KERNEL],
        ).fetchall()
        assert in_sql == on_tensor_cores(name), name


def test_devices() -> None:
    def named(name: str, memory: int | None = None) -> str:
        device = find_device(name, memory)
        return device.name if device else ""

    assert named("NVIDIA H100 80GB HBM3") == "H100 SXM" and named("NVIDIA H100 PCIe") == "H100 PCIe"
    assert named("NVIDIA H200") == "H200" and named("NVIDIA GH200 480GB") == "GH200"
    assert named("NVIDIA A100-SXM4-40GB", 42_000_000_000) == "A100 40 GB"
    assert named("NVIDIA A100-SXM4-80GB") == named("NVIDIA A100", 85_000_000_000) == "A100 80 GB"
    assert named("AMD Instinct MI300X") == "MI300X" and named("Grid K1") == ""


def test_formulas_accept_malformed_arguments() -> None:
    nonsense = ["", "null", "{}", "[]", "[[]]", "[[],[],[]]", "[1,2,3]", '["x","y"]', "[[0,0],[0,0]]", "[[[1]],[[2]]]",
                "[null,null]", "[[1,1,0,0],[1,1,0,0],[1,1,0,0]]", "[[-1,2],[2,-3]]"]  # fmt: skip
    for name in FORMULAS:
        for dims in nonsense:
            for other in ("", "[]", '["float","float","float","float"]'):
                found = work_of(name, dims, other, other)
                assert found is None or found.flops > 0


def test_ceilings_as_the_user_writes_them(tmp_path: Path) -> None:
    assert given_ceilings("989TF").peak("bfloat16") == 989e12
    some = given_ceilings("bf16=989 TFLOP/s, tf32=494TF", "4.8TB/s")
    assert (some.peak("bfloat16"), some.peak("tf32"), some.peak("float32"), some.bandwidth) == (
        989e12, 494e12, None, 4.8e12,
    )  # fmt: skip
    measured = tmp_path / "peak.json"
    parts = [
        {"kind": "matmul", "tflop_s": 804.0},
        {"kind": "matmul", "tflop_s": 808.5},
        {"kind": "collective"},
    ]
    measured.write_text(json.dumps({"config": {"precision": "bfloat16", "tf32": False}, "parts": parts}))
    assert given_ceilings(str(measured)).peak("bfloat16") == 808.5e12
    measured.write_text("[]")
    for wrong in (str(measured), "fast", "bf17=3TF", "0TF", "nowhere.json", "bf16=-3TF"):
        with pytest.raises(UsageError):
            given_ceilings(wrong)
    with pytest.raises(UsageError):
        given_ceilings(None, "wide")


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_is_not_work_of_the_model(reentrant: bool, tmp_path: Path) -> None:
    """Two checkpointed linear layers, for real: one forward and both gradients are the model's work."""
    torch = pytest.importorskip("torch", reason="runs torch.utils.checkpoint")
    from torch.utils.checkpoint import checkpoint

    from integration import fake_compiler  # noqa: F401 - it saves importing torch's compiler

    layers = [torch.nn.Linear(64, 64, bias=False) for _ in range(2)]
    x = torch.randn(32, 64, requires_grad=True)
    activities = [torch.profiler.ProfilerActivity.CPU]
    profiler = torch.profiler.profile(activities=activities, record_shapes=True)
    with profiler, torch.profiler.record_function("step 1"):
        y = x
        for layer in layers:
            y = checkpoint(layer, y, use_reentrant=reentrant)
        y.sum().backward()
    profiler.export_chrome_trace(str(tmp_path / "t.json"))
    run = Run(ingest([tmp_path / "t.json"]))
    result = report(run, "mfu", machine=Machine(Ceilings(any_peak=1e12, source="--peak")))
    one = 2 * 32 * 64 * 64
    assert result.rows[0]["flops"] == 2 * 3 * one
    assert result.rows[0]["hfu_pct"] == pytest.approx(result.rows[0]["mfu_pct"] * 8 / 6)
    assert any("33 % of the work is computed a second time" in note for note in result.notes)


def test_points_that_ncu_measured_stand_beside_those_from_shapes(
    dataset: Callable[[str], Path], open_real: OpenReal
) -> None:
    """Four bf16 products of a GPT with 1,024 hidden and 8,192 tokens; the device's name is in the report."""
    result = report(open_real(dataset("ncu/gemm_bf16.raw.csv")), "roofline")
    assert [row["source"] for row in result.rows] == ["ncu"] * 4
    assert {row["dtype"] for row in result.rows} == {"bfloat16"} and {
        row["bound"] for row in result.rows
    } == {"compute"}
    # The largest, [8192, 1024] by [1024, 4096], and the bias's additions: at least 2·M·N·K are executed.
    assert min(abs(row["flops"] / (2 * 8192 * 1024 * 4096) - 1) for row in result.rows) < 0.01
    assert all(row["pct_of_roof"] == pytest.approx(100 * row["flop_s"] / 989e12) for row in result.rows)
    assert any("peaks of NVIDIA H200" in note for note in result.notes)


def test_the_store_keeps_the_shapes_of_every_op_that_has_a_formula() -> None:
    assert set(FORMULAS) == set(COMPUTING_OPS)
