"""Reports on one rank at a time: breakdown, overlap, idle causes, phases, kernels, ops, syncs, data loading.

Reports that compare ranks are in across_ranks. Imports core only.
"""
