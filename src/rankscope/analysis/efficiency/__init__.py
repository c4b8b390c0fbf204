"""Reports on hardware efficiency: MFU, roofline, Nsight Compute measurements, and the kernels to measure with ncu.

Imports core and within_rank.
"""
