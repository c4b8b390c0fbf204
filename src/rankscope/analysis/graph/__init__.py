"""The dependency graph: device nodes, host nodes and collectives of a run.

`build.graph_of` builds it; path, replay and scenarios read `nodes.Graph`.
"""
