"""Reports on device memory: peak and growth, what is allocated at the peak, fragmentation, the curve over time.

Their sources are the [memory] events of a trace and torch memory snapshots. Imports core only.
"""
