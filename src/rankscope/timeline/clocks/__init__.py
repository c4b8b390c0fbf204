"""Clock offset and drift of each rank, estimated from the common end of collectives.

A Run calls `alignment`, which keeps the result in the store. `fit` is the least-squares solver, without I/O, also
for many clocks.
"""
