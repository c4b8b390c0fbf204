"""Nsight Compute: the report itself, and the csv of its raw and details pages.

`reader` is the entry in `readers.READERS`. It may not import the store.
"""
