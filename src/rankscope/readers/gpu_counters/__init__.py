"""Counters of GPUs over time, as nvidia-smi and DCGM print them: one file for all GPUs of a node.

The store opens it through the registry. `layouts` knows the text of each tool, and how it writes the time.
"""
