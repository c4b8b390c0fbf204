"""Reports on one rank at a time: breakdown, overlap, idle causes, phases, kernels, ops, syncs, data loading.

They never compare ranks; that is across_ranks. Imports core only.
"""
