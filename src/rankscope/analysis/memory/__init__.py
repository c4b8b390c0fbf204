"""Device memory: peak and growth, who holds it at the peak, fragmentation, the curve over time.

Sources: [memory] events of a trace and torch memory snapshots. Imports core only.
"""
