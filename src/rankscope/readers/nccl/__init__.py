"""What NCCL itself writes: the Inspector's JSON lines and Prometheus text, and the dumps of its profiler plugin.

The registry calls the readers. Nothing here knows torch: ranks and groups are those of NCCL's communicators.
"""
