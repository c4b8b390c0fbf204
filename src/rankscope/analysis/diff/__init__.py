"""Comparing two runs: samples per step, permutation test, findings.

`two_runs.diff` is the entry. Imports core and within_rank.
"""
