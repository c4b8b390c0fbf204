"""The reports of `nsys stats` by name.

Several ranks share one table, as several processes of one nsys report do; --by rank separates them.
"""

from __future__ import annotations

from rankscope.analysis.compat.nsys import ranges, sums, traces
from rankscope.analysis.core.report import Report

_BY_RANK = ("rank",)
NSYS_REPORTS = {
    report.name: report
    for report in (
        Report("cuda_gpu_kern_sum", "Kernels by name.", sums.cuda_gpu_kern_sum, _BY_RANK),
        Report(
            "cuda_gpu_kern_gb_sum",
            "Kernels by name, grid and block.",
            sums.cuda_gpu_kern_gb_sum,
            _BY_RANK,
        ),
        Report("cuda_gpu_mem_time_sum", "Copies and fills by time.", sums.cuda_gpu_mem_time_sum, _BY_RANK),
        Report("cuda_gpu_mem_size_sum", "Copies and fills by size.", sums.cuda_gpu_mem_size_sum, _BY_RANK),
        Report("cuda_gpu_sum", "Kernels, copies and fills.", sums.cuda_gpu_sum, _BY_RANK),
        Report("cuda_api_sum", "CUDA calls by name.", sums.cuda_api_sum, _BY_RANK),
        Report("cuda_api_gpu_sum", "CUDA calls and GPU work together.", sums.cuda_api_gpu_sum, _BY_RANK),
        Report(
            "cuda_kern_exec_sum",
            "Launch, queue and run time of kernels.",
            sums.cuda_kern_exec_sum,
            _BY_RANK,
        ),
        Report("cuda_gpu_trace", "Each kernel, copy and fill.", traces.cuda_gpu_trace, _BY_RANK),
        Report("cuda_kern_exec_trace", "Each kernel with its launch.", traces.cuda_kern_exec_trace, _BY_RANK),
        Report("cuda_api_trace", "Each CUDA call.", traces.cuda_api_trace, _BY_RANK),
        Report("nvtx_sum", "NVTX ranges by name and style.", sums.nvtx_sum, _BY_RANK),
        Report("nvtx_pushpop_sum", "NVTX push/pop ranges by name.", sums.nvtx_pushpop_sum, _BY_RANK),
        Report(
            "nvtx_gpu_proj_sum",
            "NVTX ranges by the GPU work in them.",
            ranges.nvtx_gpu_proj_sum,
            _BY_RANK,
        ),
        Report(
            "nvtx_gpu_proj_trace",
            "Each NVTX range with the GPU work in it.",
            ranges.nvtx_gpu_proj_trace,
            _BY_RANK,
        ),
        Report("nvtx_kern_sum", "Kernels by the NVTX ranges around them.", ranges.nvtx_kern_sum, _BY_RANK),
        Report("osrt_sum", "Calls into the operating system by name.", sums.osrt_sum, _BY_RANK),
        Report("mpi_event_trace", "Each MPI call.", traces.mpi_event_trace),
    )
}
