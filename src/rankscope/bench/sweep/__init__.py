"""seqpar over a grid of sizes, precisions and rank counts. Standard library and torch only.

grid.py runs the points and reads their reports; rows.py turns reports into one table, CSV or a chart.
"""
