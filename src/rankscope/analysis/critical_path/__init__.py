"""The dependency graph of a run: its critical path (`report`), and predictions from replaying it (`whatif`).

Imports core, within_rank and across_ranks.
"""
