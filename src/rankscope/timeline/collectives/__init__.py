"""Collectives: the table written for each segment, process groups, and matching across ranks.

`table` is called while a segment is written, `loading.matched_collectives` when a run is opened. Analyses read
`run.collectives`, the arrays defined in `entries`. Nothing here imports the Run.
"""
