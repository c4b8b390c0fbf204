"""Which kernels communicate: by their names, and by the op that launched them."""

from __future__ import annotations

import lzma
import re
from pathlib import Path

import pytest

from conftest import kernel_event, open_trace, slice_event, write_kineto
from rankscope.analysis import REPORTS
from rankscope.analysis.core.scope import Scope
from rankscope.collective_kinds import kind_of
from rankscope.model import COLLECTIVE_NAME_PATTERN
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

COMMUNICATE = (
    # NCCL and libraries with its interface
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),  # NCCL 2.28
    ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "all_gather"),  # NCCL 2.18
    ("_Z29ncclDevKernel_AllGather_RING_LL24ncclDevKernelArgsStorageILm4096EE", "all_gather"),  # not demangled
    ("mscclKernel_Sum_half_LL(ncclDevComm*, mscclAlgo*, mscclWork*)", None),  # RCCL
    ("pcclKernel_AllReduce_RING_LL_Sum_int8_t(pcclWorkElem)", "all_reduce"),  # T-Head PPU
    ("oneccl_allreduce_pcie<half, Rt64_128_PCIE, RingTransmit>", "all_reduce"),  # oneCCL on XPU
    ("hcom_allReduce__606_0_1", "all_reduce"),  # HCCL, msprof-analyze
    # NVSHMEM (nvshmemi_h_to_d_coll_defs.cuh) and torch on it (symm_mem/nvshmem_extension.cu)
    ("void barrier_on_stream_kernel_threadgroup<(threadgroup_t)1>(int, int)", "barrier"),
    ("void nvshmemi_proxy_rma_entrypoint_blocking(rma_verb_t)", None),
    ("c10d::nvshmem_extension::allToAllV(void*, void*, long*, unsigned long, int)", "all_to_all"),
    # DeepEP: deepseek-ai/profile-data has the first three, csrc/kernels the others; UCCL has another namespace
    ("void dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8, 2, 16, 24>(int4*, float*)", "all_to_all"),
    ("void dpsk::ep::internode::cached_notify<false>(int, int, int)", "all_to_all"),
    ("void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*, int*)", "all_to_all"),
    ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*)", "all_to_all"),
    ("void deep_ep::internode_ll::combine<true, 7168, 9>(void*, void*)", "all_to_all"),
    ("_ZN7deep_ep9internode8dispatchILb0ELi8ELb0ELi8EEEvP4int4", "all_to_all"),
    ("void uccl::internode_ll::dispatch<true, false, 7168>(void*)", "all_to_all"),
    ("void hybrid_ep::dispatch_kernel<hybrid_ep::inter_node_group<128, 0> >()", "all_to_all"),  # hybrid_ep_backend.cuh
    ("void (anonymous namespace)::dispatchKernel<16u, true, false>(int*)", "all_to_all"),  # pplx-kernels
    ("mori::moe::EpDispatchIntraNodeKernel_bf16", "all_to_all"),  # ROCm/mori
    ("void tensorrt_llm::kernels::mnnvl_throughput::moeA2ADispatchKernel<8>(int const*)", "all_to_all"),  # TensorRT-LLM
    # torch's symmetric memory: symm_mem/CUDASymmetricMemoryOps.cu
    ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)", "all_reduce"),
    ("void <unnamed>::multimem_all_gather_kernel<(int)16>(void*)", "all_gather"),
    ("void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>(int)", "all_reduce"),
    ("void (anonymous namespace)::one_shot_all_reduce_kernel<float, 16, 8, false>(float**)", "all_reduce"),
    # vLLM custom_all_reduce.cuh, quick_all_reduce.h; AITER; SGLang mscclpp_allreduce.cuh; MSCCL++
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", "all_reduce"),
    ("void aiter::cross_device_reduce_2stage<__half, 8>(aiter::RankData*)", "all_reduce"),
    ("quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half, CodecQ4<__half, 8> >, __half>", "all_reduce"),
    ("void sglang::allreduce_LL_1node<__half>(mscclpp::MemoryChannelDeviceHandle*)", "all_reduce"),
    ("mscclpp::collective::allgatherFullmesh2", "all_gather"),
    # TensorRT-LLM customAllReduceKernels.cu, and FlashInfer's copies of it
    ("void tensorrt_llm::kernels::twoShotAllReduceKernel<__half, 8, true, false>(AllReduceParams)", "all_reduce"),
    ("void tensorrt_llm::kernels::reduce_fusion::lamport_style_one_shot_all_reduce_norm_kernel<float>()", "all_reduce"),
    ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>()", "all_reduce"),
    ("void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<(unsigned char)4>()", "all_reduce"),
    # TransformerEngine userbuffers.cu
    ("void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<2>(int, int)", None),
    ("kuserbuffers_pushrecv(int, int, int*, int*, int)", "recv"),
)  # fmt: skip
"""Name, and the kind that it tells. After # the source that the name is from."""
COMPUTE = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(at::native::ReduceOp<float>)",
    "void at::native::_scatter_gather_elementwise_kernel<128, 4>(int)",
    "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>()",
    "void cutlass::device_kernel<dpsk::grouped_gemm::cuda::fp8_ptp128c::GemmKernel>()",
    "void cuda::reduce_fused_impl<__nv_bfloat16, false, false>(int4 const*)",
    "void cutlass::device_kernel<flash::FlashAttnBwd<flash::CollectiveMainloopBwd<2> > >()",
    "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<192> >()",
    "void cub::detail::reduce::DeviceReduceKernel<cub::DispatchReduce<float> >()",
    "triton_poi_fused_add_all_reduce_4",  # Inductor names a kernel after the ops around it
    "triton_red_fused_all_to_all_single_barrier_0",
    "void split_with_sizes_copy_out_contiguous_no_cast_kernel<16>()",  # FSDP2
    "void vllm::moe::moe_align_block_size_kernel<int>()",
    "void deep_gemm::fp8_gemm_kernel<7168u>()",
    "deep_epilogue_kernel",
    "sm90_xmma_gemm_bf16f32_bf16f32_f32_nt_n_tilesize128x128x64",
)
"""These only look alike."""


@pytest.mark.parametrize(("name", "kind"), COMMUNICATE)
def test_names_that_communicate(name: str, kind: str | None) -> None:
    assert re.search(COLLECTIVE_NAME_PATTERN, name, re.ASCII)
    assert kind_of(name) == kind


@pytest.mark.parametrize("name", COMPUTE)
def test_names_that_only_look_alike(name: str) -> None:
    assert not re.search(COLLECTIVE_NAME_PATTERN, name, re.ASCII)


def classes(run: Run) -> dict[str, str]:
    return dict(run.rows("SELECT name, class FROM gpu"))


def test_the_database_reads_the_table_of_names_as_python_does(tmp_path: Path) -> None:
    events = [kernel_event(name, 100.0 * i, 50.0) for i, (name, _) in enumerate(COMMUNICATE)]
    events += [kernel_event(name, 1e5 + 100.0 * i, 50.0) for i, name in enumerate(COMPUTE)]
    run = open_trace(write_kineto(tmp_path / "trace.json", events))
    assert classes(run) == dict.fromkeys((name for name, _ in COMMUNICATE), "COMM") | dict.fromkeys(
        COMPUTE, "COMPUTE"
    )


def test_an_op_that_communicates_decides_whatever_the_name_is(tmp_path: Path) -> None:
    """A process group of another library launches inside record_param_comms; its copies and other ops do work."""
    events = []
    launches = (("c10d::allreduce_", "", "vendorRing"), ("record_param_comms", "", "vendorTree"),
                ("c10d::allgather_", "aten::copy_", "copy_kernel"), ("aten::mm", "", "gemm"))  # fmt: skip
    for i, (op, inner, kernel) in enumerate(launches):
        at = 1000.0 * i
        events.append(slice_event(op, at, 100.0))
        if inner:
            events.append(slice_event(inner, at + 5, 50.0))
        events.append(
            slice_event("cudaLaunchKernel", at + 10, 5.0, cat="cuda_runtime", args={"correlation": i + 1})
        )
        events.append(kernel_event(kernel, at + 200, 50.0, correlation=i + 1))
    run = open_trace(write_kineto(tmp_path / "trace.json", events))
    expected = {"vendorRing": "COMM", "vendorTree": "COMM", "copy_kernel": "COMPUTE", "gemm": "COMPUTE"}
    assert classes(run) == expected
    assert run.rows("SELECT kind FROM collectives ORDER BY start_ns") == [("all_reduce",), ("other",)]


def summary_notes(run: Run) -> list[str]:
    return [
        note
        for note in REPORTS["summary"].analyse(run, Scope().in_run(run), None).notes
        if "counted as" in note
    ]


def test_a_large_kernel_of_unknown_meaning_is_named(tmp_path: Path) -> None:
    """Not one of a known family, not a small one, not one that an op launched."""
    kernels = (
        ("of_an_op", 100),
        ("void vendor::ring_step<8>(int*)", 120),
        ("ampere_sgemm_128x64", 150),
        ("tiny", 10),
    )
    events = [slice_event("aten::something", 0, 6)]
    for i, (name, dur) in enumerate(kernels):
        at = 200.0 * i
        events.append(
            slice_event("cudaLaunchKernel", at + 2, 1, cat="cuda_runtime", args={"correlation": i + 1})
        )
        events.append(kernel_event(name, at + 10, dur, correlation=i + 1))
    path = write_kineto(tmp_path / "trace.json", events)
    assert summary_notes(open_trace(path)) == [
        "counted as compute, not known what they do: ring_step (32 % of the busy time); "
        "if one communicates: --comm-pattern 'ring_step'"
    ]
    assert summary_notes(Run(ingest([path]), comm_patterns=("ring_step",))) == []


def test_deepseek(tmp_path: Path, shared: Path) -> None:
    """deepseek-ai/profile-data, training: 113.4 ms of dispatch and combine, 96 % hidden, a GPU that is 99 % busy."""
    path = tmp_path / "train.json"
    path.write_bytes(lzma.decompress((shared / "public/deepseek/train.json.xz").read_bytes()))
    run = open_trace(path)
    assert run.rows("SELECT round(sum(dur_ns) / 1e6, 1) FROM gpu WHERE class = 'COMM'") == [(113.4,)]
    row = REPORTS["breakdown"].analyse(run, Scope().in_run(run), None).rows[0]
    assert round(row["overlap_pct"]) == 96
    assert round(100 - 100 * row["idle_ns"] / row["span_ns"]) == 99
    assert summary_notes(run) == []
