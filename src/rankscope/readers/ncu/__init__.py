"""Nsight Compute: the report itself, and the csv of its raw and details pages.

`reader.NCU` is the entry in the registry (`readers`).
"""
