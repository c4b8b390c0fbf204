"""Benchmarks, and synthetic traces whose answers are known.

`seqpar`, `collectives`, `sweep` and `probe` run in a training image: standard library and torch only. `synthetic`
writes traces with numpy. `ranks` starts and joins the ranks of a benchmark. Called by `cli/bench`, `cli/probe` and by
tests; nothing here imports readers, store, analysis or views.
"""
