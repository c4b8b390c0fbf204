"""Clock offset and drift of each rank, estimated from the common end of collectives.

`alignment` is what a Run calls and keeps in clocks.json; `fit` is the least-squares solver, free of I/O.
"""
