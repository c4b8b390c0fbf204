"""The graph itself: device nodes, host nodes, collectives, and the builder that makes them from a run.

`build.graph_of` is the entry; report, replay and whatif read `nodes.Graph`.
"""
