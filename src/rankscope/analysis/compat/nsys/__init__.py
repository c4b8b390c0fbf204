"""The reports of `nsys stats` by name, with the same headings, rows and digits.

Several ranks share one table, as several processes of one nsys report do; --by rank separates them.
"""

from __future__ import annotations

from rankscope.analysis.compat.nsys import ranges, tables

NSYS_REPORTS = {
    report.name: report
    for report in (
        tables.cuda_gpu_kern_sum, tables.cuda_gpu_kern_gb_sum, tables.cuda_gpu_mem_time_sum,
        tables.cuda_gpu_mem_size_sum, tables.cuda_gpu_sum, tables.cuda_api_sum, tables.cuda_api_gpu_sum,
        tables.cuda_kern_exec_sum, tables.cuda_gpu_trace, tables.cuda_kern_exec_trace, tables.cuda_api_trace,
        tables.nvtx_sum, tables.nvtx_pushpop_sum, ranges.nvtx_gpu_proj_sum, ranges.nvtx_gpu_proj_trace,
        ranges.nvtx_kern_sum, tables.osrt_sum,
    )
}  # fmt: skip
