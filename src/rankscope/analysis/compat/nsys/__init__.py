"""The reports of `nsys stats` by name, with the same headings, rows and digits.

Several ranks share one table, as several processes of one nsys report do; --by rank separates them.
"""

from __future__ import annotations

from rankscope.analysis.compat.nsys import ranges, tables
from rankscope.analysis.core.report import Report

_REPORTS = (
    ("cuda_gpu_kern_sum", "Kernels by name.", tables.cuda_gpu_kern_sum),
    ("cuda_gpu_kern_gb_sum", "Kernels by name, grid and block.", tables.cuda_gpu_kern_gb_sum),
    ("cuda_gpu_mem_time_sum", "Copies and fills by time.", tables.cuda_gpu_mem_time_sum),
    ("cuda_gpu_mem_size_sum", "Copies and fills by size.", tables.cuda_gpu_mem_size_sum),
    ("cuda_gpu_sum", "Kernels, copies and fills.", tables.cuda_gpu_sum),
    ("cuda_api_sum", "CUDA calls by name.", tables.cuda_api_sum),
    ("cuda_api_gpu_sum", "CUDA calls and GPU work together.", tables.cuda_api_gpu_sum),
    ("cuda_kern_exec_sum", "Launch, queue and run time of kernels.", tables.cuda_kern_exec_sum),
    ("cuda_gpu_trace", "Each kernel, copy and fill.", tables.cuda_gpu_trace),
    ("cuda_kern_exec_trace", "Each kernel with its launch.", tables.cuda_kern_exec_trace),
    ("cuda_api_trace", "Each CUDA call.", tables.cuda_api_trace),
    ("nvtx_sum", "NVTX ranges by name and style.", tables.nvtx_sum),
    ("nvtx_pushpop_sum", "NVTX push/pop ranges by name.", tables.nvtx_pushpop_sum),
    ("nvtx_gpu_proj_sum", "NVTX ranges by the GPU work in them.", ranges.nvtx_gpu_proj_sum),
    ("nvtx_gpu_proj_trace", "Each NVTX range with the GPU work in it.", ranges.nvtx_gpu_proj_trace),
    ("nvtx_kern_sum", "Kernels by the NVTX ranges around them.", ranges.nvtx_kern_sum),
    ("osrt_sum", "Calls into the operating system by name.", tables.osrt_sum),
)
NSYS_REPORTS = {name: Report(name, about, analyse, ("rank",)) for name, about, analyse in _REPORTS} | {
    "mpi_event_trace": Report("mpi_event_trace", "Each MPI call.", tables.mpi_event_trace)
}
