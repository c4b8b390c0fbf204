"""The dependency graph of a run: its critical path (`report`), and replaying it with changes (`whatif`).

Imports core, within_rank and across_ranks.
"""
