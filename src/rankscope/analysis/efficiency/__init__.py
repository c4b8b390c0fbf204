"""How much of the hardware's peak is used: MFU, roofline, Nsight Compute's measurements, kernels worth profiling.

Imports core and within_rank.
"""
