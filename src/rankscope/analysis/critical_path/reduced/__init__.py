"""The reduced graph: collectives and ends of steps, and the work between them by class, for runs of any size.

`rank_graph` makes the part of a rank from its events and keeps it in the store, `run_graph` joins those of a run,
`player` replays it and `path` finds the critical path. docs/adr/0142-reduced-graph.md has the reasons.
"""
