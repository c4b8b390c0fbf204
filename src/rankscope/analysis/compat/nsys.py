"""The reports of `nsys stats` by name: same headings, same rows, same digits in CSV.

Several ranks stand in one table, as several processes of one report do; --by rank keeps them apart.
"""

from __future__ import annotations

from rankscope.analysis.compat import nsys_ranges, nsys_sums, nsys_traces
from rankscope.analysis.report import Report

_BY_RANK = ("rank",)
NSYS_REPORTS = {
    report.name: report
    for report in (
        Report("cuda_gpu_kern_sum", "Kernels by name.", nsys_sums.cuda_gpu_kern_sum, _BY_RANK),
        Report(
            "cuda_gpu_kern_gb_sum",
            "Kernels by name, grid and block.",
            nsys_sums.cuda_gpu_kern_gb_sum,
            _BY_RANK,
        ),
        Report(
            "cuda_gpu_mem_time_sum", "Copies and fills by time.", nsys_sums.cuda_gpu_mem_time_sum, _BY_RANK
        ),
        Report(
            "cuda_gpu_mem_size_sum", "Copies and fills by size.", nsys_sums.cuda_gpu_mem_size_sum, _BY_RANK
        ),
        Report("cuda_gpu_sum", "Kernels, copies and fills.", nsys_sums.cuda_gpu_sum, _BY_RANK),
        Report("cuda_api_sum", "CUDA calls by name.", nsys_sums.cuda_api_sum, _BY_RANK),
        Report("cuda_api_gpu_sum", "CUDA calls and GPU work together.", nsys_sums.cuda_api_gpu_sum, _BY_RANK),
        Report(
            "cuda_kern_exec_sum",
            "Launch, queue and run time of kernels.",
            nsys_sums.cuda_kern_exec_sum,
            _BY_RANK,
        ),
        Report("cuda_gpu_trace", "Each kernel, copy and fill.", nsys_traces.cuda_gpu_trace, _BY_RANK),
        Report(
            "cuda_kern_exec_trace", "Each kernel with its launch.", nsys_traces.cuda_kern_exec_trace, _BY_RANK
        ),
        Report("cuda_api_trace", "Each CUDA call.", nsys_traces.cuda_api_trace, _BY_RANK),
        Report("nvtx_sum", "NVTX ranges by name and style.", nsys_sums.nvtx_sum, _BY_RANK),
        Report("nvtx_pushpop_sum", "NVTX push/pop ranges by name.", nsys_sums.nvtx_pushpop_sum, _BY_RANK),
        Report(
            "nvtx_gpu_proj_sum",
            "NVTX ranges by the GPU work in them.",
            nsys_ranges.nvtx_gpu_proj_sum,
            _BY_RANK,
        ),
        Report(
            "nvtx_gpu_proj_trace",
            "Each NVTX range as its GPU work shows it.",
            nsys_ranges.nvtx_gpu_proj_trace,
            _BY_RANK,
        ),
        Report(
            "nvtx_kern_sum", "Kernels by the NVTX ranges around them.", nsys_ranges.nvtx_kern_sum, _BY_RANK
        ),
        Report("osrt_sum", "Calls into the operating system by name.", nsys_sums.osrt_sum, _BY_RANK),
        Report("mpi_event_trace", "Each MPI call.", nsys_traces.mpi_event_trace),
    )
}
